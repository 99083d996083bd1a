from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext.build import device_program
from tvm_layout_ext.schedules.column_sum import compute as column_sum
from tvm_layout_ext.schedules.row_sum import compute as row_sum
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report


def schedule_of(*tensors: Any) -> s_tir.Schedule:
    return s_tir.Schedule(te.create_prim_func(tensors))


def reduced(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, Report]:
    """Sum over some axes in single precision; also what NumPy makes of it."""
    a = te.placeholder(shape, "float16", "A")
    over = {axis: te.reduce_axis((0, shape[axis]), f"k{axis}") for axis in axes}

    def element(*index: object) -> object:
        rest = list(index)
        where = [over[d] if d in over else rest.pop(0) for d in range(len(shape))]
        return te.sum(a[tuple(where)].astype("float32"), list(over.values()))

    b = te.compute([n for d, n in enumerate(shape) if d not in axes], element, "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert sch.auto_coalesce("B").path == "reduction"
    value = np.random.default_rng(0).integers(-8, 8, shape).astype("float16")
    report = simulate(sch, value, None)
    return report.outputs["B"], value.astype("float32").sum(axes), report


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((64, 1024), (1,)),
        ((33, 1000), (1,)),
        ((33, 7), (1,)),
        ((33, 7), (0,)),
        ((512, 256), (0,)),
        ((1000, 96), (0,)),
        ((1021, 50), (0,)),
        ((4, 64, 32), (1,)),
        ((4, 64, 32), (0, 2)),
        ((5, 6, 7, 64), (1, 2)),
        ((16, 1, 63, 13), (1, 2)),
        ((1, 1024, 256), (0, 1)),
        ((1, 7, 96, 1), (1, 2)),
        ((1, 1 << 22), (1,)),
        ((1, 1, 1), (2,)),
    ],
)
def test_sums_are_numpys(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    got, want, report = reduced(shape, axes)
    np.testing.assert_array_equal(got, want)
    assert not report.hazards


@pytest.mark.parametrize(("shape", "axes"), [((64, 1024), (1,)), ((512, 256), (0,))])
def test_loads_are_full_vectors_and_shared_memory_has_no_conflict(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    _, _, report = reduced(shape, axes)
    loads = [access for access in report.accesses if access.buffer == "A"]
    assert {access.vector_bytes for access in loads} == {16}
    assert sum(access.sectors for access in loads) == shape[0] * shape[1] * 2 // 32
    assert report.bank_conflicts == 0


def loads_and_sums(sch: s_tir.Schedule) -> list[str]:
    """What the first kernel's loop over the matrix does, in the order of its code."""
    kernel = next(iter(device_program(sch).kernels.values()))
    order: list[str] = []

    def look(store: tirx.BufferStore) -> None:
        if "A_local[" in str(store.value):
            order.append("sum")
        elif str(store.buffer.name) == "A_local":
            order.append("load")

    tvm_ffi.structural_walk(kernel.body, [(tirx.BufferStore, look)])
    return order


@pytest.mark.parametrize(
    ("make", "shape", "dtype", "lanes", "loads", "vector"),
    [
        (row_sum, (32768, 4096), "float16", "4 rows of 128 lanes", 4, 8),
        (row_sum, (32768, 4096), "float32", "2 rows of 256 lanes", 4, 4),
        (row_sum, (32768, 1024), "float16", "16 rows of 32 lanes", 4, 8),
        (row_sum, (4096, 65536), "float16", "1 rows of 512 lanes", 8, 8),
        (row_sum, (32768, 3 * 1024), "float16", "8 rows of 64 lanes", 6, 8),
        (column_sum, (32768, 4096), "float16", "32 lanes by 8 rows", 8, 8),
        (column_sum, (32768, 4096), "float32", "32 lanes by 8 rows", 8, 4),
    ],
)
def test_a_thread_has_all_loads_of_a_step_on_their_way_before_it_adds(
    make: Any, shape: tuple[int, int], dtype: str, lanes: str, loads: int, vector: int
) -> None:
    sch = s_tir.Schedule(te.create_prim_func(make(shape, dtype)))
    assert lanes in sch.auto_coalesce("B").report
    assert loads_and_sums(sch) == ["load"] * loads + ["sum"] * (loads * vector)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_sums_of_wide_strips_are_numpys_and_meet_no_bank_twice(dtype: str) -> None:
    a, k = te.placeholder((64, 1 << 15), dtype, "A"), te.reduce_axis((0, 64), "k")
    of = "int32" if dtype == "int8" else "float32"
    b = te.compute((1 << 15,), lambda j: te.sum(a[k, j].astype(of), k), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    text = sch.auto_coalesce("B", num_threads=256).report
    assert re.search(r"across the rows, (16|32|64) lanes", text)
    value = np.random.default_rng(0).integers(-8, 8, (64, 1 << 15)).astype(dtype)
    report = gives(sch, value, None, B=value.astype(of).sum(0))
    assert report.bank_conflicts == 0
    # A warp stores 4 results at once, half of a sector.
    assert report.sectors <= (value.nbytes + 2 * 4 * (1 << 15)) // 32


@pytest.mark.parametrize(
    ("names", "axes"),
    [("jk", (1,)), ("jk", (0,)), ("8k", (1,)), ("8k", (0,)), ("j8", (0,)), ("4jk", (1,))],
)
def test_sums_of_symbolic_sizes_are_numpys(names: str, axes: tuple[int, ...]) -> None:
    sizes = [int(name) if name.isdigit() else te.var(name) for name in names]
    a = te.placeholder(sizes, "float32", "A")
    (axis,) = axes
    k = te.reduce_axis((0, sizes[axis]), "r")
    out = [size for dim, size in enumerate(sizes) if dim != axis]
    b = te.compute(out, lambda *i: te.sum(a[(*i[:axis], k, *i[axis:])], k), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert sch.auto_coalesce("B").path == "reduction"
    program = device_program(sch)
    for extents in ({"j": 33, "k": 100}, {"j": 1, "k": 1}, {"j": 64, "k": 300}):
        shape = [extents.get(name) or int(name) for name in names]
        value = np.random.default_rng(0).integers(-8, 8, shape).astype("float32")
        gives(program, value, None, B=value.sum(axes))


def test_lanes_lie_along_columns_of_which_nobody_knows_how_many_there_are() -> None:
    n, k = te.var("n"), te.var("k")
    a, r = te.placeholder((n, k), "float32", "A"), te.reduce_axis((0, n), "r")
    sch = s_tir.Schedule(
        te.create_prim_func([a, te.compute((k,), lambda i: te.sum(a[r, i], r), "B")])
    )
    assert "a thread for each result" in sch.auto_coalesce("B").report
    report = simulate(sch, np.zeros((50, 64), "float32"), None)
    assert report.sectors == (50 * 64 + 64) * 4 // 32


def test_another_reader_of_what_is_summed_keeps_its_own_loads() -> None:
    """A buffer that two blocks read is taken into registers for the one that is mapped."""
    a = te.placeholder((64, 256), "float32", "A")
    k = te.reduce_axis((0, 256), "k")
    b = te.compute((64,), lambda i: te.max(a[i, k], k), "B")
    c = te.compute((64, 256), lambda i, j: a[i, j] - b[i], "C")
    sch = s_tir.Schedule(te.create_prim_func([a, c]))
    assert sch.auto_coalesce("B").path == "reduction"
    assert sch.auto_coalesce("C").path == "direct"
    value = np.random.default_rng(0).integers(-8, 8, (64, 256)).astype("float32")
    gives(sch, value, None, C=value - value.max(1, keepdims=True))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("split", [(0, 3), (0, 4), (1, 3), (1, 8), (1, 7)])
@pytest.mark.parametrize("shape", [(17, 33), (1, 8)])
def test_loops_that_were_split_with_a_rest_before_stay_inside_their_buffers(
    shape: tuple[int, int], split: tuple[int, int], axis: int
) -> None:
    """``rfactor`` of TVM 0.27 drops the guard of such a split: rows past the last were added."""
    a = te.placeholder(shape, "int32", "A")
    k = te.reduce_axis((0, shape[axis]), "k")
    b = te.compute((shape[1 - axis],), lambda i: te.sum(a[k, i] if axis == 0 else a[i, k], k), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    loop, factor = split
    sch.split(sch.get_loops(sch.get_sblock("B"))[loop], [None, factor])
    assert sch.auto_coalesce("B").path == "reduction"
    value = np.random.default_rng(0).integers(-8, 8, shape).astype("int32")
    gives(sch, value, None, B=value.sum(axis))


def test_a_split_with_a_rest_is_not_cut_into_slabs() -> None:
    """TVM takes no block with a guard for a reduction that it may factor."""
    a = te.placeholder((30000, 8), "int32", "A")
    k = te.reduce_axis((0, 30000), "k")
    sch = s_tir.Schedule(
        te.create_prim_func([a, te.compute((8,), lambda i: te.sum(a[k, i], k), "B")])
    )
    sch.split(sch.get_loops(sch.get_sblock("B"))[1], [None, 7])
    outcome = sch.auto_coalesce("B")
    assert outcome.path == "reduction"


def started_at(rows: int, columns: int, start: int) -> Any:
    """Row maxima that are at least ``start``, which is not where TVM's maximum starts."""

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((rows, columns), "float32"), B: T.Buffer((rows,), "float32")) -> None:
        for i, k in T.grid(rows, columns):
            with T.sblock("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.Cast("float32", start)
                B[vi] = T.max(B[vi], A[vi, vk])

    return func


@pytest.mark.parametrize("shape", [(192, 19), (8, 1024)])
def test_a_reduction_from_another_start_has_a_thread_for_each_result(
    shape: tuple[int, int],
) -> None:
    """Threads of a row were to combine it, and TVM could not lower the program."""
    sch = s_tir.Schedule(started_at(*shape, 3))
    outcome = sch.auto_coalesce("B")
    a = np.random.default_rng(0).integers(-9, 5, shape).astype("float32")
    gives(sch, a, None, B=np.maximum(a.max(1), 3))
    assert "a thread for each result" in outcome.report
    assert "TVM knows no reducer" in outcome.report


@pytest.mark.parametrize(
    ("shape", "dtype"), [((184, 64), "int32"), ((64, 512), "float16"), ((7, 33), "float32")]
)
def test_a_matrix_times_a_vector_has_both_in_vectors(shape: tuple[int, int], dtype: str) -> None:
    """The vector went element by element, 16 sectors a request."""
    a, w = te.placeholder(shape, dtype, "A"), te.placeholder(shape[1:], dtype, "W")
    k = te.reduce_axis((0, shape[1]), "k")
    product = te.compute(shape[:1], lambda i: te.sum(a[i, k] * w[k], axis=k), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, w, product]))
    outcome = sch.auto_coalesce("B")
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 2, n).astype(dtype) for n in (shape, shape[1:])]
    gives(sch, *values, None, B=values[0] @ values[1])
    widths = {one.buffer: one.vector_bytes for one in outcome.after if one.kind == "load"}
    assert widths["W"] == widths["A"]


@T.prim_func(s_tir=True)
def summed_outside(A: T.Buffer((5, 8, 64), "float32"), B: T.Buffer((8,), "float32")) -> None:
    for n, c, x in T.grid(5, 8, 64):
        with T.sblock("B"):
            vn, vc, vx = T.axis.remap("RSR", [n, c, x])
            with T.init():
                B[vc] = T.float32(0)
            B[vc] = B[vc] + A[vn, vc, vx]


def test_loops_of_a_sum_around_those_of_its_results_are_counted_before() -> None:
    """Nothing was counted before, so nothing was held against it."""
    sch = s_tir.Schedule(summed_outside)
    outcome = sch.auto_coalesce("B")
    assert [(one.buffer, one.kind) for one in outcome.before] == [("A", "load"), ("B", "store")]
    assert "before not counted" not in outcome.report
    a = np.random.default_rng(0).integers(-9, 9, (5, 8, 64)).astype("float32")
    gives(sch, a, None, B=a.sum((0, 2)))


@T.prim_func(s_tir=True)
def channels(A: T.Buffer((32, 56, 56, 64), "float32"), B: T.Buffer((64,), "float32")) -> None:
    for n, h, w, c in T.grid(32, 56, 56, 64):
        with T.sblock("B"):
            vn, vh, vw, vc = T.axis.remap("RRRS", [n, h, w, c])
            with T.init():
                B[vc] = T.float32(0)
            B[vc] = B[vc] + A[vn, vh, vw, vc]


def test_few_columns_of_rows_of_several_dims_are_mapped() -> None:
    """Cut into slabs, they ended in a ValueError."""
    sch = s_tir.Schedule(channels)
    outcome = sch.auto_coalesce("B")
    assert "across the rows" in outcome.report
    tlx.lower(sch)


@pytest.mark.parametrize("shape", [(40, 24, 16), (33, 20, 17), (128, 128, 128)])
def test_products_have_a_thread_for_each_result_along_the_rows_of_the_result(
    shape: tuple[int, int, int],
) -> None:
    """Lanes went down the rows, stored 32 sectors each time, and the block was left alone."""
    m, n, depth = shape
    a, b = (
        te.placeholder(one, "float32", name) for one, name in (((m, depth), "A"), ((depth, n), "B"))
    )
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    outcome = sch.auto_coalesce("C")
    assert "a thread for each result" in outcome.report
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, one).astype("float32") for one in ((m, depth), (depth, n)))
    report = gives(sch, x, y, None, C=x @ y)
    store = next(one for one in report.accesses if one.kind == "store" and one.scope == "global")
    assert store.sectors == -(-m * n * 4 // 32)


@pytest.mark.parametrize("turned", [True, False])
def test_a_buffer_that_is_read_twice_along_its_rows_is_lowered(turned: bool) -> None:
    """One copy was to hold both, from the first to the last: TVM could not lower its vector."""
    a, k = te.placeholder((300, 64), "float32", "A"), te.reduce_axis((0, 64), "k")
    other = (lambda c: 63 - c) if turned else (lambda c: (c + 1) % 64)
    b = te.compute((300,), lambda i: te.sum(a[i, k] * a[i, other(k)], axis=k), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert "an iteration reads A at 2 places" in sch.auto_coalesce("B").report
    x = np.random.default_rng(0).integers(-4, 5, (300, 64)).astype("float32")
    wanted = (x * (x[:, ::-1] if turned else np.roll(x, -1, 1))).sum(1)
    np.testing.assert_array_equal(tlx.simulate(sch, x, None).outputs["B"], wanted)


def test_sums_of_squares_go_along_their_rows() -> None:
    a, k = te.placeholder((300, 64), "float32", "A"), te.reduce_axis((0, 64), "k")
    b = te.compute((300,), lambda i: te.sum(a[i, k] * a[i, k], axis=k), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert "reduction along the rows" in sch.auto_coalesce("B").report


@pytest.mark.parametrize("shape", [(1, 1 << 25), (2, 1 << 24), (7, 1 << 23)])
def test_rows_of_which_256_span_over_32_bits_are_cut_into_slabs(
    shape: tuple[int, int],
) -> None:
    a, k = te.placeholder(shape, "float32", "A"), te.reduce_axis((0, shape[1]), "k")
    b = te.compute(shape[:1], lambda i: te.sum(a[i, k], k), "B")
    assert "in slabs" in re.sub(r"\d+ slabs", "slabs", schedule_of(a, b).auto_coalesce("B").report)


def test_rows_are_summed_one_element_a_lane() -> None:
    """A loop of one iteration inside of the lanes' ended TVM's LowerCrossThreadReduction."""
    a, k = te.placeholder((8, 4096), "bool", "A"), te.reduce_axis((0, 4096), "k")
    sch = schedule_of(a, te.compute((8,), lambda i: te.sum(a[i, k].astype("int32"), k), "B"))
    assert "along the rows" in sch.auto_coalesce("B").report
    value = np.random.default_rng(0).random((8, 4096)) < 0.5
    np.testing.assert_array_equal(simulate(sch, value, None).outputs["B"], value.sum(1))


@pytest.mark.parametrize(
    ("shape", "summed", "at"), [((1, 1, 1), (1, 2), None), ((1, 2, 1, 2), (0, 2), 3)]
)
def test_loops_of_one_iteration_store_no_result_twice(
    shape: tuple[int, ...], summed: tuple[int, ...], at: int | None
) -> None:
    """Threads without a result stored what their registers held; a vector ran over its loop."""
    a = te.placeholder(shape, "float32", "A")
    axes = [te.reduce_axis((0, shape[dim]), f"k{dim}") for dim in summed]
    kept = [dim for dim in range(len(shape)) if dim not in summed]

    def add_up(*at: Any) -> Any:
        own = dict(zip((*kept[::-1], *summed), (*at, *axes), strict=True))
        return te.sum(a[tuple(own[dim] for dim in range(len(shape)))], axes)

    sch = schedule_of(a, te.compute([shape[dim] for dim in kept[::-1]], add_up, "B"))
    loops = sch.get_loops("B")
    if at is None:
        sch.fuse(*loops[:2])
    else:
        sch.reorder(*loops[2:], *loops[:2])
        sch.split(sch.get_loops("B")[at], [None, 1])
    sch.auto_coalesce("B")
    value = np.random.default_rng(0).integers(-8, 8, shape).astype("float32")
    np.testing.assert_array_equal(simulate(sch, value, None).outputs["B"], value.sum(summed).T)


def test_a_reduction_whose_formula_compares_its_iterators_is_mapped() -> None:
    a, k = te.placeholder((64, 256), "float32", "A"), te.reduce_axis((0, 256), "k")

    def until(i: Any, j: Any) -> Any:
        return te.sum(tirx.if_then_else(k <= j, a[i, k], tirx.const(0, "float32")), k)

    sch = schedule_of(a, te.compute((64, 256), until, "B"))
    assert sch.auto_coalesce("B").path == "reduction"
    value = np.random.default_rng(0).integers(-8, 8, (64, 256)).astype("float32")
    np.testing.assert_array_equal(simulate(sch, value, None).outputs["B"], value.cumsum(1))


def test_a_loop_of_both_results_and_their_sums_is_refused() -> None:
    a, k = te.placeholder((16, 32), "float32", "A"), te.reduce_axis((0, 32), "k")
    sch = schedule_of(a, te.compute((16,), lambda i: te.sum(a[i, k], k), "B"))
    sch.fuse(*sch.get_loops("B"))
    with pytest.raises(tlx.ScheduleError, match="i_k_fused of block B stands behind axes of its"):
        sch.auto_coalesce("B")


def test_a_fused_loop_that_was_split_with_a_rest_is_refused_of_a_reduction() -> None:
    a, k = te.placeholder((1001, 33), "float32", "A"), te.reduce_axis((0, 2), "k")
    sch = schedule_of(a, te.compute((1000, 33), lambda i, j: te.max(a[i + k, j], k), "B"))
    i, j, _ = sch.get_loops("B")
    sch.fuse(*sch.split(sch.fuse(i, j), [None, 64]))
    with pytest.raises(tlx.ScheduleError, match="split no fused loop by what does not divide it"):
        sch.auto_coalesce("B")


def test_vectors_of_a_row_of_several_dims_stay_in_one_of_them() -> None:
    """A step of 34 lanes was 136 elements, no part of rows of 16: TVM found no length of a load."""
    a = te.placeholder((17, 64, 16), "float32", "A")
    k, m = te.reduce_axis((0, 17), "k"), te.reduce_axis((0, 16), "m")
    sch = schedule_of(a, te.compute((64,), lambda i: te.sum(a[k, i, m], [k, m]), "B"))
    assert "34 lanes, vectors of 4" in sch.auto_coalesce("B", num_threads=64).report
    value = np.random.default_rng(0).integers(-8, 8, (17, 64, 16)).astype("float32")
    np.testing.assert_array_equal(simulate(sch, value, None).outputs["B"], value.sum((0, 2)))


def test_a_split_with_a_rest_inside_of_another_is_refused_of_column_sums() -> None:
    """Two threads stored each result: TVM puts the guard of the inner split around no store."""
    a, k = te.placeholder((17, 16), "float32", "A"), te.reduce_axis((0, 17), "k")
    sch = schedule_of(a, te.compute((16,), lambda i: te.sum(a[k, i], k), "B"))
    sch.split(sch.split(sch.get_loops("B")[0], [None, 3])[1], [None, 16])
    with pytest.raises(tlx.ScheduleError, match="i_1_0 \\* 16 \\+ i_1_1 < 3 holds, which is not"):
        sch.auto_coalesce("B")
