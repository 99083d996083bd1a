"""Loads that disagree with their store: staged through shared memory, whatever the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx

import tvm_layout_ext as tlx
from tests.programs.coalesced import numbers
from tests.programs.running import gives
from tvm_layout_ext.simulate.report import Report


def permuting(shape: Sequence[Any], order: Sequence[int], dtype: str) -> Any:
    """A function that permutes dims; names in the shape are symbolic sizes."""
    symbols = {name: te.var(name) for name in shape if isinstance(name, str)}
    sizes = [symbols.get(extent, extent) for extent in shape]
    a = te.placeholder(sizes, dtype, "A")
    where = [list(order).index(dim) for dim in range(len(shape))]
    b = te.compute([sizes[dim] for dim in order], lambda *i: a[tuple(i[w] for w in where)], "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    assert sch.auto_coalesce("B").path == "staged"
    return tlx.device_program(sch)


def checked(lowered: Any, value: np.ndarray, order: Sequence[int]) -> Report:
    report = gives(lowered, value, None, B=value.transpose(order))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    return report


def pieces(rows: int, columns: int, lanes: int, size: int) -> int:
    """Sectors of a dense matrix whose rows are read in pieces of ``lanes`` elements."""
    starts = np.arange(0, columns, lanes)
    first = (np.arange(rows)[:, None] * columns + starts) * size
    last = first + np.minimum(lanes, columns - starts) * size - 1
    return int((last // 32 - first // 32 + 1).sum())


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_one_function_transposes_every_size(dtype: str) -> None:
    lowered = permuting(["n", "m"], (1, 0), dtype)
    size = np.dtype(dtype).itemsize
    shapes = [(1, 1), (7, 33), (33, 7), (300, 7)]
    for rows, columns in [*shapes, (1, 1000), (1000, 33)] if size == 4 else shapes:
        report = checked(lowered, numbers((rows, columns), dtype), (1, 0))
        # A warp takes 32 elements of a row, as far as it goes.
        least = pieces(rows, columns, 32, size) + pieces(columns, rows, 32, size)
        assert report.sectors == least


@pytest.mark.parametrize("batch", [1, 7])
def test_a_symbolic_batch_costs_no_width(batch: int) -> None:
    lowered = permuting(["n", 64, 128], (0, 2, 1), "float16")
    value = numbers((batch, 64, 128), "float16")
    report = checked(lowered, value, (0, 2, 1))
    assert {a.vector_bytes for a in report.accesses if a.scope == "global"} == {16}
    assert report.sectors == 2 * value.nbytes // 32


def test_rows_of_known_size_keep_their_vectors() -> None:
    lowered = permuting(["n", "m", 64], (2, 0, 1), "float32")
    for shape in ((1, 7, 64), (33, 7, 64), (3, 1, 64)):
        checked(lowered, numbers(shape, "float32"), (2, 0, 1))


def check(shape: Sequence[int], inputs: Sequence[Any], body: Any, expected: Any) -> Report:
    """Stage a block of several operands, and compare it with NumPy."""
    values = [numbers(a, dtype) for a, dtype in inputs]
    held = [te.placeholder(a, dtype, f"A{i}") for i, (a, dtype) in enumerate(inputs)]
    sch = s_tir.Schedule(te.create_prim_func([*held, te.compute(shape, body(held), "B")]))
    assert sch.auto_coalesce("B").path == "staged"
    report = gives(sch, *values, None, B=expected(*values))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    return report


def test_a_cast_and_a_transpose_move_every_sector_once() -> None:
    for wide, narrow in (("float32", "float16"), ("int8", "float32"), ("float16", "float64")):
        report = check(
            (128, 64),
            [((64, 128), wide)],
            lambda t, to=narrow: lambda j, i: t[0][i, j].astype(to),
            lambda a, to=narrow: a.T.astype(to),
        )
        assert report.sectors == report.ideal_sectors


def test_one_operand_of_three_is_transposed() -> None:
    report = check(
        (96, 64),
        [((96, 64), "float32"), ((64, 96), "float32"), ((64,), "float32")],
        lambda t: lambda j, i: t[0][j, i] + t[1][i, j] * t[2][i],
        lambda a, b, c: a + b.T * c,
    )
    assert sum(x.sectors for x in report.accesses if x.buffer == "A1") == 96 * 64 * 4 // 32


def test_two_operands_are_transposed_in_different_orders() -> None:
    report = check(
        (16, 32, 64),
        [((64, 32, 16), "float32"), ((32, 64, 16), "float32"), ((16, 32, 64), "float32")],
        lambda t: lambda i, j, k: t[0][k, j, i] + t[1][j, k, i] + t[2][i, j, k],
        lambda a, b, c: a.transpose(2, 1, 0) + b.transpose(2, 0, 1) + c,
    )
    assert report.sectors == report.ideal_sectors


def test_what_only_a_condition_keeps_inside_its_buffer_is_not_staged() -> None:
    a = te.placeholder((64, 64), "float32", "A")
    zero = tirx.const(0, "float32")
    b = te.compute((64, 64), lambda i, j: tirx.if_then_else(i > 0, a[j, i - 1], zero), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    outcome = sch.auto_coalesce("B")
    assert outcome.path == "direct"
    assert "Block B reads A only where a condition holds" in outcome.report
    value = numbers((64, 64), "float32")
    gives(sch, value, None, B=np.pad(value, ((0, 0), (1, 0)))[:, :64].T)


def test_a_condition_that_its_indices_do_not_need_leaves_a_load_staged() -> None:
    zero = tirx.const(0, "float32")
    check(
        (64, 64),
        [((64, 64), "float32")],
        lambda t: lambda i, j: tirx.if_then_else(i > 3, t[0][j, i], zero),
        lambda a: np.where(np.arange(64)[:, None] > 3, a.T, 0).astype("float32"),
    )


@pytest.mark.parametrize("shape", [(89, 3), (64, 256), (33, 100)])
def test_a_tile_of_one_dim_was_an_index_error(shape: tuple[int, int]) -> None:
    """All that the block loads is a row that every row of its result takes."""
    row = te.placeholder(shape[1:], "float32", name="A")
    wide = te.compute(shape, lambda i, j: row[j] + row[j] * 2.0, name="B")
    sch = s_tir.Schedule(te.create_prim_func([row, wide]))
    assert sch.auto_coalesce("B", stage="shared").path == "staged"
    data = numbers(shape[1:], "float32")
    out = np.zeros(shape, "float32")
    gives(sch.mod, data, out, B=np.broadcast_to(data + data * 2, shape))


def test_rows_that_load_and_store_both_run_along_are_not_patched_across() -> None:
    """Walks that counted the one dim twice were no layout of the tile: an error of the algebra."""
    a = te.placeholder((5, 512, 2), "int64", "A")
    b = te.compute((512, 5, 2), lambda i, j, q: a[j, i, q], "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    sch.auto_coalesce("B", num_threads=64)
    value = np.arange(5 * 512 * 2).reshape(5, 512, 2)
    gives(sch, value, None, B=value.transpose(1, 0, 2))
