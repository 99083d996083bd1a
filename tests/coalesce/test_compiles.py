"""Mapped blocks whose CUDA no compiler took: what is told is what runs, and nvcc takes it."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, s_tir, te, tirx

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext.cubin import machine_code
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.gpu.hardware import MULTIPROCESSORS

TARGET = tlx.cuda_target("sm_90a")


def scheduled(inputs: list[Any], result: Any) -> tuple[Any, s_tir.Schedule]:
    sch = s_tir.Schedule(te.create_prim_func([*inputs, result]))
    return sch.auto_coalesce("B"), sch


def by_row(shape: tuple[int, int], dtype: str, of: Any) -> Any:
    """What a function makes of each element and a value of its row."""
    a, b = te.placeholder(shape, dtype, "A"), te.placeholder(shape[:1], dtype, "b")
    return scheduled([a, b], te.compute(shape, lambda i, j: of(a[i, j], b[i]), "B"))


def reshaped(shape: tuple[int, ...], out: tuple[int, ...], dtype: str) -> Any:
    a = te.placeholder(shape, dtype, "A")

    def of(*at: Any) -> Any:
        flat = sum(i * prod(out[d + 1 :]) for d, i in enumerate(at))
        return a(*[flat // prod(shape[d + 1 :]) % n for d, n in enumerate(shape)])

    return scheduled([a], te.compute(out, of, "B"))


def merged_heads() -> Any:
    a = te.placeholder((2, 12, 64, 64), "float16", "A")
    of = lambda b, s, c: a[b, c // 64, s, c % 64]  # noqa: E731
    return scheduled([a], te.compute((2, 64, 768), of, "B"))


def in_float32(a: Any, b: Any) -> Any:
    return (a.astype("float32") + b.astype("float32")).astype(a.dtype)


CASES = {
    "a byte over 4 lanes": lambda: by_row((64, 12), "int8", lambda a, b: a + b),
    "a float over 8 lanes": lambda: by_row((64, 256), "float16", in_float32),
    "bytes by way of floats": lambda: by_row((64, 256), "int8", in_float32),
    "a cast of FP8": lambda: by_row((64, 256), "float8_e4m3fn", lambda a, _: a.astype("float16")),
    "a reshape of short rows": lambda: reshaped((256, 49, 4), (256, 196), "float16"),
    "a reshape to other rows": lambda: reshaped((1024, 7, 4), (7, 1024, 4), "float16"),
    "merged heads": merged_heads,
    "a column sum": lambda: summed((100000, 33), (0,)),
    "a sum of axes": lambda: summed((64, 16, 56, 56), (0, 2, 3)),
    "a sum of cut rows": lambda: summed((33, 3, 9, 2, 16), (2, 3, 4, 1)),
}


@pytest.mark.costly
@pytest.mark.nvcc
@pytest.mark.parametrize("case", CASES)
def test_nvcc_takes_the_code(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
    _, sch = CASES[case]()
    machine_code(tlx.build(sch, target=TARGET).mod.imports[0].inspect_source(), "sm_90a")


@pytest.mark.parametrize(
    ("shape", "out", "lanes"),
    [((256, 49, 4), (256, 196), 8), ((1024, 7, 4), (7, 1024, 4), 4), ((9, 50, 2), (10, 90), 2)],
)
def test_a_reshape_moves_the_vectors_that_are_told(
    shape: tuple[int, ...], out: tuple[int, ...], lanes: int
) -> None:
    outcome, sch = reshaped(shape, out, "float16")
    a = np.arange(prod(shape)).astype("float16").reshape(shape)
    report = gives(sch, a, None, target=TARGET, B=a.reshape(out))
    assert outcome.path == "direct"
    assert {access.vector_bytes for access in report.accesses} == {2 * lanes}


def test_heads_merge_in_vectors_of_16_bytes() -> None:
    outcome, sch = merged_heads()
    a = np.random.default_rng(0).standard_normal((2, 12, 64, 64)).astype("float16")
    report = tlx.simulate(sch, a, None, target=TARGET)
    wanted = a.transpose(0, 2, 1, 3).reshape(2, 64, 768)
    np.testing.assert_array_equal(report.outputs["B"], wanted)
    assert {access.vector_bytes for access in report.accesses} == {16}
    assert [(t.sectors, t.least) for t in outcome.after] == [(16, 16), (16, 16)]


def test_a_scale_of_each_group_leaves_vectors_whole() -> None:
    a, b = te.placeholder((8, 512), "float16", "A"), te.placeholder((8, 4), "float16", "b")
    outcome, sch = scheduled(
        [a, b], te.compute((8, 512), lambda i, j: a[i, j] * b[i, j // 128], "B")
    )
    x, y = np.full((8, 512), 3, "float16"), np.arange(32, dtype="float16").reshape(8, 4)
    gives(sch, x, y, None, target=TARGET, B=x * y.repeat(128, 1))
    assert "vector i*j 8, lane" in outcome.report


def test_arithmetic_of_fp8_is_refused_by_name() -> None:
    _, sch = by_row((64, 24), "float8_e4m3fn", lambda a, b: a + b)
    with pytest.raises(ScheduleError, match="no arithmetic and no comparisons of float8_e4m3fn"):
        tlx.build(sch, target=TARGET)


def summed(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float32", of: Any = te.sum
) -> Any:
    """A sum, or a maximum, over some axes."""
    a = te.placeholder(shape, dtype, "A")
    over = {axis: te.reduce_axis((0, shape[axis]), f"k{axis}") for axis in axes}
    kept = [axis for axis in range(len(shape)) if axis not in axes]

    def element(*at: Any) -> Any:
        places = [over[d] if d in over else at[kept.index(d)] for d in range(len(shape))]
        return of(a(*places), axis=list(over.values()))

    return scheduled([a], te.compute([shape[axis] for axis in kept], element, "B"))


_SUMS = [
    ((33, 3, 9, 2, 16), (2, 3, 4, 1)),
    ((16, 8, 16, 8, 16), (0, 2, 4)),
    ((8, 16, 56, 56), (0, 2, 3)),
    ((16, 33, 96), (0, 2)),
    ((32, 20, 28, 24), (0, 1, 2)),
    ((8, 256, 1, 128), (1, 3)),
    ((24, 8, 14, 10), (0, 2, 3)),
]


@pytest.mark.parametrize(("shape", "axes"), _SUMS)
def test_sums_over_axes_load_each_vector_into_registers_of_its_own(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """Of a region that ends inside a row TVM kept all rows: kilobytes of registers a thread."""
    _, sch = summed(shape, axes)
    a = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
    report = gives(sch, a, None, target=TARGET, B=a.sum(axes))
    assert {x.vector_bytes for x in report.accesses if x.buffer == "A"} == {16}
    source = str(tlx.build(sch, target=TARGET).mod.imports[0].inspect_source())
    arrays = [int(size) for size in re.findall(r"A\w*local\w*\[(\d+)\];", source)]
    assert max(arrays) <= 64


def test_a_sum_of_odd_planes_has_a_thread_for_each_element() -> None:
    _, sch = summed((3, 40, 7, 7), (0, 2, 3))
    a = np.random.default_rng(0).integers(-9, 9, (3, 40, 7, 7)).astype("float32")
    gives(sch, a, None, target=TARGET, B=a.sum((0, 2, 3)))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1000000, 33), (0,)),
        ((33554432, 1), (0,)),
        ((500000, 128), (0,)),
        ((1000000, 100), (0,)),
        ((8, 1000000, 7), (1,)),
        ((64, 56, 56, 64), (0, 1, 2)),
        ((100000, 1, 33), (0,)),
        ((8, 1024, 1, 1024), (1, 3)),
        ((10, 1, 1 << 20, 1), (2,)),
    ],
)
@pytest.mark.parametrize("of", [te.sum, te.max])
def test_few_results_of_many_rows_fill_the_multiprocessors(
    shape: tuple[int, ...], axes: tuple[int, ...], of: Any
) -> None:
    """A column sum of 1,000,000 rows with the least sectors ran in one block of 256 threads."""
    outcome, sch = summed(shape, axes, of=of)
    assert "slabs that a second kernel combines" in outcome.report
    blocks: list[int] = []
    loops = [(tirx.For, lambda loop: blocks.append(int(loop.extent)) if _is_grid(loop) else None)]
    tvm_ffi.structural_walk(sch.mod["main"].body, loops)
    assert max(blocks) >= 1.5 * MULTIPROCESSORS


@pytest.mark.parametrize(
    ("inlined", "axes"), [((), (1,)), (("T_subtract", "T_multiply"), (1,)), ((), (0, 2, 3))]
)
def test_a_variance_of_relax_loads_in_vectors(
    inlined: tuple[str, ...], axes: tuple[int, ...]
) -> None:
    shape = (64, 1024) if len(axes) == 1 else (4, 32, 8, 8)
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.variance(x, axis=list(axes))))
    (func,) = (
        f
        for f in relax.transform.LegalizeOps()(builder.get()).functions.values()
        if isinstance(f, tirx.PrimFunc)
    )
    sch = s_tir.Schedule(func.with_attr("global_symbol", "main"))
    for name in inlined:
        sch.compute_inline(name)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        sch.auto_coalesce(block)
    value = np.random.default_rng(0).standard_normal(shape).astype("float32")
    report = tlx.simulate(sch, value, None, target=TARGET)
    (found,) = report.outputs.values()
    np.testing.assert_allclose(found, value.var(axis=axes), rtol=1e-4)
    assert {one.vector_bytes for one in report.accesses if one.buffer == "x"} == {16}


def _is_grid(loop: Any) -> bool:
    axis = loop.thread_binding
    return axis is not None and str(axis.thread_tag).startswith("blockIdx")


def test_a_square_of_a_difference_loads_its_operand_once_in_vectors() -> None:
    """The two reads of one element had no vector: 16 sectors a request where 2 are least."""
    a, m = te.placeholder((64, 1024), "float16", "A"), te.placeholder((64,), "float16", "m")
    k = te.reduce_axis((0, 1024), "k")
    away = lambda i: a[i, k].astype("float32") - m[i].astype("float32")  # noqa: E731
    result = te.compute((64,), lambda i: te.sum(away(i) * away(i), axis=k), "B")
    outcome, sch = scheduled([a, m], result)
    x = np.random.default_rng(0).integers(-9, 9, (64, 1024)).astype("float16")
    y = np.arange(64).astype("float16")
    report = tlx.simulate(sch, x, y, None, target=TARGET)
    wanted = ((x.astype("float32") - y[:, None]) ** 2).sum(1)
    np.testing.assert_array_equal(report.outputs["B"], wanted)
    loads = [t for t in outcome.after if t.buffer == "A"]
    assert [(t.vector_bytes, t.sectors, t.least) for t in loads] == [(16, 16, 16)]
