"""The builder: machine code in libraries that other processes load, and builds that go wrong."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import tvm
from tvm.script import tirx as T
from tvm.support import nvcc

from tests.programs.mapped import computed
from tvm_layout_ext import cubin, te
from tvm_layout_ext._compat import compile_cuda
from tvm_layout_ext.build import cuda_source
from tvm_layout_ext.cubin import (
    CompileError,
    MachineCode,
    PtxasError,
    compiled_code,
    machine_code,
)
from tvm_layout_ext.errors import TargetError
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.measure import worker_pool
from tvm_layout_ext.tune.measure.builder import builder as builder_module
from tvm_layout_ext.tune.measure.builder.builder import INFO, LIBRARY, Building, CubinBuilder
from tvm_layout_ext.tune.measure.worker import Worker
from tvm_layout_ext.tune.space.task import make_task

ARCH = "sm_90a"
#: Stands in front of nvcc: a kernel that says so hangs the build, or ends the process that builds.
_FALSE_NVCC = """#!/bin/sh
for last; do :; done
grep -q hang_here "$last" && exec sleep 600
grep -q crash_here "$last" && kill -9 $PPID
exec {nvcc} "$@"
"""


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CubinBuilder]:
    folder = tmp_path_factory.mktemp("bin")
    false = folder / "nvcc"
    false.write_text(_FALSE_NVCC.format(nvcc=shutil.which("nvcc")))
    false.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=":")
        patch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
        # A limit counts the start of a worker, after a crash: 8 seconds were too few beside others.
        made = CubinBuilder(ARCH, workers=2, timeout=30)
        yield made
        made.close()


def kernel(text: str) -> tvm.IRModule:
    """A kernel of one thread that holds a piece of CUDA."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((1,), "float32")):
        T.func_attr({"global_symbol": "main"})
        for _ in T.thread_binding(1, thread="threadIdx.x"):
            with T.sblock("block"):
                T.evaluate(T.cuda.func_call("odd", T.address_of(A[0]), source_code=text))

    return tvm.IRModule({"main": main})


def odd(body: str) -> tvm.IRModule:
    return kernel(f"__device__ void odd(void* p) {{ {body} }}")


def first_line(built: Building) -> str:
    """What a build failed by."""
    return (built.error.result() or "").splitlines()[0]


@pytest.mark.nvcc
def test_candidates_become_machine_code_that_another_process_loads(
    builder: CubinBuilder, tmp_path: Path
) -> None:
    task = make_task("transpose", (256, 256), "float32")
    configs = [task.space.legal[0], task.space.legal[-1]]
    built = builder.begin([task.module(config) for config in configs])
    assert [one.error.result() for one in built] == [None, None]
    for one in built:
        info = json.loads((Path(one.folder) / INFO).read_text())
        assert 0 < info["registers"] <= 255
        assert info["spill_bytes"] == 0
        assert info["smem_bytes"] >= 256
        assert info["compiler"] == "nvcc"
    worker = Worker(tmp_path / "log")
    path = str(Path(built[0].folder) / LIBRARY)
    assert worker.call(_look, path, builder._objects.driver) == ("cuda", True, True)
    worker.close()


def _look(path: str, driver: str) -> tuple[str, bool, bool]:
    from tvm_layout_ext._compat import load_cuda_runtime

    load_cuda_runtime(driver)
    library = tvm.runtime.load_module(path)
    device = library.imports[0]
    names = library.implements_function("rotated"), device.implements_function("main_kernel")
    return str(device.kind), *map(bool, names)


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('asm volatile("bogus;");',
         r"PtxasError: ptxas refuses the kernel: line .*Not a name of any known .*: 'bogus'\.$"),
        ("undeclared = 1;",
         r'CompileError: nvcc refuses the kernel: .*identifier "undeclared" is undefined'),
    ],
)  # fmt: skip
def test_refusal_of_the_compiler_is_a_build_failure(
    builder: CubinBuilder, body: str, said: str
) -> None:
    (result,) = builder.begin([odd(body)])
    assert re.match(said, first_line(result))


