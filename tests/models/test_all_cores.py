"""Kernels of a model are compiled side by side, and once."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tvm

import tvm_layout_ext as tlx
from tests.programs.mapped import computed
from tvm_layout_ext.cubin import COMPILER, CompileError, MachineCode, compiling_by
from tvm_layout_ext.errors import LayoutExtError
from tvm_layout_ext.models.for_torch import all_cores
from tvm_layout_ext.models.for_torch.all_cores import by_all_cores

ARCH = "sm_80"
_STOCK = tvm.get_global_func("target.build.cuda")
_KERNEL = re.compile(r"__global__ .*?(\w+_kernel)\(.*\{")


def sums(terms: int) -> Any:
    """Adds up elements here and there."""
    return lambda a, i: sum((a[i * k % 2048] for k in range(2, terms)), a[i])


def kernels(count: int) -> tvm.IRModule:
    """Functions of a GPU, of which each is longer than the one before."""
    mod = tvm.IRModule({})
    for number in range(count):
        sch = computed((2048,), sums(2 * number + 3))
        outer, inner = sch.split(sch.get_loops(sch.get_sblock("B"))[0], [None, 32])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
        mod[f"f{number}"] = sch.mod["main"].with_attr("global_symbol", f"f{number}")
    return mod


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Any], list[Any]]]:
    """Builds kernels in up to three parts, by a compiler; gives the modules.

    Without a driver TVM asks no compiler: here it is asked by what stands for TVM's build.
    """
    monkeypatch.setenv("TVM_LAYOUT_EXT_CACHE", str(tmp_path))
    monkeypatch.setattr(all_cores, "is_stock", lambda: True)
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    monkeypatch.setattr(all_cores, "cores", lambda: 3)
    monkeypatch.setattr(all_cores, "_LEAST", 1)

    def asking(mod: tvm.IRModule, target: Any) -> Any:
        made = _STOCK(mod, target)
        if not tvm.runtime.enabled("cuda"):
            tvm.get_global_func(COMPILER)(str(made.inspect_source()))
        return made

    def build(compiler: Any, count: int = 6) -> list[Any]:
        monkeypatch.setattr(all_cores, "compiled_code", compiler)
        with by_all_cores():
            first = tvm.compile(kernels(count), target=tlx.cuda_target(ARCH)).mod.imports[0]
        return [first, *first.imports]

    tvm.register_global_func("target.build.cuda", asking, override=True)
    yield build
    tvm.register_global_func("target.build.cuda", _STOCK, override=True)


def made(_source: str, _arch: str, apart: bool) -> MachineCode:
    assert apart
    return MachineCode(b"image", 32, 0, "nvcc")


def test_parts_have_all_kernels_and_about_the_same_work(built: Any) -> None:
    found = [sorted(_KERNEL.findall(str(one.inspect_source()))) for one in built(made)]
    assert sorted(chain.from_iterable(found)) == [f"f{number}_kernel" for number in range(6)]
    assert [len(one) for one in found] == [2, 2, 2]
    assert found[0] == ["f0_kernel", "f5_kernel"]


def test_they_are_compiled_side_by_side_and_stay_on_disk(built: Any) -> None:
    together = threading.Barrier(3, timeout=60)

    def waiting(*given: Any, **named: Any) -> MachineCode:
        together.wait()
        return made(*given, **named)

    assert len(built(waiting)) == 3
    assert len(built(lambda *_, **__: pytest.fail("This is on disk."))) == 3


def test_one_kernel_is_one_module(built: Any) -> None:
    assert len(built(made, 1)) == 1


def test_another_thread_compiles_as_before_for_its_own_gpu(
    built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it begins, and ends, while the first is at it."""
    asked, inside, leave = list[str](), threading.Event(), threading.Event()

    def waiting(_source: str, arch: str, apart: bool) -> MachineCode:
        asked.append(arch)
        inside.set()
        assert leave.wait(60)
        return made("", arch, apart)

    before = tvm.get_global_func(COMPILER)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(built, waiting, 1)
        assert inside.wait(60)
        others = list[str]()
        with compiling_by(lambda source: others.append(source) or b"image"):
            tvm.get_global_func(COMPILER)("text")
            leave.set()
            first.result()
            tvm.get_global_func(COMPILER)("again")
    assert others == ["text", "again"]
    assert asked == [ARCH]
    assert tvm.get_global_func(COMPILER).same_as(before)


def test_refusals_keep_their_class(built: Any) -> None:
    def refusing(*_: Any, **__: Any) -> MachineCode:
        raise CompileError("nvcc refuses the kernel.")

    with pytest.raises(LayoutExtError, match="refuses the kernel") as caught:
        built(refusing)
    assert caught.type is CompileError
    assert tvm.get_global_func("target.build.cuda") is not None


def test_slow_products_are_told_and_taken(built: Any, caplog: pytest.LogCaptureFixture) -> None:
    def slow(*_: Any, **__: Any) -> MachineCode:
        return MachineCode(b"image", 168, 64, "nvcc", "ptxas spills 64 bytes.")

    with caplog.at_level(logging.WARNING):
        built(slow, 1)
        built(slow, 1)
    assert caplog.text.count("ptxas spills 64 bytes.") == 2


def test_another_compiler_is_left_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_cores, "is_stock", lambda: False)
    before = tvm.get_global_func("target.build.cuda")
    with by_all_cores():
        assert tvm.get_global_func("target.build.cuda").same_as(before)
