"""Moves whose rows lie askew take whole vectors on both sides, or say why not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import s_tir, te

from tests.programs.moves import least
from tests.programs.patterns import Pattern, padded, selected, sliced
from tests.programs.running import gives
from tests.sampling import matrix_examples, pairwise
from tvm_layout_ext.coalesce.propose.shifted import shifted as shifted_map
from tvm_layout_ext.coalesce.request import Request
from tvm_layout_ext.coalesce.subject import Subject
from tvm_layout_ext.simulate.report import Report

DTYPES = ("int8", "float16", "float32", "float64")
TEXT = "shifted into place"


def scheduled(move: Pattern, **options: Any) -> tuple[s_tir.Schedule, Any]:
    sch = s_tir.Schedule(te.create_prim_func(move.tensors()))
    return sch, sch.auto_coalesce("B", **options)


def by_element(move: Pattern) -> s_tir.Schedule:
    sch = s_tir.Schedule(te.create_prim_func(move.tensors()))
    loops = sch.get_loops("B")
    block, thread = sch.split(sch.fuse(*loops) if len(loops) > 1 else loops[0], [None, 128])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch


def checked(move: Pattern, sch: Any) -> Report:
    arrays = move.arrays()
    report = gives(sch, *arrays, None, B=move.expected(*arrays))
    assert report.bank_conflicts == 0
    return report


def counts(report: Report) -> dict[str, tuple[int, int]]:
    found = {}
    for kind in ("load", "store"):
        own = [a for a in report.accesses if a.scope == "global" and a.kind == kind]
        found[kind] = sum(a.requests for a in own), sum(a.sectors for a in own)
    return found


def is_least(report: Report, move: Pattern, vector_bytes: int = 16) -> bool:
    """Whether nothing is asked for twice, or of a pad whose rows share vectors hardly anything.

    A lane then loads the second vector of both rows, which the lane to the right may have, too.
    """
    found, want = counts(report), least(move, vector_bytes)
    requests, sectors = found["load"]
    is_few = requests <= want["load"][0] and sectors <= 1.02 * want["load"][1]
    return found["store"] == want["store"] and is_few


def by_windows(move: Pattern, *index: str, **options: Any) -> s_tir.Schedule:
    """Shift the vectors of a move, whether or not that is the fastest way to take it."""
    sch = s_tir.Schedule(te.create_prim_func(move.tensors(*index)))
    block = sch.get_sblock("B")
    (way,) = shifted_map(Subject.of(sch, block, Request(**options)))
    assert TEXT in way.apply(sch, block)
    return sch


def shifted(move: Pattern, **options: Any) -> Report:
    """Check a move that goes by shifted vectors; return what it took.

    Where the last vector is not whole, its rest may ask for a sector that was asked for before.
    """
    report = checked(move, by_windows(move, **options))
    assert is_least(report, move, options.get("vector_bytes", 16))
    return report


def _moves() -> list[tuple[str, int, int, str, int]]:
    """Kind, rows, columns, type and width of what is added or taken."""
    return pairwise(
        (kind, rows, columns, dtype, width)
        for kind, dtypes in (("pad", DTYPES), ("slice", DTYPES[:3]))
        for rows, columns in ((5, 1000), (3, 4097), (20, 257))
        for dtype in dtypes
        for width in range(1, 10)
    )


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "rows", "columns", "dtype", "width"), _moves())
def test_moves_are_numpys_with_the_fewest_sectors(
    kind: str, rows: int, columns: int, dtype: str, width: int
) -> None:
    if kind == "pad":
        odd = width + (columns + 1) % 2
        move = padded((rows, columns), (width, width), (1, odd), dtype)
    else:
        move = sliced((rows + width, columns + width + 1), (width, width), (rows, columns), dtype)
    report = shifted(move)
    plain = counts(checked(move, by_element(move)))
    for side, (requests, sectors) in counts(report).items():
        assert requests <= plain[side][0]
        assert sectors <= plain[side][1] * 1.02


@pytest.mark.matrix
@pytest.mark.parametrize(
    "move",
    [
        sliced((9, 1003), (1, 1), (7, 1000), "float16", "float32"),
        sliced((9, 1003), (1, 3), (7, 999), "float32", "float16"),
        sliced((9, 4100), (1, 1), (5, 4097), "int8", "int32"),
        padded((9, 1003), (1, 3), (2, 1), "float16", "float32"),
        padded((9, 1003), (1, 3), (2, 1), "float32", "float16"),
        padded((9, 1003), (2, 2), (2, 2), "float32", value=1.5),
        padded((300, 1000), (0, 1), (0, 0), "float16"),
        # A warp starts in the border, in a vector that only the warp before it needs.
        padded((3, 125), (0, 1), (0, 140), "float32"),
        padded((3, 20, 77), (0, 1, 1), (0, 1, 2), "float32"),
        sliced((5, 6, 9, 100), (1, 2, 3, 5), (4, 2, 5, 90), "float16"),
        sliced((5000,), (1,), (4097,), "float16"),
        sliced((4100,), (1,), (4099,), "float16"),
    ],
    ids=lambda move: move.name,
)
def test_casts_ranks_and_values(move: Pattern) -> None:
    shifted(move)


@pytest.mark.parametrize(
    ("vector_bytes", "dtype"), [(8, "float16"), (4, "float16"), (4, "int8"), (8, "float32")]
)
def test_narrower_vectors(vector_bytes: int, dtype: str) -> None:
    shifted(padded((9, 1003), (1, 3), (2, 1), dtype), vector_bytes=vector_bytes)


@pytest.mark.costly
@pytest.mark.parametrize("threads", [32, 64, 256, 1024])
def test_threads_of_a_block(threads: int) -> None:
    sch = by_windows(padded((9, 1003), (1, 3), (2, 1), "float16"), num_threads=threads)
    assert any(int(sch.get(x).extent) == threads for x in sch.get_loops("B"))
    checked(padded((9, 1003), (1, 3), (2, 1), "float16"), sch)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_long_rows_are_taken_so(dtype: str) -> None:
    outcome = scheduled(padded((4000, 8001), (1, 1), (1, 1), dtype))[1]
    assert outcome.path == "shifted"
    assert {traffic.vector_bytes for traffic in outcome.after} == {16}


def test_indices_of_64_bits() -> None:
    move = padded((9, 1003), (1, 3), (2, 1), "float16")
    sch = by_windows(move, "int64")
    assert is_least(checked(move, sch), move)


@settings(max_examples=matrix_examples(150), deadline=None)
@given(st.data())
def test_any_move_is_right(data: Any) -> None:
    rank = data.draw(st.integers(1, 3))
    last = data.draw(st.integers(1, 300))
    shape = (*data.draw(st.tuples(*[st.integers(1, 6)] * (rank - 1))), last)
    widths = st.tuples(*[st.integers(0, 9)] * rank)
    before, after = data.draw(widths), data.draw(widths)
    dtype = data.draw(st.sampled_from(DTYPES))
    to = data.draw(st.sampled_from([None, *DTYPES]))
    if data.draw(st.booleans()):
        move = padded(shape, before, after, dtype, to)
    else:
        source = tuple(n + b + a for n, b, a in zip(shape, before, after, strict=True))
        move = sliced(source, before, shape, dtype, to)
    checked(move, scheduled(move)[0])


@pytest.mark.parametrize(
    "move",
    [
        selected((6, 5, 32), (0, 1), "float16"),
        selected((4, 7, 64), (3, 20), "int8"),
        sliced((5, 6, 70), (1, 2, 3), (4, 3, 64), "int8"),
        sliced((4, 8, 67), (2, 3, 3), (2, 5, 64), "float32"),
        padded((2, 4, 2, 127), (1, 1, 1, 1), (1, 0, 0, 0), "float32"),
    ],
    ids=lambda move: move.name,
)
def test_rows_of_whole_vectors_in_three_dims_are_found_to_follow_each_other(move: Pattern) -> None:
    """TVM takes the vector out of the digit that divides by the rows, not out of the slabs'."""
    checked(move, by_windows(move))