@pytest.mark.nvcc
def test_schedule_that_does_not_fit_is_a_build_failure(builder: CubinBuilder) -> None:
    task = make_task("transpose", (256, 256), "float32")
    module = task.module(task.space.legal[0])
    bare = tvm.IRModule({"main": te.create_prim_func(task.operator.compute((8, 8), "float32"))})
    both = builder.begin([bare, module])
    assert first_line(both[0]).startswith("TargetError: Function main binds no GPU thread")
    assert both[1].error.result() is None


@pytest.mark.nvcc
def test_what_cannot_be_sent_to_a_process_is_asked_here_and_what_takes_too_long_is_ended(
    builder: CubinBuilder,
) -> None:
    here = threading.Lock()
    assert builder.asked(lambda: os.getpid()).result() != os.getpid()
    asked = builder.asked(lambda lock: (os.getpid(), lock is here), here)
    assert asked.result() == (os.getpid(), True)
    ended = builder.apart(time.sleep, 60, timeout=0.1)
    assert isinstance(ended.exception(), TimeoutError)


def test_build_that_hangs_or_crashes_ends_alone(
    builder: CubinBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = odd("*(float*)p = 1;")
    crashed, well = builder.begin([odd("/*crash_here*/"), fine])
    assert first_line(crashed).startswith("BuildCrashError: Its process ended: ")
    assert well.error.result() is None
    # The process that hangs need not start any more.
    monkeypatch.setattr(builder, "timeout", 5.0)
    (hung,) = builder.begin([odd("/*hang_here*/")])
    assert first_line(hung) == "BuildTimeoutError: The build was ended after 5 seconds."


@pytest.mark.nvcc
def test_cubin_is_the_one_that_tvm_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    source = 'extern "C" __global__ void k(float* p) { p[threadIdx.x] = __expf(p[0]) / p[1]; }'
    with cuda_target(ARCH):
        stock = compile_cuda(source, target_format="cubin", compiler="nvcc")
    assert machine_code(source, ARCH).image == bytes(stock)


@pytest.mark.nvcc
def test_spills_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    source = """
    extern "C" __global__ void __launch_bounds__(1024) k(float* p, int steps) {
      float kept[96];
    #pragma unroll
      for (int i = 0; i < 96; ++i) kept[i] = p[i * 1024 + threadIdx.x];
    #pragma unroll 1
      for (int step = 0; step < steps; ++step) {
    #pragma unroll
        for (int i = 0; i < 96; ++i) kept[i] += kept[(i + 41) % 96] * step;
      }
    #pragma unroll
      for (int i = 0; i < 96; ++i) p[i * 1024 + threadIdx.x] = kept[i];
    }"""
    code = machine_code(source, ARCH)
    assert code.registers is not None
    assert code.registers <= 64
    assert code.spill_bytes is not None
    assert code.spill_bytes >= 4 * (96 - 64)


@pytest.mark.parametrize(
    ("report", "registers", "spills"),
    [
        ("ptxas info : Used 40 registers\nptxas info : Used 32 registers", 40, 0),
        ("12 bytes spill stores, 16 bytes spill loads\nUsed 9 registers", 9, 28),
        ("", None, None),
    ],
)  # fmt: skip
def test_report_is_read(report: str, registers: int | None, spills: int | None) -> None:
    code = MachineCode.reported(b"", report, "nvcc")
    assert (code.registers, code.spill_bytes) == (registers, spills)


def test_products_of_warpgroups_that_ptxas_makes_slow_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    loss = "Potential Performance Loss: wgmma.mma_async instructions are serialized due to"
    for number, refused in (("C7510", True), ("C7514", True), ("C7602", True), ("C7517", False)):
        report = f"ptxas info    : ({number}) {loss} it in function 'k'.\nUsed 168 registers"
        if not refused:
            assert not MachineCode.reported(b"", report, "nvcc").slow
            continue
        code = MachineCode.reported(b"", report, "nvcc")
        assert code.slow.endswith(f"slow, {number}: {loss} it in function 'k'.")
        monkeypatch.setattr(cubin, "_by_nvcc", lambda *_, code=code: code)
        with pytest.raises(PtxasError, match=number):
            machine_code("", ARCH)
    monkeypatch.setattr(cubin, "_by_nvcc", lambda *_: MachineCode(b"", 168, 64, "nvcc"))
    assert machine_code("others may spill", ARCH).spill_bytes == 64
    with pytest.raises(PtxasError, match="spills 64 bytes of a kernel of wgmma"):
        machine_code("wgmma.mma_async.sync.aligned", ARCH)


def test_a_build_refuses_them_too_and_leaves_other_code_to_tvm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiler() -> Any:
        return tvm.get_global_func(cubin.COMPILER)

    stock = compiler()
    # Other tests of this process may have put theirs in the place of TVM's.
    monkeypatch.setattr(cubin, "_STOCK", stock)
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    monkeypatch.setattr(cubin, "_by_nvcc", lambda *_: MachineCode(b"", 168, 64, "nvcc"))
    with pytest.raises(PtxasError, match="spills 64"), cubin.refusing_slow_products(ARCH):
        compiler()("wgmma.mma_async.sync.aligned")
    assert compiler().same_as(stock)
    tvm.register_global_func(cubin.COMPILER, lambda source: b"others", override=True)
    try:
        with cubin.refusing_slow_products(ARCH):
            assert compiler()("wgmma.mma_async.sync.aligned") == b"others"
    finally:
        tvm.register_global_func(cubin.COMPILER, stock, override=True)


@pytest.mark.nvcc
def test_nvrtc_reports_as_nvcc_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="the package cuda-bindings is not installed")
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvrtc")
    source = 'extern "C" __global__ void k(float* p) {{ p[threadIdx.x] += 1; {} }}'
    try:
        code = machine_code(source.format(""), ARCH)
    except TargetError as error:
        if "Cannot find CUDA headers" not in str(error):
            raise
        pytest.skip("nvrtc finds no CUDA headers here")
    assert (code.compiler, code.spill_bytes) == ("nvrtc", 0)
    assert code.registers is not None
    infinite = source.format("*p = -INFINITY + FLT_MAX;")
    for apart in (False, True):
        again = compiled_code(source.format(""), ARCH, apart)
        assert (again.registers, again.spill_bytes) == (code.registers, 0)
        assert compiled_code(infinite, ARCH, apart).image
        with pytest.raises(PtxasError, match="Not a name of any known instruction: 'bogus'"):
            compiled_code(source.format('asm volatile("bogus;");'), ARCH, apart)
        with pytest.raises(
            CompileError, match=r'nvrtc refuses the kernel: .*"undeclared" is undefined'
        ):
            compiled_code(source.format("undeclared = 1;"), ARCH, apart)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ((12, 8), [b"-O3"]),
        ((12, 9), [b"-O3", b"--no-cache"]),
        ((13, 0), [b"-O3", b"--no-cache", b"--split-compile=0"]),
    ],
)
def test_nvrtc_is_kept_from_its_cache_which_has_no_report(
    version: tuple[int, int], options: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvrtc = SimpleNamespace(
        nvrtcVersion=lambda: (0, *version),
        nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=0),
        nvrtcCreateProgram=None,
        nvrtcCompileProgram=None,
    )
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(nvrtc=nvrtc))

    def handed(source: str, **_: Any) -> None:
        result, program = nvrtc.nvrtcCreateProgram(source.encode(), b"", 0, None, None)
        assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS
        nvrtc.nvrtcCompileProgram(program, 1, [b"-O3"])

    monkeypatch.setattr(cubin, "compile_cuda", handed)
    assert cubin._nvrtc_program("text", ARCH) == (b"text", options)
    assert nvrtc.nvrtcCompileProgram is None


