"""Operands of a reduction, however an iteration reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx

from tests.coalesce.test_cut import check
from tvm_layout_ext.simulate import simulate


def at_two_places(rows: int, columns: int, factor: bool) -> Any:
    """Sums over all columns of a product of each row with itself, backwards, and of a vector."""
    a, w = (te.placeholder(s, "float32", n) for s, n in (((rows, columns), "A"), ((columns,), "W")))
    i, j = te.reduce_axis((0, rows), "i"), te.reduce_axis((0, columns), "j")

    def element(d: Any) -> Any:
        found = a[i, j] * a[rows - 1 - i, columns - 1 - j] + a[(i + d) % rows, j]
        return te.sum(found * w[j] if factor else found, axis=[i, j])

    return te.create_prim_func([a, *[w] * factor, te.compute((5,), element, "B")])


def vector_at_two_places(rows: int, columns: int) -> Any:
    """Sums of rows times a vector and the same vector backwards."""
    a, w = (te.placeholder(s, "float32", n) for s, n in (((rows, columns), "A"), ((columns,), "W")))
    j = te.reduce_axis((0, columns), "j")
    b = te.compute((rows,), lambda i: te.sum(a[i, j] * w[j] * w[columns - 1 - j], axis=j), "B")
    return te.create_prim_func([a, w, b])


@pytest.mark.parametrize("factor", [False, True])
def test_each_thread_loads_no_copy_of_a_buffer_that_it_reads_at_several_places(
    factor: bool,
) -> None:
    """Each iteration copied all that lies between its places: 815,471 sectors, 1,175 before."""
    outcome = check(at_two_places(12, 20, factor))
    assert outcome.path == "reduction"


@pytest.mark.parametrize(("rows", "columns"), [(9, 128), (70, 40), (3, 200)])
def test_a_factor_at_two_places_is_no_copy_of_what_lies_between(rows: int, columns: int) -> None:
    check(vector_at_two_places(rows, columns))


def padded(shape: tuple[int, int], axis: int, low: int, high: int) -> Any:
    """Sums along an axis to which zeros are added at both ends."""
    a = te.placeholder(shape, "float32", "A")
    k = te.reduce_axis((0, shape[axis] + low + high), "k")

    def element(i: Any) -> Any:
        at = (i, k - low) if axis == 1 else (k - low, i)
        inside = tirx.all(k >= low, k < shape[axis] + low)
        return te.sum(tirx.if_then_else(inside, a[at], tirx.const(0, "float32")), axis=k)

    return te.create_prim_func([a, te.compute((shape[1 - axis],), element, "B")])


@pytest.mark.parametrize(
    ("shape", "axis", "low", "high"),
    [
        ((200, 3), 0, 1, 1),
        ((40, 64), 0, 4, 0),
        ((60, 40), 0, 2, 2),
        ((3, 200), 1, 1, 1),
    ],
)
def test_sums_of_padded_tensors_load_nothing_outside(
    shape: tuple[int, int], axis: int, low: int, high: int
) -> None:
    """What all steps of a thread add was loaded first, also before row 0: at index -3 of 600."""
    check(padded(shape, axis, low, high))


@pytest.mark.parametrize(("low", "high"), [(8, 0), (0, 8)])
def test_long_padded_rows_load_nothing_outside(low: int, high: int) -> None:
    sch = s_tir.Schedule(padded((5, 1016), 1, low, high))
    assert "1 rows of 32 lanes, vectors of 4" in sch.auto_coalesce("B", num_threads=32).report
    x = np.random.default_rng(0).integers(-4, 5, (5, 1016)).astype("float32")
    np.testing.assert_array_equal(simulate(sch, x, None).outputs["B"], x.sum(1))


def chosen(depth: int, taken: int, select: bool) -> Any:
    """Sums of one tensor, or of another that lies the other way, as the last index says."""
    a, c = (
        te.placeholder(s, "int32", n) for s, n in (((4, depth, 16), "A"), ((16, 4, depth), "C"))
    )
    k = te.reduce_axis((0, depth), "k")
    choice = tirx.Select if select else tirx.if_then_else

    def element(i: Any, j: Any) -> Any:
        return te.sum(choice(j < taken, a[j, k, i], c[i, j, k]), axis=k)

    return te.create_prim_func([a, c, te.compute((16, 4), element, "B")])


@pytest.mark.parametrize("select", [False, True])
@pytest.mark.parametrize("taken", [2, 4])
def test_operands_of_a_choice_are_summed(taken: int, select: bool) -> None:
    check(chosen(24, taken, select))


@pytest.mark.parametrize("threads", [32, 64, 96])
def test_sums_of_bytes_have_no_more_lanes_than_threads(threads: int) -> None:
    """64 lanes were to fit into 32 threads: a StopIteration."""
    a, k = te.placeholder((60, 37), "int8", "A"), te.reduce_axis((0, 60), "k")
    b = te.compute((37,), lambda i: te.sum(a[k, i], axis=k), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert sch.auto_coalesce("B", num_threads=threads).path == "reduction"
    x = np.random.default_rng(0).integers(-2, 3, (60, 37)).astype("int8")
    np.testing.assert_array_equal(simulate(sch, x, None).outputs["B"], x.sum(0, dtype="int8"))
