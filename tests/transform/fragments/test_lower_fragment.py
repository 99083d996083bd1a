"""Register tiles: structure of the lowered code, and results, races and conflicts simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import event, given
from hypothesis import strategies as st
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.conversions import program, versioned_tiles
from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed
from tests.programs.running import gives
from tests.programs.strategies import splits
from tvm_layout_ext import decisions
from tvm_layout_ext import layout as L
from tvm_layout_ext._compat import pass_name
from tvm_layout_ext.errors import LayoutError, ScheduleError
from tvm_layout_ext.pipeline import lowering_passes
from tvm_layout_ext.simulate import Report, simulate

ROWS = L.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
#: The same elements in the same threads, in other registers.
RENAMED = L.DistributedLinearLayout(
    [[32, 0], [0, 1], [16, 0], [0, 2], [0, 32]],
    [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]],
    [[4, 0], [8, 0]],
    [],
    [64, 64],
)
#: Each warp keeps its elements.
LANES_TURNED = L.BlockedLayout([1, 4], [4, 8], [4, 1], [0, 1])
PAIRS = L.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
COLUMNS = L.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])
OTHER_ROWS = L.BlockedLayout([1, 8], [8, 4], [2, 2], [1, 0])
ACCUMULATOR = L.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
OPERAND = L.DotOperandLayout(0, ACCUMULATOR, 2)


@pytest.fixture(autouse=True, scope="module")
def _conversions_as_written() -> Iterator[None]:
    """Of conversions that could be left out, too, LowerFragment's code is wanted here."""
    with tvm.transform.PassContext(disabled_pass=["tvm_layout_ext.CombineLayoutConversions"]):
        yield


def copy_through(
    layouts: Sequence[Any],
    shape: tuple[int, int] = (64, 64),
    grid: tuple[int, int] = (2, 2),
    dtype: str = "float32",
) -> s_tir.Schedule:
    """A copy by blocks, through one fragment of each layout in turn."""
    sch = computed((shape[0] * grid[0], shape[1] * grid[1]), lambda a, i, j: a[i, j], dtype)
    block = sch.get_sblock("B")
    i, j = sch.get_loops(block)
    rows, i = sch.split(i, [grid[0], None])
    columns, j = sch.split(j, [grid[1], None])
    sch.reorder(rows, columns, i, j)
    sch.bind(rows, "blockIdx.y")
    sch.bind(columns, "blockIdx.x")
    for layout in reversed(layouts):
        block = sch.cache_read(block, 0, "local")
        sch.compute_at(block, columns)
        sch.set_fragment_layout(block, 0, layout)
    return sch


