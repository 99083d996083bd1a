"""Which blocks are moves, where their columns come from, and what their vectors cost."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir, te, tirx

from tests.programs.patterns import Pattern, padded, sliced
from tvm_layout_ext.coalesce.shifted.move import pieces, read_move, vector_of, why_not
from tvm_layout_ext.errors import ScheduleError


def block_of(tensors: list[Any]) -> Any:
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    return sch.get(sch.get_sblock("B"))


def compute(body: Any, shape: tuple[int, ...] = (40, 90), dtype: str = "float16") -> Any:
    a = te.placeholder((44, 100), dtype, "A")
    return block_of([a, te.compute(shape, lambda *i: body(a, *i), "B")])


def test_a_slice_comes_from_its_source_everywhere() -> None:
    move = read_move(block_of(sliced((44, 100), (3, 5), (40, 90), "float16").tensors()))
    assert move is not None
    assert (move.shape, move.columns, move.total, move.source_size) == ((40, 90), 90, 3600, 4400)
    assert (move.rows, move.first, move.last, move.other) == ((), 0, 90, None)
    row, column = move.iterators
    assert str(move.offset) == f"{row.name} * 100 + {column.name} + 305"


def test_the_columns_of_a_pad_are_bounded_and_its_rows_have_conditions() -> None:
    move = read_move(block_of(padded((40, 90), (1, 4), (2, 3), "float16").tensors()))
    assert move is not None
    assert (move.shape, move.first, move.last) == ((43, 97), 4, 94)
    assert len(move.rows) == 2
    assert move.other is not None


def test_one_element_for_all_is_no_move() -> None:
    """As the number that ``where`` takes: a buffer without dims has no row to go along."""
    number = te.placeholder((), "float16", "N")
    rows = te.placeholder((40, 90), "bool", "R")
    chosen = te.compute(
        (40, 90), lambda i, j: tirx.Select(rows[i, j], number(), tirx.const(0, "float16")), "B"
    )
    assert read_move(block_of([number, rows, chosen])) is None


@pytest.mark.parametrize(
    ("condition", "bounds"),
    [
        (lambda j: j > 3, (4, 90)),
        (lambda j: 80 >= j, (0, 81)),  # noqa: SIM300 (the order is what is tested)
        (lambda j: tirx.all(7 - j <= 0, j + 2 < 50), (7, 48)),
        (lambda j: j < 1000, (0, 90)),
    ],
)
def test_bounds_of_columns(condition: Any, bounds: tuple[int, int]) -> None:
    zero = tirx.const(0, "float16")
    block = compute(lambda a, i, j: te.if_then_else(condition(j), a[i, j], zero))
    move = read_move(block)
    assert move is not None
    assert (move.first, move.last) == bounds


@pytest.mark.parametrize(
    "body",
    [
        lambda a, i, j: a[i, j] + a[i, j + 1],
        lambda a, i, j: a[i, j] * tirx.const(2, "float16"),
        lambda a, i, j: a[j, i],
        lambda a, i, j: a[i, j // 2],
        lambda a, i, j: te.if_then_else(j > 3, a[i, j], a[i, 0]),
        lambda a, i, j: te.if_then_else(j > 3, a[i, j], te.exp(tirx.const(1, "float16"))),
    ],
)
def test_other_blocks_are_no_moves(body: Any) -> None:
    assert read_move(compute(body)) is None


def test_a_reduction_is_no_move() -> None:
    k = te.reduce_axis((0, 100), "k")
    assert read_move(compute(lambda a, i: te.sum(a[i, k], axis=k), (40,))) is None


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        (lambda i, j: i + j > 3, "is no bound of its columns"),
        (lambda i, j: j % 3 > 1, "is no bound of its columns"),
        (lambda i, j: tirx.any(j > 3, i > 2), "is no bound of its columns"),
        (lambda i, j: te.exp(i.astype("float32")) > 3.0, "is not of its indices alone"),
    ],
)
def test_conditions_that_are_no_bounds_are_told(condition: Any, why: str) -> None:
    zero = tirx.const(0, "float16")
    block = compute(lambda a, i, j: te.if_then_else(condition(i, j), a[i, j], zero))
    with pytest.raises(ScheduleError, match=f"the condition .* of block B {why}"):
        read_move(block)


def test_symbolic_shapes_and_strides_are_told() -> None:
    n = te.var("n", "int32")
    a = te.placeholder((n, 100), "float16", "A")
    with pytest.raises(ScheduleError, match="the shape of A is symbolic"):
        read_move(block_of([a, te.compute((40, 90), lambda i, j: a[i, j + 1], "B")]))


@pytest.mark.parametrize(
    ("move", "vector", "why"),
    [
        (sliced((44, 100), (1, 1), (40, 90), "float16"), 8, ""),
        (sliced((44, 100), (1, 1), (40, 15), "float16"), 8, "rows of 15 are too short"),
        (sliced((44, 100), (1, 1), (40, 90), "float16"), 1, "not the 4 bytes of a shuffle"),
        (sliced((44, 100), (1, 1), (40, 90), "int8"), 2, "2 elements of 1 bytes"),
        (sliced((44, 100), (1, 1), (40, 90), "bool"), 16, "A0 has elements of bool"),
        (sliced((44, 300), (1, 1), (40, 290), "float16"), 64, "A0 is not aligned to 128 bytes"),
    ],
)
def test_what_vectors_cannot_do(move: Pattern, vector: int, why: str) -> None:
    found = read_move(block_of(move.tensors()))
    assert found is not None
    reason = why_not(found, vector)
    assert why in reason
    assert bool(why) == bool(reason)


@pytest.mark.parametrize(
    ("dtype", "to", "most", "vector"),
    [("float16", None, 16, 8), ("float16", "float32", 16, 4), ("float64", "int8", 8, 1)],
)
def test_the_wider_type_fills_a_vector(dtype: str, to: str | None, most: int, vector: int) -> None:
    found = read_move(block_of(sliced((44, 100), (1, 1), (40, 90), dtype, to).tensors()))
    assert found is not None
    assert vector_of(found, most) == vector


@pytest.mark.parametrize("rest", range(16))
def test_pieces_fill_a_rest_at_multiples_of_their_size(rest: int) -> None:
    parts = pieces(rest)
    assert [first for first, _ in parts] == [
        sum(n for _, n in parts[:k]) for k in range(len(parts))
    ]
    assert sum(count for _, count in parts) == rest
    assert all(first % count == 0 for first, count in parts)
