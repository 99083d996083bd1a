"""Exported kernels: what the files say, that compilers take them, and what the loader refuses."""

from __future__ import annotations

import ctypes
import importlib.util
import runpy
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes  # noqa: F401 (gives NumPy bfloat16)
import numpy as np
import pytest
import tvm

from tests.schedules.test_generic import linear, softmax, task_of
from tests.tune.helpers import make_record, transpose_schedule
from tvm_layout_ext import RecordError, ScheduleError, TargetError, cuda_target, export, te
from tvm_layout_ext.tune.export.launches import KernelLaunch, host_plan
from tvm_layout_ext.tune.export.text import cuda_text, header_text
from tvm_layout_ext.tune.space.operator import Workload, find_operator
from tvm_layout_ext.tune.space.task import make_task

TARGET = cuda_target("sm_90a")


def default_module(func: Any, **changes: Any) -> Any:
    """A function by the default of the schedule that fits it."""
    from tvm_layout_ext.tune import operator_of

    task = task_of(operator_of(func))
    return task.module(task.space.default() | changes)


def record(**changes: Any) -> Any:
    """A measured transpose."""
    fields: dict[str, Any] = {
        "runner": "cuda",
        "device": "NVIDIA H200",
        "workload": Workload("transpose", (96, 64), "float32"),
        "config": find_operator("transpose").default_config(),
        "median": 12.5e-6,
    }
    return make_record(**(fields | changes))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plan_lists_workspace_and_launches_in_order() -> None:
    plan = host_plan(default_module(softmax(200, 33, axis=0)), TARGET)
    assert [(one.name, one.shape) for one in plan.arguments] == [("A", (200, 33)),
                                                                 ("out", (200, 33))]  # fmt: skip
    assert [(one.name, one.bytes) for one in plan.workspace] == [("most", 132), ("total", 132)]
    assert [one.pointers for one in plan.launches] == [
        ("A", "most"),
        ("A", "most", "total"),
        ("A", "most", "out", "total"),
    ]
    assert plan.launches[0].block == (8, 33, 1)
    (one,) = host_plan(default_module(linear(64, 64, 64), wgmma="none"), TARGET).launches
    assert isinstance(one, KernelLaunch)
    assert one.shared_bytes == 32768
    with pytest.raises(ScheduleError, match="host side has tensor maps, which kernels of wgmma"):
        host_plan(default_module(linear(64, 64, 64)), TARGET)


def test_texts_name_shapes_workspace_and_kernels() -> None:
    plan = host_plan(default_module(softmax(200, 33, axis=0)), TARGET)
    header = header_text("soft", plan, "sm_90a", "0.1.0", "A record.")
    assert " *   A: float32[200][33]\n *   out: float32[200][33], written\n" in header
    assert "264 bytes of workspace" in header
    assert "int soft(const void *A, void *out, void *stream);" in header
    source = cuda_text("soft", plan, "// kernels")
    assert source.count("cudaMallocAsync") == source.count("cudaFreeAsync") == 2
    assert "#define main_kernel_2 soft_main_kernel_2\n" in source
    assert "dim3(52, 1, 1), dim3(128, 1, 1)" in source


def product_in_clusters() -> Any:
    task = make_task("gemm", (128, 256, 256), "float16")
    changes = {"tile_m": 64, "tile_n": 64, "split_k": 2, "cluster": 2}
    return task.module(task.operator.default_config() | changes)


def test_plan_knows_clusters_and_the_sums_of_slices() -> None:
    plan = host_plan(product_in_clusters(), TARGET)
    assert [(one.name, one.bytes) for one in plan.workspace] == [("product_rf", 4 * 2 * 128 * 256)]
    assert [one.cluster for one in plan.launches] == [(2, 1, 1), (1, 1, 1)]
    assert plan.launches[0].grid == (4, 2, 2)
    pointers = [one.pointers for one in plan.launches]
    assert pointers == [("A", "B", "product_rf"), ("C", "product_rf")]


@pytest.mark.nvcc
def test_a_library_of_two_kernels_and_clusters_compiles(tmp_path: Path) -> None:
    made = export(product_in_clusters(), tmp_path / "split", target=TARGET)
    source = made.source.read_text()
    assert "dim3(4, 2, 2), dim3(32, 2, 2),\n                  dim3(2, 1, 1)" in source
    assert "262,144 bytes of workspace" in made.header.read_text()
    assert ctypes.CDLL(str(made.library)).split(None, None, None, None) == 1