def numbers(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Distinct where the type allows."""
    return np.random.default_rng(0).permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


def checked(sch: s_tir.Schedule) -> tuple[Report, str]:
    """Simulate a copy, and say what the last conversion was."""
    parameter = sch.mod["main"].params[0]
    value = numbers([int(n) for n in parameter.shape], str(parameter.dtype))
    with decisions.collect() as made:
        report = gives(sch, value, None, B=value)
    assert not report.redundant
    return report, next((d.text for d in made if d.maker == "LowerFragment"), "")


def lowered_fragments(sch: s_tir.Schedule | tvm.IRModule) -> str:
    """Script right after the pass."""
    mod = sch if isinstance(sch, tvm.IRModule) else sch.mod
    first, _ = lowering_passes()
    for one in first:
        mod = one(mod)
        if pass_name(one) == "tvm_layout_ext.LowerFragment":
            break
    return str(mod["main"].script())


def widths(report: Report, scope: str) -> set[int]:
    return {access.vector_bytes for access in report.accesses if access.scope == scope}


# One layout


def test_a_tile_becomes_the_registers_of_its_threads() -> None:
    script = lowered_fragments(copy_through([ROWS]))
    assert 'T.thread_binding(128, thread="threadIdx.x")' in script
    assert 'A_local = T.sblock_alloc_buffer((32,), scope="local")' in script
    assert "for r in T.unroll(8):" in script
    assert "for v in T.vectorized(4):" in script
    assert "layout_ext.fragment" not in script
    index = (
        "A[blockIdx_y * 64 + r // 2 * 16 + threadIdx_x // 8, "
        "blockIdx_x * 64 + r % 2 * 32 + threadIdx_x % 8 * 4 + v]"
    )
    assert f"A_local[r * 4 + v] = {index}" in script


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("layout", [ROWS, COLUMNS, ACCUMULATOR, OPERAND, RENAMED])
def test_a_copy_through_one_fragment(layout: L.Layout, dtype: str) -> None:
    report, _ = checked(copy_through([layout], dtype=dtype))
    assert (report.barriers, report.shared_bytes) == (0, 0)
    assert report.sectors >= report.ideal_sectors


@pytest.mark.parametrize(
    ("layout", "elements"), [(ROWS, 4), (OTHER_ROWS, 8), (ACCUMULATOR, 2), (COLUMNS, 1)]
)
def test_vectors_are_as_wide_as_the_run_of_registers(layout: L.Layout, elements: int) -> None:
    report, _ = checked(copy_through([layout], dtype="float16"))
    assert widths(report, "global") == {2 * elements}


def test_a_ragged_tile_touches_nothing_outside() -> None:
    sch = computed((100, 100), lambda a, i, j: a[i, j] * 2.0)
    block = sch.get_sblock("B")
    i, j = sch.get_loops(block)
    rows, i = sch.split(i, [None, 64])
    columns, j = sch.split(j, [None, 64])
    sch.reorder(rows, columns, i, j)
    sch.bind(rows, "blockIdx.x")
    tile = sch.cache_read(block, 0, "local")
    sch.compute_at(tile, columns)
    sch.set_fragment_layout(tile, 0, ROWS)
    value = numbers((100, 100), "float32")
    report = gives(sch, value, None, B=value * 2)
    assert widths(report, "global") == {16}


def test_threads_that_the_kernel_has_are_used() -> None:
    sch = copy_through([ROWS])
    staged = sch.cache_read(sch.get_sblock("A_local"), 0, "shared")
    sch.compute_at(staged, sch.get_loops(sch.get_sblock("A_local"))[1])
    fused = sch.fuse(*sch.get_loops(staged)[2:])
    _, y, x = sch.split(fused, [None, 4, 32])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    report, _ = checked(sch)
    assert report.barriers == 4


def test_copies_of_an_element_are_stored_once() -> None:
    layout = L.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])
    report, _ = checked(copy_through([layout], shape=(2, 4)))
    assert sum(a.requests for a in report.accesses if a.kind == "store") == 4
    script = lowered_fragments(copy_through([layout], shape=(2, 4)))
    assert "if threadIdx_x & 116 == 0:" in script


def test_a_split_and_fused_walk_over_the_tile_is_understood() -> None:
    sch = copy_through([ROWS])
    i, j = sch.get_loops(sch.get_sblock("A_local"))[-2:]
    sch.split(sch.fuse(i, j), [8, 4, None])
    sch.reorder(*reversed(sch.get_loops(sch.get_sblock("A_local"))[2:]))
    report, _ = checked(sch)
    assert widths(report, "global") == {16}


def read_at(row: int, step: int, first: int) -> s_tir.Schedule:
    """A 64x64 tile of every ``step``-th column, from ``first`` on, of an array of wider rows."""
    sch = computed((64, row), lambda a, i, j: a[i, j * step + first], out=(64, 64))
    block = sch.get_sblock("B")
    sch.cache_write(block, 0, "local")
    sch.set_fragment_layout(block, 0, ROWS)
    return sch


@pytest.mark.parametrize(
    ("row", "step", "first", "width"),
    [(64, 1, 0, 16), (68, 1, 4, 16), (66, 1, 2, 8), (68, 1, 1, 4), (65, 1, 0, 4), (128, 2, 0, 4)],
)
def test_vectors_start_at_multiples_of_their_length(
    row: int, step: int, first: int, width: int
) -> None:
    value = numbers((64, row), "float32")
    report = gives(
        read_at(row, step, first), value, None, B=value[:, first : first + 64 * step : step]
    )
    loads = {access.vector_bytes for access in report.accesses if access.kind == "load"}
    stores = {access.vector_bytes for access in report.accesses if access.kind == "store"}
    assert (loads, stores) == ({width}, {16})


# Conversions


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_register_moves(dtype: str) -> None:
    report, how = checked(copy_through([ROWS, RENAMED], dtype=dtype))
    assert how.startswith("register moves")
    assert (report.barriers, report.shared_bytes) == (0, 0)
    assert "__shfl" not in cuda_text(copy_through([ROWS, RENAMED], dtype=dtype).mod)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("layouts", [(ROWS, LANES_TURNED), (ROWS, PAIRS), (PAIRS, ROWS)])
def test_warp_shuffles(layouts: tuple[L.Layout, L.Layout], dtype: str) -> None:
    report, how = checked(copy_through(layouts, dtype=dtype))
    assert how.startswith("32 warp shuffles")
    assert (report.barriers, report.shared_bytes) == (0, 0)


def test_a_shuffle_by_a_constant_distance_is_an_xor() -> None:
    swapped = L.DistributedLinearLayout(
        [[0, 1]], [[0, 2], [0, 4], [1, 4], [2, 0], [4, 0]], [], [], [8, 8]
    )
    straight = L.BlockedLayout([1, 2], [8, 4], [1, 1], [1, 0])
    halves = L.DistributedLinearLayout(
        [[1, 0]], [[0, 2], [0, 4], [0, 1], [2, 0], [4, 0]], [], [], [8, 8]
    )
    _, how = checked(copy_through([straight, halves], shape=(8, 8)))
    assert how.startswith("2 warp shuffles")
    source = cuda_text(copy_through([straight, halves], shape=(8, 8)).mod)
    assert source.count("__shfl_xor_sync(") == 1
    assert checked(copy_through([straight, swapped], shape=(8, 8)))


PARTNERS = [COLUMNS, OTHER_ROWS, ACCUMULATOR, OPERAND]


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("other", PARTNERS)
def test_round_trips_without_conflicts(other: L.Layout, dtype: str) -> None:
    for layouts in ([ROWS, other], [other, ROWS]):
        report, how = checked(copy_through(layouts, dtype=dtype))
        assert "round trips" in how
        assert report.bank_conflicts == 0
        rounds = int(how.split()[0])
        assert report.barriers == 4 * (2 * rounds - 1)
        bits = int(dtype[-2:].strip("t"))
        pair = [layout.to_linear([64, 64]) for layout in layouts]
        assert report.shared_bytes == L.scratch_bytes(*pair, bits)


def test_a_large_tile_goes_through_dynamic_shared_memory() -> None:
    layouts = [
        L.BlockedLayout([1, 1], [1, 32], [8, 4], [1, 0]),
        L.BlockedLayout([1, 1], [32, 1], [4, 8], [0, 1]),
    ]
    report, how = checked(copy_through(layouts, shape=(128, 128), grid=(1, 1)))
    assert "65,536 bytes" in how
    assert {access.scope for access in report.accesses} == {"global", "shared.dyn"}
    assert report.bank_conflicts == 0


def test_rounds_are_the_same_for_all_threads() -> None:
    """Lanes that hold sums led to the other round's elements, and half of them came out wrong."""
    sums = L.DistributedLinearLayout(
        [[16, 0], [0, 16], [32, 0], [0, 38], [2, 0], [44, 0]],
        [[8, 0], [0, 32], [33, 1], [0, 1], [0, 34]],
        [[0, 8]],
        [],
        [64, 64],
    )
    copies = L.DistributedLinearLayout(
        [[16, 0], [0, 32], [0, 2], [4, 2], [24, 0], [0, 4], [0, 16], [0, 8]],
        [[32, 0], [0, 0], [0, 0], [0, 17], [1, 0]],
        [[2, 0]],
        [],
        [64, 64],
    )
    for layouts in ([sums, copies], [copies, sums]):
        _, how = checked(copy_through(layouts, grid=(1, 1), dtype="float64"))
        assert "round trips" in how


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_conversion_in_a_loop_waits_for_the_last_one(stages: int) -> None:
    """Tiles come through shared memory with several versions, then change their layout."""
    sch = versioned_tiles((COLUMNS, ROWS), stages, rows=128)
    report, how = checked(sch)
    assert "round trips" in how
    # With one version TVM gives both tiles the same memory, under the first one's name.
    scratch = [a for a in report.accesses if a.buffer.endswith("_scratch")]
    assert {a.kind for a in scratch} == ({"load", "store"} if stages > 1 else set())
    assert sum(a.bank_conflicts for a in scratch) == 0


SQUARE = {"A": ((64, 64), "float32"), "B": ((64, 64), "float32")}
TRANSPOSED = ["F[vi, vj] = A[vi, vj]", "G[vj, vi] = F[vi, vj]", "B[vi, vj] = G[vi, vj]"]


def tiles(statements: Sequence[str], tensors: Any = SQUARE, **layouts: Any) -> tvm.IRModule:
    """A program over tiles of 64x64; a kernel of one block needs no loop over blocks."""
    buffers = {name: ((64, 64), "float32", layout) for name, layout in layouts.items()}
    return program(tensors, buffers, statements)


def test_a_transpose_of_registers_is_a_conversion() -> None:
    value = numbers((64, 64), "float32")
    for second, way in [(ROWS, "round trips"), (COLUMNS, "register moves")]:
        with decisions.collect() as made:
            report = gives(tiles(TRANSPOSED, F=ROWS, G=second), value, None, B=value.T)
        assert (report.bank_conflicts, report.hazards) == (0, [])
        assert any(way in d.text for d in made)


LINE = L.BlockedLayout([1], [32], [4], [0])


@pytest.mark.parametrize("parent", [ROWS, COLUMNS, ACCUMULATOR])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_vector_in_a_slice_of_the_tile(parent: L.Layout, dim: int) -> None:
    line = ((64,), "float32")
    mod = program(
        {**SQUARE, "s": line},
        {
            "F": ((64, 64), "float32", parent),
            "loaded": (*line, LINE),
            "scale": (*line, L.SliceLayout(dim, parent)),
        },
        ["F[vi, vj] = A[vi, vj]", "loaded[vi] = s[vi]", "scale[vi] = loaded[vi]",
         "B[vi, vj] = F[vi, vj] * scale[vi]"],
    )  # fmt: skip
    a, s = numbers((64, 64), "float32"), numbers((64,), "float32")
    if dim == 0:
        with pytest.raises(ScheduleError, match="other threads hold"):
            tlx.lower(mod)
        return
    report = gives(mod, a, None, s, B=a * s[:, None])
    assert (report.bank_conflicts, report.hazards, report.redundant) == (0, [], [])


def test_loops_that_walk_over_no_tile_stay_around() -> None:
    layout = L.BlockedLayout([1, 4], [4, 8], [2, 1], [1, 0])
    shapes = {"A": (32, 16), "B": (16, 32), "C": (32, 32)}
    mod = program(
        {name: (shape, "float32") for name, shape in shapes.items()},
        {"F": ((32, 32), "float32", layout)},
        ["F[vi, vj] = T.float32(0)", "F[vi, vj] over 16 = F[vi, vj] + A[vi, vk] * B[vk, vj]",
         "C[vi, vj] = F[vi, vj]"],
    )  # fmt: skip
    a, b = numbers((32, 16), "float32"), numbers((16, 32), "float32")
    report = simulate(mod, a, b, None)
    np.testing.assert_allclose(report.outputs["C"], a @ b, rtol=1e-6)
    assert not report.hazards


@st.composite
def blocked(draw: st.DrawFn, warps: int) -> L.BlockedLayout:
    return L.BlockedLayout(
        draw(splits(2 ** draw(st.integers(0, 4)), 2)),
        draw(splits(32, 2)),
        draw(splits(warps, 2)),
        list(draw(st.permutations(range(2)))),
    )


@given(st.data())
def test_any_two_blocked_layouts(data: st.DataObject) -> None:
    warps = 2 ** data.draw(st.integers(0, 3))
    shape = data.draw(st.tuples(*[st.sampled_from([8, 16, 32, 64])] * 2))
    dtype = data.draw(st.sampled_from(["int8", "float16", "float32", "float64"]))
    layouts = [data.draw(blocked(warps)) for _ in range(2)]
    src, dst = (layout.to_linear(shape) for layout in layouts)
    needed = L.movement(src, dst)
    event(needed.value)
    report, _ = checked(copy_through(layouts, shape, (1, 1), dtype))
    assert (report.shared_bytes > 0) == (needed is L.Movement.SHARED)
    assert (report.barriers > 0) == (needed is L.Movement.SHARED)
    shared = [access for access in report.accesses if access.scope == "shared"]
    for access in shared:
        phases = max(1, access.vector_bytes * 32 // 128)
        assert access.wavefronts <= access.requests * phases
    # Lanes that read copies could share a wavefront, which no swizzle aims at.
    if all(src.flat_basis("lane")) and all(dst.flat_basis("lane")):
        assert report.bank_conflicts == 0


# Refusals


def refused(mod: Any, match: str) -> None:
    mod = mod.mod if isinstance(mod, s_tir.Schedule) else mod
    before = str(mod)
    with pytest.raises((LayoutError, ScheduleError), match=match) as error:
        tlx.lower(mod)
    assert str(error.value).endswith(".")
    assert str(mod) == before


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("Blocked([1, 4], [4, 8], [4, 1]", "not of the form"),
        ("Blocked([1], [32], [4], [0])", "lays out 1 dims"),
        ("SwizzledShared(8, 1, 8, [1, 0])", "no distributed layout"),
        (L.DistributedLinearLayout([], [[1], [2], [4], [8], [16]], [], [], [32]), r"shape \[32\]"),
        (
            L.BlockedLayout(
                [1, 4], [4, 8], [4, 1], [1, 0],
                ctas_per_cga=[2, 1], cta_split_num=[2, 1], cta_order=[1, 0],
            ),
            "over 2 blocks of a cluster",
        ),
        (
            L.DistributedLinearLayout(
                [[0, 1], [0, 1], [0, 2], [0, 32], [16, 0], [32, 0]],
                RENAMED.lane_bases, RENAMED.warp_bases, [], [64, 64],
            ),
            "several registers of one thread",
        ),
    ],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_refused(layout: Any, message: str) -> None:
    refused(tiles(TRANSPOSED, F=layout, G=ROWS), f"(?s)Fragment F.*{message}")


def test_other_numbers_of_warps_are_refused() -> None:
    eight = L.BlockedLayout([1, 4], [4, 8], [8, 1], [1, 0])
    refused(tiles(TRANSPOSED, F=ROWS, G=eight), "F and G are laid out over 4 and 8 warps")
    sch = copy_through([eight])
    block = sch.get_sblock("A_local")
    staged = sch.cache_read(block, 0, "shared")
    sch.compute_at(staged, sch.get_loops(block)[1])
    _, x = sch.split(sch.fuse(*sch.get_loops(staged)[2:]), [None, 128])
    sch.bind(x, "threadIdx.x")
    refused(sch, r"8 warps \(256 threads\), but block A_local runs on 128")


def test_a_tile_of_another_size_than_a_power_of_two_is_refused() -> None:
    refused(copy_through([ROWS], shape=(48, 64)), "48, which is no power of two")


def test_names_that_fit_no_buffer_are_refused() -> None:
    func = tiles(TRANSPOSED, F=ROWS, G=ROWS)["main"]
    for pairs, message in (
        ([["F", str(ROWS)], ["H", str(ROWS)]], "no buffer H on the chip.*F, G"),
        (["F", str(ROWS), "G"], "each followed by a layout"),
    ):
        odd = func.with_attr("layout_ext.fragment", pairs)
        refused(tvm.IRModule({"main": odd}), message)


def test_a_store_that_every_thread_would_repeat_is_refused() -> None:
    sch = copy_through([ROWS])
    staged = sch.cache_read(sch.get_sblock("A_local"), 0, "shared")
    sch.compute_at(staged, sch.get_loops(sch.get_sblock("A_local"))[1])
    refused(sch, "Every thread of the kernel would write A_shared; bind the loops")


LOAD, STORE = "F[vi, vj] = A[vi, vj]", "B[vi, vj] = F[vi, vj]"
CONVERTED = "B[vi, vj] = G[vi, vj]"
REFUSED = {
    "the ends of a tile": (
        ["F: for r in range(128) at r // 2, r % 2 * 63 = A[vi, vj]", STORE],
        "Block F_0 accesses fragment F at .* 64x64 elements once",
    ),
    "a part of a tile": (
        [LOAD, "F: for r in range(2048) at r // 32, r % 32 * 2 = A[vi, vj]", STORE],
        "Block F_1 accesses fragment F at .* 64x64 elements once",
    ),
    "elements of other threads": (
        [LOAD, "G[vi, vj] = F[vi, (vj + 1) % 64]", CONVERTED],
        "Block G_1 combines fragment G with elements of F",
    ),
    "one place for many elements": (
        [LOAD, "B[vi, 0] = B[vi, 0] + F[vi, vj]"],
        "Block B_1 writes B at .* a place of its own",
    ),
    "elements that depend on each other": (
        [LOAD, "F[vi, vj] = F[vj, vi]", STORE],
        "Block F_1 reads F at .* in no order",
    ),
    "a pointer": (
        [LOAD, "B[vi, vj] = T.call_extern('float32', 'use', T.address_of(F[vi, vj]))"],
        "Fragment F is accessed through tirx.address_of",
    ),
    "a branch of some threads": (
        ["for t in T.thread_binding(128, thread='threadIdx.x'):", f"    {LOAD}", "    if t < 64:",
         "        G[vi, vj] = F[vi, vj]", f"    {CONVERTED}"],
        "Block G_3 converts a fragment under",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_nests_that_cannot_be_spread_are_refused(what: str) -> None:
    statements, message = REFUSED[what]
    second = COLUMNS if what.startswith("a branch") else ROWS
    layouts = {"F": ROWS, "G": second} if any("G[" in one for one in statements) else {"F": ROWS}
    refused(tiles(statements, **layouts), message)


def test_a_buffer_outside_of_registers_is_refused() -> None:
    sch = copy_through([])
    staged = sch.cache_read(sch.get_sblock("B"), 0, "shared")
    sch.compute_at(staged, sch.get_loops(sch.get_sblock("B"))[0])
    sch.annotate(staged, "layout_ext.fragment", ["A_shared", str(ROWS)])
    refused(sch, "Buffer A_shared is in shared memory; only a local buffer")
