"""Blocks that read one buffer in several orders: each is staged as if it were a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.programs.coalesced import nests
from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.ir.annotations import COALESCE
from tvm_layout_ext.simulate.report import Report
from tvm_layout_ext.transform import AutoCoalesce

SYMMETRISED = [(0, (0, 1)), (0, (1, 0))]


@dataclass(frozen=True)
class Sum:
    """The sum of reads of some buffers, each in an order of the store's indices.

    Attributes
    ----------
    shape : tuple of int
        Of the result; dims that an order swaps are equally long.
    dtype : str
    reads : sequence of (int, tuple of int)
        Which buffer, and which index of the store each of its dims has.
    """

    shape: tuple[int, ...]
    dtype: str
    reads: Sequence[tuple[int, tuple[int, ...]]]

    def shape_of(self, buffer: int) -> tuple[int, ...]:
        order = next(order for own, order in self.reads if own == buffer)
        return tuple(self.shape[dim] for dim in order)

    def schedule(self, shape: Sequence[Any] | None = None) -> Any:
        sizes = list(shape or self.shape)
        buffers = sorted({buffer for buffer, _ in self.reads})
        held = {
            b: te.placeholder(
                [sizes[d] for d in next(o for own, o in self.reads if own == b)],
                self.dtype,
                f"A{b}",
            )
            for b in buffers
        }

        def body(*at: Any) -> Any:
            first, *rest = (held[b][tuple(at[d] for d in order)] for b, order in self.reads)
            for one in rest:
                first = first + one
            return first

        out = te.compute(sizes, body, "B")
        return s_tir.Schedule(te.create_prim_func([*held.values(), out]))

    def values(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        found = sorted({buffer for buffer, _ in self.reads})
        return [rng.integers(-20, 20, self.shape_of(b)).astype(self.dtype) for b in found]

    def expected(self, values: Sequence[np.ndarray]) -> np.ndarray:
        held = dict(zip(sorted({b for b, _ in self.reads}), values, strict=True))
        parts = [held[b].transpose(np.argsort(order)) for b, order in self.reads]
        return np.sum(parts, axis=0, dtype=self.dtype)


def run(sch: Any, case: Sum) -> Report:
    values = case.values()
    report = gives(sch, *values, None, B=case.expected(values))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    return report


def least(case: Sum) -> range:
    """Sectors of all accesses, each moving each of its sectors once.

    What a thread has loaded for a tile nvcc does not load again for another read.
    """
    size = -(-int(np.prod(case.shape)) * np.dtype(case.dtype).itemsize // 32)
    buffers = {buffer for buffer, _ in case.reads}
    return range((len(buffers) + 1) * size, (len(set(case.reads)) + 1) * size + 1)


WHOLE = [
    *[Sum((n, n), t, SYMMETRISED) for n in (32, 64, 128) for t in ("int8", "float16", "float32")],
    *[Sum((n, n), "float64", SYMMETRISED) for n in (32, 64)],
    *[Sum((32,) * 3, t, [(0, p), (0, (0, 1, 2))]) for p in [(2, 1, 0), (0, 2, 1)]
      for t in ("int8", "float16", "float32", "float64")],
    *[Sum((32,) * 3, t, [(0, (0, 1, 2)), (0, (2, 1, 0)), (0, (1, 2, 0))])
      for t in ("int8", "float32")],
    *[Sum((4, 4, 32, 32), t, [(0, (0, 1, 2, 3)), (0, (1, 0, 3, 2))])
      for t in ("int8", "float16", "float32", "float64")],
    *[Sum((64, 64), t, [(0, (0, 1)), (1, (1, 0)), (0, (1, 0))]) for t in ("float16", "float32")],
    Sum((64, 64), "float32", [(0, (0, 1)), (1, (1, 0))]),
    *[Sum((64, 64), t, [(1, (0, 1)), (1, (1, 0)), (0, (1, 0)), (0, (0, 1))])
      for t in ("int8", "float64")],
]  # fmt: skip


def name_of(case: Sum) -> str:
    reads = "_".join(f"{b}{''.join(map(str, order))}" for b, order in case.reads)
    return f"{'x'.join(map(str, case.shape))}-{case.dtype}-{reads}"


@pytest.mark.matrix
@pytest.mark.parametrize("case", WHOLE, ids=name_of)
def test_each_read_of_whole_rows_moves_every_sector_once(case: Sum) -> None:
    sch = case.schedule()
    outcome = sch.auto_coalesce("B")
    assert outcome.path == "staged"
    report = run(sch, case)
    assert report.sectors in least(case)
    # What was counted beforehand is what is moved.
    assert all(traffic.waste == 1 for traffic in outcome.after)


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_one_function_symmetrises_every_size(dtype: str) -> None:
    n = te.var("n")
    sch = Sum((1, 1), dtype, SYMMETRISED).schedule((n, n))
    assert sch.auto_coalesce("B").path == "staged"
    lowered = tlx.device_program(sch)
    for size in (1, 33):
        run(lowered, Sum((size, size), dtype, SYMMETRISED))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_symbolic_batch_is_symmetrised(dtype: str) -> None:
    reads = [(0, (0, 1, 2)), (0, (0, 2, 1))]
    sch = Sum((1, 1, 1), dtype, reads).schedule((te.var("n"), 32, 32))
    assert sch.auto_coalesce("B").path == "staged"
    lowered = tlx.device_program(sch)
    for batch in (1, 3):
        case = Sum((batch, 32, 32), dtype, reads)
        assert run(lowered, case).sectors in least(case)


def test_rows_of_doubles_that_start_anywhere_are_staged() -> None:
    # 8 + 32 + 8 sectors for 32 iterations, and 3 times 9.1 staged.
    case = Sum((130, 130), "float64", SYMMETRISED)
    sch = case.schedule()
    assert sch.auto_coalesce("B").path == "staged"
    run(sch, case)


#: Programs with the paths of their blocks, what they make of random numbers, and their sectors in
#: units of the result's.
PROGRAMS = {
    "three operands, two of one buffer": (
        "A 64x64, C 64x64, B 64x64",
        ["B staged: i 64, j 64: B[vi, vj] = A[vi, vj] * C[vj, vi] + A[vj, vi]"],
        lambda a, c: a * c.T + a.T,
        3,
    ),
    "one order at two places": (
        "A 65x64, B 64x64",
        ["B staged: i 64, j 64: B[vi, vj] = A[vj, vi] + A[vj + 1, vi]"],
        lambda a: a[:64].T + a[1:].T,
        3,
    ),
    "two blocks": (
        "A 64x64, C 64x64, B 64x64",
        [
            "C direct: i 64, j 64: C[vi, vj] = A[vi, vj] + A[vi, vj]",
            "B staged: i 64, j 64: B[vi, vj] = C[vi, vj] + C[vj, vi]",
        ],
        lambda a, c: 2 * (a + a.T),
        4,
    ),
    "rows with gaps": (
        "A 64x64 float32 strides=(72,1), B 64x64",
        ["B staged: i 64, j 64: B[vi, vj] = A[vi, vj] + A[vj, vi]"],
        lambda a: a + a.T,
        2,
    ),
    "a gather keeps the buffer": (
        "A 64x64, K 64 int32, B 64x64",
        ["B staged: i 64, j 64: B[vi, vj] = A[K[vi], vj] + A[vj, vi]"],
        lambda a, k: a[k] + a.T,
        None,
    ),
    "listed reads, 64-bit indices": (
        "A T.int64(64)xT.int64(64), A_1 T.int64(64)xT.int64(64), B T.int64(64)xT.int64(64)",
        [
            "twice direct: i T.int64(64), j T.int64(64): A_1[vi, vj] = A[vi, vj] * T.float32(2)",
            "B staged: i T.int64(64), j T.int64(64): T.reads(A[vi, vj], A[vj, vi], A_1[vj, vi]); "
            "T.writes(B[vi, vj]); "
            "B[vi, vj] = T.if_then_else(vi < vj, A[vi, vj], A[vj, vi]) + A_1[vj, vi]",
        ],
        lambda a, c: np.triu(a, 1) + np.triu(a, 1).T + np.diag(a.diagonal()) + 2 * a.T,
        None,
    ),
}


def values_of(buffer: str) -> np.ndarray:
    """Random numbers for a buffer, or a permutation where it has one dim."""
    text = buffer.split()[1].replace("T.int64(", "").replace(")", "")
    rows, *columns = map(int, text.split("x"))
    rng = np.random.default_rng(0)
    if not columns:
        return rng.permutation(rows).astype("int32")
    whole = rng.integers(-9, 9, (rows, 72)).astype("float32")[:, : columns[0]]
    return whole if "strides" in buffer else whole.copy()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_several_reads(name: str) -> None:
    buffers, blocks, wanted, units = PROGRAMS[name]
    texts = [text.split(" ", 1) for text in blocks]
    paths = {block: rest.partition(":")[0] for block, rest in texts}
    sch = s_tir.Schedule(nests(buffers, *(f"{b}:{rest.partition(':')[2]}" for b, rest in texts)))
    assert {block: sch.auto_coalesce(block).path for block in paths} == paths
    values = [values_of(one) for one in buffers.split(", ")[:-1]]
    report = gives(sch, *values, None, B=wanted(*values))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    if units is not None:
        assert report.sectors == units * 64 * 64 * 4 // 32


def symmetrising() -> Any:
    return Sum((64, 64), "float32", SYMMETRISED).schedule()


def test_the_schedule_marks_the_block_and_lowering_parts_its_reads() -> None:
    sch = symmetrising()
    before = str(sch.mod["main"].body.block.body)
    outcome = sch.auto_coalesce("B", num_threads=128)
    assert outcome.report.startswith("when the program is lowered, staged, tile 64x64, 128 threads")
    block = sch.get(sch.get_sblock("B"))
    assert [str(x) for x in block.annotations[COALESCE]] == ["128", "16", "auto"]
    # Nothing but the mark has changed.
    sch.unannotate(sch.get_sblock("B"), COALESCE)
    assert str(sch.mod["main"].body.block.body) == before


def test_after_lowering_one_read_goes_through_a_tile_and_the_other_does_not() -> None:
    sch = symmetrising()
    sch.auto_coalesce("B")
    after = s_tir.Schedule(AutoCoalesce()(sch.mod))
    root = after.mod["main"].body.block
    scopes = {str(b.name): str(b.scope()) for b in root.alloc_buffers}
    assert sorted(scopes.values()) == ["local", "local", "local", "shared"]
    (tile,) = (name for name, scope in scopes.items() if scope == "shared")
    shared = after.get(after.get_sblock(tile))
    # The tile is filled from A itself by way of registers, along its rows; no copy of A is left.
    (held,) = (str(region.source.name) for region in shared.reads)
    loaded = after.get(after.get_sblock(held))
    assert scopes[held] == "local"
    assert [str(region.source.name) for region in loaded.reads] == ["A0"]
    for copy in (shared, loaded):
        assert str(copy.body.value.indices[1]) == str(copy.body.indices[1])
    own = after.get(after.get_sblock("B"))
    read = {str(region.source.name) for region in own.reads}
    assert tile in read
    assert len(read) == 2


def test_asking_again_replaces_what_was_asked_before() -> None:
    sch = symmetrising()
    sch.auto_coalesce("B")
    assert sch.auto_coalesce("B", stage="none").path == "direct"
    assert COALESCE not in sch.get(sch.get_sblock("B")).annotations
    run(sch, Sum((64, 64), "float32", SYMMETRISED))


def test_on_the_face_of_te() -> None:
    a = te.placeholder((96, 96), "float16", "A")
    b = te.compute((96, 96), lambda i, j: a[i, j] + a[j, i], "B")
    s = tlx.te.create_schedule(b.op)
    s[b].auto_coalesce()
    x = np.random.default_rng(0).integers(-9, 9, (96, 96)).astype("float16")
    report = gives(tlx.lower(s, [a, b]), x, None, B=x + x.T)
    assert (report.bank_conflicts, report.hazards) == (0, [])
    assert report.sectors == 3 * x.nbytes // 32


row_of_strided = nests(
    "A 64x64 float32 strides=(72,1), B 64x64",
    "B: i 64, j 64: B[vi, vj] = A[vj, vi] + A[0, vj]",
)


def test_a_row_of_a_buffer_with_strides_leaves_the_block_direct_and_says_why() -> None:
    sch = s_tir.Schedule(row_of_strided)
    outcome = sch.auto_coalesce("B")
    assert outcome.path == "direct"
    assert "strides of A_1 to its tile, which has 1 dims" in outcome.report
    x = np.random.default_rng(0).integers(-9, 9, (64, 72)).astype("float32")[:, :64]
    gives(sch, x, None, B=x[0] + x.T)


in_place = nests("A 64x64", "A: i 64, j 64: A[vi, vj] = A[vi, vj] + A[vj, vi]")


def test_what_writes_the_buffer_that_it_reads_in_two_orders_is_not_parted() -> None:
    sch = s_tir.Schedule(in_place)
    before = str(sch.mod)
    for stage in ("auto", "shared"):
        with pytest.raises(ScheduleError, match="no legal mapping of block A"):
            sch.auto_coalesce("A", stage=stage)
    assert str(sch.mod) == before


gathered_twice = nests(
    "A 64x64 int32, B 64x64 int32", "B: i 64, j 64: B[vi, vj] = A[vi, vj] + A[A[vj, vi], vj]"
)


def test_a_gather_by_the_buffer_itself_is_staged_where_it_is_regular() -> None:
    sch = s_tir.Schedule(gathered_twice)
    assert sch.auto_coalesce("B", stage="shared").path == "staged"
    x = np.random.default_rng(0).integers(0, 64, (64, 64)).astype("int32")
    report = gives(sch, x, None, B=x[x.T, np.arange(64)] + x)
    assert (report.bank_conflicts, report.hazards) == (0, [])


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_two_tiles_of_one_order_are_planned_as_one_is(dtype: str) -> None:
    case = Sum((64, 64), dtype, [(0, (0, 1)), (1, (1, 0)), (0, (1, 0))])
    sch = case.schedule()
    assert sch.auto_coalesce("B", stage="shared").path == "staged"
    assert run(sch, case).sectors in least(case)


def sums() -> st.SearchStrategy[Sum]:
    """Two to four reads of one or two buffers, each in any order, of cubes up to 4,096 elements."""

    @st.composite
    def draw_sum(draw: st.DrawFn) -> Sum:
        rank = draw(st.integers(2, 4))
        sizes = {2: (3, 8, 17, 32, 64), 3: (3, 8, 11, 16), 4: (2, 3, 8)}[rank]
        orders = st.sampled_from(list(permutations(range(rank))))
        reads = draw(st.lists(st.tuples(st.integers(0, 1), orders), min_size=2, max_size=4))
        # Buffers are numbered from 0.
        first = reads[0][0]
        reads = [(0 if buffer == first else 1, order) for buffer, order in reads]
        dtype = draw(st.sampled_from(["int8", "float16", "float32"]))
        return Sum((draw(st.sampled_from(sizes)),) * rank, dtype, reads)

    return draw_sum()


@given(sums(), st.sampled_from(["auto", "shared"]))
def test_any_reads_of_one_or_two_buffers(case: Sum, stage: str) -> None:
    sch = case.schedule()
    try:
        outcome = sch.auto_coalesce("B", stage=stage)
    except ScheduleError:
        # Asked to stage all, there may be more tiles than shared memory.
        assert stage == "shared"
        return
    report = run(sch, case)
    if outcome.path == "staged" and case.shape[-1] * np.dtype(case.dtype).itemsize % 32 == 0:
        again = len(case.reads) - len(set(case.reads))
        assert report.sectors <= (1 + again) * max(least(case))