@settings(max_examples=matrix_examples(150), deadline=None)
@given(st.data())
def test_any_small_move_lowers_and_is_numpys(data: Any) -> None:
    rank = data.draw(st.integers(2, 4))
    last = data.draw(st.one_of(st.sampled_from([16, 32, 48, 64, 96]), st.integers(4, 90)))
    shape = (*data.draw(st.tuples(*[st.integers(1, 7)] * (rank - 1))), last)
    widths = st.tuples(*[st.integers(0, 2)] * (rank - 1), st.sampled_from([0, 1, 2, 3, 8]))
    before, after = data.draw(widths), data.draw(widths)
    dtype = data.draw(st.sampled_from(DTYPES))
    kind = data.draw(st.sampled_from(["pad", "slice", "select"]))
    if kind == "pad":
        move = padded(shape, before, after, dtype)
    elif kind == "slice":
        source = tuple(n + b + a for n, b, a in zip(shape, before, after, strict=True))
        move = sliced(source, before, shape, dtype)
    else:
        first = data.draw(st.integers(0, last - 1))
        move = selected(shape, (first, data.draw(st.integers(first + 1, last))), dtype)
    checked(move, scheduled(move)[0])


@pytest.mark.parametrize("columns", [1, 7])
def test_short_rows_stay_as_they_were_and_it_says_so(columns: int) -> None:
    move = sliced((41, columns + 2), (1, 1), (40, columns), "float16")
    sch, outcome = scheduled(move)
    assert outcome.path == "direct"
    assert f"shifted is not possible: rows of {columns} are too short" in outcome.report
    checked(move, sch)


