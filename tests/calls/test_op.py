"""Ready operators as functions of arrays, on the simulated GPU."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm

import tvm_layout_ext as tlx
from tvm_layout_ext.calls import chosen as choice
from tvm_layout_ext.calls import disk, fixed, operation
from tvm_layout_ext.tune.records.log import Log
from tvm_layout_ext.tune.space.operator import find_operator, known_operators
from tvm_layout_ext.tune.space.task import make_task

RNG = np.random.default_rng(0)


def operands(dtype: Any = "float16") -> tuple[np.ndarray, np.ndarray]:
    return RNG.random((48, 32)).astype(dtype), RNG.random((32, 64)).astype(dtype)


class Foreign:
    """An array of a library that only speaks DLPack."""

    __module__ = "foreign.arrays"

    def __init__(self, values: Any, place: tuple[int, int] | None = None) -> None:
        self.values, self.place = values, place

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        place: tuple[int, int] = self.place or self.values.__dlpack_device__()
        return place

    @staticmethod
    def from_dlpack(other: Any) -> Foreign:
        return Foreign(np.from_dlpack(other))


@pytest.mark.parametrize("name", known_operators())
def test_every_operator_computes_its_reference(name: str) -> None:
    operator = find_operator(name)
    dtype = operator.dtypes[0]
    special = {"attention": (1, 2, 1, 64, 64, 64), "conv2d": (1, 8, 8, 16, 24, 3, 3)}
    special |= {"gemm_scaled": (32, 32, 128), "ragged": (2, 2, 1, 64, 64, 64)}
    special["depthwise"] = (2, 9, 9, 32, 3, 3)
    usual = special.get(name.partition("_")[0], (32,) * len(operator.dims))
    shape = special.get(name, usual)
    task = make_task(operator, shape, dtype)
    inputs = task.draw(0)
    found, wanted = tlx.op(name)(*inputs), operator.reference(*inputs)
    allowed = operator.tolerance(task.shape, dtype)
    assert found.dtype == wanted.dtype
    assert np.allclose(
        found.astype("float64"), wanted.astype("float64"), allowed.rtol, allowed.atol
    )


def test_the_result_is_of_the_callers_kind() -> None:
    a = RNG.random((16, 24)).astype("float32")
    tensor = tlx.op("transpose")(tvm.runtime.tensor(a))
    assert isinstance(tensor, tvm.runtime.Tensor)
    assert (tensor.numpy() == a.T).all()


def test_a_library_that_only_speaks_dlpack(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("foreign")
    library.from_dlpack = Foreign.from_dlpack  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "foreign", library)
    a = RNG.random((16, 24)).astype("float32")
    found = tlx.op("transpose")(Foreign(a))
    assert isinstance(found, Foreign)
    assert (found.values == a.T).all()


def test_a_library_without_from_dlpack_is_named() -> None:
    with pytest.raises(tlx.ScheduleError, match="foreign has no from_dlpack"):
        tlx.op("transpose")(Foreign(np.zeros((8, 8), "float32")))


def test_torch_tensors_of_the_host() -> None:
    torch = pytest.importorskip("torch")
    a = torch.randn(16, 24).t().to(torch.bfloat16)
    b = torch.randn(16, 8).to(torch.bfloat16)
    found = tlx.op("gemm")(a, b)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), a.float() @ b.float(), atol=0.1)


def test_an_array_that_is_not_row_major_is_copied() -> None:
    a, b = operands("float16")
    assert (tlx.op("gemm")(a, b) == tlx.op("gemm")(np.asfortranarray(a), b)).all()


def test_types_that_numpy_does_not_have() -> None:
    a, b = operands(ml_dtypes.bfloat16)
    found = tlx.op("gemm")(a, b)
    assert found.dtype == ml_dtypes.bfloat16
    assert np.allclose(found.astype("f"), a.astype("f") @ b.astype("f"), rtol=0.02)


@pytest.mark.parametrize("name", ["transpose", "permute", "pad", "slice", "nchw_to_nhwc"])
def test_movements_take_bfloat16(name: str) -> None:
    task = make_task(name, (16, 24, 8, 12)[: len(find_operator(name).dims)], "bfloat16")
    (a,) = task.draw(0)
    assert (tlx.op(name)(a) == task.operator.reference(a)).all()


def test_a_shape_is_lowered_once_and_stays_on_disk(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = np.zeros((16, 24), "float32")
    function = tlx.op("transpose")
    assert function.kernel(a) is function.kernel(a + 1)
    assert len(list(cache.glob("*.json"))) == 1
    monkeypatch.setattr(operation, "lower", lambda *_, **__: pytest.fail("lowered again"))
    assert tlx.op("transpose")(a).shape == (24, 16)
    with pytest.raises(pytest.fail.Exception):
        tlx.op("transpose")(np.zeros((16, 25), "float32"))


def test_another_version_of_the_code_is_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    before = disk.key_of("transpose")
    monkeypatch.setattr(disk, "_code", lambda: "changed")
    assert disk.key_of("transpose") != before


def test_a_cache_that_cannot_be_written_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(disk.VARIABLE, "/dev/null/cache")
    assert disk.remembered("key", lambda: b"made") == b"made"


def test_machine_code_is_kept_by_its_source(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def compiled(code: str, arch: str) -> Any:
        made.append(code)
        return types.SimpleNamespace(image=arch.encode())

    monkeypatch.setattr(fixed, "machine_code", compiled)
    for _ in range(2):
        assert fixed._machine_code("sm_90a", "__global__ void f() {}") == b"sm_90a"
    assert len(made) == 1
    assert len(list(cache.glob("*.cubin"))) == 1


@pytest.mark.skipif(tvm.cuda(0).exist, reason="needs a machine without a CUDA GPU")
def test_the_simulator_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    fixed._say_once.cache_clear()
    a = np.zeros((16, 24), "float32")
    with caplog.at_level(logging.WARNING, "tvm_layout_ext"):
        tlx.op("transpose")(a)
        tlx.op("transpose")(a)
    assert len([r for r in caplog.records if "simulated GPU" in r.message]) == 1


def test_a_record_of_this_shape_is_taken_and_one_far_off_is_not() -> None:
    near = make_task("transpose", (16384, 16384), "float32")
    far = make_task("transpose", (64, 64), "float32")
    log = Log(choice.LOGS).read().records
    records = [r for r in log if r.workload == near.workload]
    assert choice.chosen(near, None) in [r.config for r in records]
    assert choice.chosen(far, None) == far.space.default()


def test_a_record_that_lacks_a_knob_of_today_is_not_taken() -> None:
    """Products of the shipped log know no warpgroups; the default does."""
    task = make_task("gemm", (4096, 4096, 4096), "float16")
    assert choice.chosen(task, None) == task.space.default()
    assert task.space.default()["wgmma"] != "none"


def test_operators_say_what_they_take() -> None:
    told = tlx.operators()
    assert list(told) == known_operators()
    assert repr(told["softmax"]) == "<softmax(A[M, N]); float16, float32>"
    assert repr(told["slice"]).startswith("<slice(A[M + 2, N + 2]);")
    assert len(repr(told).splitlines()) == len(told)


@pytest.mark.parametrize(
    ("name", "arrays", "text"),
    [
        ("gemm", lambda a, b: (a,), r"gemm takes 2 arrays \(A, B\), not 1"),
        ("gemm", lambda a, b: (a, a), r"A\[M, K\], B\[K, N\]; .* \[48, 32\], \[48, 32\]"),
        ("gemm", lambda a, b: (a[0], b), r"A\[M, K\].* \[32\], \[32, 64\]"),
        ("gemm", lambda a, b: (a, b.astype("float32")), "of one type .*, not of float16, float32"),
        ("gemm", lambda a, b: (a, [1]), "B of gemm is a list; give an array of NumPy"),
        ("slice", lambda a, b: (a[:2],), r"slice takes A\[M \+ 2, N \+ 2\]"),
        ("gemm", lambda a, b: (np.ma.array(a), b), "A of gemm is a masked array"),
        (3, lambda a, b: (a, b), "op takes the name of an operator, not 3"),
        ("gem", lambda a, b: (a, b), "Unknown operator 'gem'"),
        ("gemm", lambda a, b: (a[:0], b), "none of them empty; the arrays given are"),
    ],
)
def test_what_does_not_fit_is_one_sentence(name: Any, arrays: Any, text: str) -> None:
    with pytest.raises(tlx.ScheduleError, match=text) as caught:
        tlx.op(name)(*arrays(*operands()))
    assert "\n" not in str(caught.value)


def test_another_device_is_refused() -> None:
    with pytest.raises(tlx.TargetError, match="lies on DLPack's device 10"):
        tlx.op("transpose")(Foreign(np.zeros((8, 8), "float32"), (10, 0)))


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(tlx.RecordError, match="nowhere"):
        tlx.op("transpose", log=tmp_path / "nowhere")(np.zeros((8, 8), "float32"))