@pytest.mark.parametrize("use", ["INFINITY", "std::numeric_limits<float>::max()", "FLT_MAX"])
def test_limits_that_nothing_uses_are_left_out_and_lines_keep_their_numbers(use: str) -> None:
    put_before = (
        "#include <cuda/std/limits>\n#ifndef INFINITY\n"
        "#define INFINITY (::cuda::std::numeric_limits<float>::infinity())\n#endif\n"
    )
    assert put_before in inspect.getsource(nvcc)  # As TVM's is.
    source = f"{put_before}__device__ float a = {use};\n".encode()
    shorter = cubin._without_limits(source)
    assert shorter.count(b"\n") == source.count(b"\n")
    assert (b"cuda/std/limits" in shorter) == (use != "INFINITY")
    assert (b"__int_as_float" in shorter) == (use == "INFINITY")


def test_traits_that_nothing_uses_are_left_out_and_lines_keep_their_numbers() -> None:
    sch = computed((64,), lambda a, i: a[i] + 5)
    outer, inner = sch.split(sch.get_loops(sch.get_sblock("B"))[0], [None, 32])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    source = cuda_source(sch, target=cuda_target(ARCH))
    shorter = cubin._without_traits(source)
    assert "<cuda/std/type_traits>" in source
    assert "<cuda/std/type_traits>" not in shorter
    assert "namespace std" not in shorter
    kernel = 'extern "C" __global__'
    before, after = (text.splitlines() for text in (source, shorter))
    assert len(before) == len(after)
    assert [line for line in before if kernel in line] == [line for line in after if kernel in line]
    for use in ("std::is_same<int, int>", "cuda::std::conditional<true, int, int>"):
        assert cubin._without_traits(source + use) == source + use