@pytest.mark.nvcc
def test_record_becomes_a_library_without_tvm(tmp_path: Path) -> None:
    made = export(record(), tmp_path / "out" / "turn")
    assert sorted(one.name for one in made.library.parent.iterdir()) == [
        "libturn.so", "turn.cu", "turn.h", "turn.py",
    ]  # fmt: skip
    header = made.header.read_text()
    assert "transpose 96x64 float32: record" in header
    assert "measured on NVIDIA H200, 12.5 us" in header
    needed = subprocess.run(["ldd", str(made.library)], capture_output=True, text=True, check=True)
    assert "tvm" not in needed.stdout
    library = ctypes.CDLL(str(made.library))
    library.turn_error.restype = ctypes.c_char_p
    assert library.turn(None, None, None) == 1
    assert library.turn_error(1) == b"invalid argument"
    assert not hasattr(library, "main_kernel")


@pytest.mark.nvcc
def test_header_is_c_and_cpp_and_loader_checks_its_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = export(transpose_schedule(64)[1], tmp_path / "turn", target=TARGET)
    for compiler, suffix in (("gcc", "c"), ("g++", "cpp")):
        if shutil.which(compiler):
            user = tmp_path / f"user.{suffix}"
            user.write_text('#include "turn.h"\nint f(void *p) { return turn(p, p, 0); }\n')
            strict = ["-Wall", "-Werror", "-pedantic", "-o", "/dev/null"]
            subprocess.run([compiler, *strict, "-c", str(user)], check=True)
    module = load(made.loader)
    a = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    pointer, device, dtype, shape, strides = module.describe(a)
    assert (pointer, device, dtype, shape) == (a.ctypes.data, 1, "float32", (64, 64))
    assert strides in (None, (64, 1))
    assert module.describe(a[3:].T)[0] == a[3:].ctypes.data
    for name in ("float8_e4m3fn", "float8_e5m2", "int8", "bool"):
        assert module.describe(tvm.runtime.tensor(np.zeros(4, name)))[2] == name
    with pytest.raises(ValueError, match="A must be on a CUDA device, not on device type 1"):
        module.turn(a, a)
    with pytest.raises(ValueError, match=r"A must be float32 \(64, 64\), not int32 \(64, 64\)"):
        module.turn(a.astype(np.int32), a)
    with pytest.raises(ValueError, match="A must be contiguous"):
        module.turn(a.T, a)
    with pytest.raises(TypeError, match="turn takes 2 tensors, not 1"):
        module.turn(a)
    with pytest.raises(TypeError, match="A must be a tensor that speaks DLPack, not 3"):
        module.turn(3, a)
    assert "Launch on A, B, the last of which is written" in module.turn.__doc__
    monkeypatch.chdir(tmp_path)
    assert "turn" in runpy.run_path("turn.py")  # It finds its library beside itself.
    made.library.unlink()
    with pytest.raises(ImportError, match=r"turn\.py needs libturn\.so beside it"):
        runpy.run_path("turn.py")


def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = te.var("n")
    A = te.placeholder((n,), "float32", name="A")
    B = te.compute((n,), lambda i: A[i] + 1, name="B")
    s = te.create_schedule(B.op)
    s[B].auto_coalesce()
    with pytest.raises(ScheduleError, match="only such functions are exported"):
        host_plan(s.to_module([A, B], "main"), TARGET)
    with pytest.raises(ScheduleError, match="'2fast' is no C identifier"):
        export(record(), tmp_path / "2fast")
    for word in ("class", "namespace", "lambda", "main", "restrict"):
        with pytest.raises(ScheduleError, match=f"'{word}' is a word of C.*{word}_kernel"):
            export(record(), tmp_path / word)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TargetError, match="nvcc, which is not on the path"):
        export(record(), tmp_path / "turn")
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    failed = record(status="error", error_class="WrongResultError")
    with pytest.raises(RecordError, match=r"failed \(WrongResultError\); it has no kernel"):
        export(failed, tmp_path / "turn")
    with pytest.raises(RecordError, match="has no kernel today: transpose has the knobs"):
        export(record(config={"tile": 3}), tmp_path / "turn")
    with pytest.raises(TargetError, match="nvcc refuses the kernel"):
        export(record(), tmp_path / "turn")
    assert not (tmp_path / "libturn.so").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"Cannot write .*File exists; no file was replaced"):
        export(record(), tmp_path / "file" / "turn")