def symbolic() -> Any:
    n = te.var("n")
    a = te.placeholder((n, n), "float16", "A")
    return [a, te.compute((n - 2, n - 2), lambda i, j: a[i + 1, j + 1], "B")]


def narrow() -> Any:
    a = te.placeholder((40, 1003), "int8", "A")
    return [a, te.compute((38, 1001), lambda i, j: a[i + 1, j + 1].astype("float64"), "B")]


def intermediate() -> Any:
    a = te.placeholder((40, 1003), "float16", "A")
    b = te.compute((38, 1001), lambda i, j: a[i + 1, j + 1], "B")
    return [a, te.compute((38, 1001), lambda i, j: b[i, j] * b[i, j], "C")]


def of_another_size() -> Any:
    a = te.placeholder((40, 1003), "float16", "A")
    n = te.var("n", "int32")
    body = lambda i, j: te.if_then_else(i + j < 900, a[i + 1, j + 1], te.const(0, "float16"))  # noqa: E731
    return [a, n, te.compute((38, 1001), body, "B")][::2]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (symbolic, "the shape of A is symbolic"),
        (narrow, "a vector has 2 elements of 1 bytes, not the 4 bytes of a shuffle"),
        (intermediate, "B is no parameter of the function"),
        (of_another_size, "is no bound of its columns"),
    ],
)
def test_what_is_not_possible_says_why(make: Any, reason: str) -> None:
    sch = s_tir.Schedule(te.create_prim_func(make()))
    outcome = sch.auto_coalesce("B")
    assert outcome.path == "direct"
    assert f"shifted is not possible: {reason}" in outcome.report or (
        "shifted is not possible: the condition" in outcome.report and reason in outcome.report
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda a: te.compute((40, 1000), lambda i, j: a[i, j] + a[i, j + 1], "B"),
        lambda a: te.compute((40, 500), lambda i, j: a[i, j * 2 + 1], "B"),
        lambda a: te.compute((40, 1000), lambda i, j: te.exp(a[i, j + 1]), "B"),
    ],
)
def test_blocks_that_are_no_moves_are_not_offered_it(make: Any) -> None:
    a = te.placeholder((40, 1003), "float16", "A")
    outcome = s_tir.Schedule(te.create_prim_func([a, make(a)])).auto_coalesce("B")
    assert outcome.path == "direct"
    assert "shifted" not in outcome.report


def test_aligned_rows_keep_their_plain_vectors() -> None:
    _, outcome = scheduled(sliced((66, 1024), (1, 8), (64, 1000), "float16"))
    assert outcome.path == "direct"
    assert "vector i0*i1 8" in outcome.report or "vector i1 8" in outcome.report
    assert "shifted" not in outcome.report