def facts() -> list[object]:
    """What a process knows of itself."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [os.getcwd(), os.environ.get("MARK"), gpu, sys.modules.get("torch", "none")]


def test_build_processes_have_the_environment_of_now_and_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process elsewhere finds no module of the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), *sys.path]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARK", "one")
    builder = CubinBuilder(ARCH, workers=1)
    assert builder.apart(facts).result() == [str(tmp_path), "one", "", None]
    builder.close()


def test_a_build_process_that_crashes_hangs_or_is_worn_is_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder = CubinBuilder(ARCH, workers=1)
    found = [builder.apart(os.getpid).result()]
    with pytest.raises(ChildProcessError):
        builder.apart(os._exit, 3).result()
    found.append(builder.apart(os.getpid).result())
    with pytest.raises(TimeoutError):
        builder.apart(time.sleep, 60, timeout=0.2).result()
    monkeypatch.setattr(worker_pool, "USES", 1)
    found += [builder.apart(os.getpid).result() for _ in range(2)]
    assert len(set(found)) == 4
    builder.close()


def test_a_build_process_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "_IMPORTS", "no_such_module")
    builder = CubinBuilder(ARCH, workers=1)
    (built,) = builder.begin([tvm.IRModule()])
    assert first_line(built) == (
        "BuildCrashError: A process did not start: "
        "ModuleNotFoundError: No module named 'no_such_module'."
    )
    builder.close()


def test_what_is_of_use_later_lets_all_else_go_first() -> None:
    builder, ended = CubinBuilder(ARCH, workers=1), list[str]()
    builder.apart(int).result()
    first = builder.apart(time.sleep, 0.5)
    names = [("later", True), ("much later", True), ("now", False), ("next", False)]
    running = [first]
    for name, later in names:
        job = builder.apart(str, name, later=later)
        job.add_done_callback(lambda done: ended.append(done.result()))
        running.append(job)
    cancelled = builder.apart(str, "never", later=True)
    assert cancelled.cancel()
    for job in running:
        job.result()
    builder.close()
    assert ended == ["now", "next", "later", "much later"]


def test_cpu_candidate_is_built_and_runs() -> None:
    builder = CubinBuilder(ARCH, workers=1)
    function = computed((8,), lambda a, i: a[i] + 5).mod["main"]
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    (built,) = builder.begin([module], tvm.target.Target("llvm"))
    assert built.error.result() is None
    library = tvm.runtime.load_module(str(Path(built.folder) / LIBRARY))
    arrays: list[Any] = [tvm.runtime.tensor(np.full(8, i, np.float32)) for i in range(4)]
    library["rotated"](2, *arrays)
    assert [float(array.numpy()[0]) for array in arrays] == [0, 5, 2, 7]
    assert json.loads((Path(built.folder) / INFO).read_text())["registers"] is None
    builder.close()
    assert not builder.folder.exists()


def test_compilers_that_are_unknown_or_missing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setenv("PATH", "")
    for mode, message in (
        ("nvrtc", "the package cuda-bindings is not installed"),
        ("clang", "TVM_CUDA_COMPILE_MODE is 'clang'; it can be nvrtc or"),
        ("nvcc", "there is no nvcc on the PATH"),
    ):
        monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", mode)
        with pytest.raises(TargetError, match=message):
            machine_code("", ARCH)
    with pytest.raises(TargetError, match="there is no cc"):
        CubinBuilder(ARCH)
