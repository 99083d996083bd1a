"""auto_coalesce of ragged tensors up to and above what one block can hold, and the bound there."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.schedule.hanging import bound, components, distinct_sectors, permuted_addresses
from tests.schedule.patterns import Pattern, permuted
from tvm_layout_ext.errors import ScheduleError, TargetError
from tvm_layout_ext.hardware import STATIC_SHARED_BYTES, architecture
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.target import cuda_target

Shape = tuple[int, ...]


def mapped(pattern: Pattern, arch: str | None, stage: str = "auto") -> tuple[s_tir.Schedule, str]:
    """Stage a pattern for a target, or for none, and tell how."""
    sch = s_tir.Schedule(te.create_prim_func(pattern.tensors()))
    if arch is None:
        outcome = sch.auto_coalesce("B", stage=stage)
    else:
        with cuda_target(arch):
            outcome = sch.auto_coalesce("B", stage=stage)
    assert outcome.path == "staged"
    return sch, outcome.text


def moved(pattern: Pattern, sch: s_tir.Schedule) -> int:
    """Run, compare with NumPy, and count sectors."""
    arrays = pattern.arrays(np.random.default_rng(0))
    report = simulate(sch, *arrays, None)
    np.testing.assert_array_equal(report.outputs["B"], pattern.numpy(*arrays))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    return report.sectors


def each_once(shape: Shape, order: Shape, dtype: str) -> int:
    """Sectors of both sides, each counted once."""
    size = np.dtype(dtype).itemsize
    return 2 * distinct_sectors(np.arange(prod(shape)), size)


def bytes_of(shape: Shape, dtype: str) -> int:
    return prod(shape) * np.dtype(dtype).itemsize


#: More than 48 KB, and what the smallest of these architectures gives a block.
LARGE = [
    ((33, 1000), (1, 0), "float16", "sm_89"),
    ((4097, 7), (1, 0), "float16", "sm_86"),
    ((127, 129), (1, 0), "float32", "sm_86"),
    ((300, 300), (1, 0), "int8", "sm_86"),
    ((33, 1000), (1, 0), "float32", "sm_80"),
    ((300, 300), (1, 0), "float16", "sm_90"),
    ((4097, 7), (1, 0), "float64", "sm_90a"),
    ((7, 33, 129), (2, 1, 0), "float32", "sm_80"),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("shape", "order", "dtype", "arch"), LARGE)
def test_dynamic_shared_memory_holds_more_where_the_target_is_known(
    shape: Shape, order: Shape, dtype: str, arch: str
) -> None:
    size = bytes_of(shape, dtype)
    assert STATIC_SHARED_BYTES < size <= architecture(arch).shared_per_block
    pattern = permuted(shape, order, dtype)
    sch, text = mapped(pattern, arch, "whole")
    assert "1024 threads, one block" in text
    assert 'scope="shared.dyn"' in sch.mod.script()
    assert moved(pattern, sch) == each_once(shape, order, dtype)


def test_a_function_says_its_target_itself() -> None:
    pattern = permuted((33, 1000), (1, 0), "float16")
    func = te.create_prim_func(pattern.tensors()).with_attr("target", cuda_target("sm_80"))
    assert "one block" in s_tir.Schedule(func).auto_coalesce("B", stage="whole").text


def test_without_a_target_a_block_has_48_kb() -> None:
    """A schedule does not depend on the machine that it is made on."""
    pattern = permuted((4097, 7), (1, 0), "float16")
    _, text = mapped(pattern, "sm_75", "whole")
    assert "one block" in text
    with pytest.raises(ScheduleError, match=r"57,358 bytes of shared memory .* a block has 49,152"):
        mapped(pattern, None, "whole")


def test_what_another_target_cannot_hold_is_refused_there() -> None:
    sch, _ = mapped(permuted((300, 300), (1, 0), "float16"), "sm_90", "whole")
    with pytest.raises(TargetError, match="a block on sm_89 may have 101,376"):
        tlx.build(sch, target=cuda_target("sm_89"))


def test_the_way_through_dynamic_shared_memory_replays_from_its_trace() -> None:
    func = te.create_prim_func(permuted((33, 1000), (1, 0), "float16").tensors())
    sch = s_tir.Schedule(func)
    with cuda_target("sm_90"):
        sch.auto_coalesce("B", stage="whole")
    assert 'scope="shared.dyn"' in sch.mod.script()
    again = s_tir.Schedule(func)
    s_tir.schedule.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    assert sch.mod.script() == again.mod.script()


def test_many_steps_are_a_loop() -> None:
    """Unrolled, 225 steps on either side would be thousands of lines of index code."""
    few, _ = mapped(permuted((33, 1000), (1, 0), "float16"), "sm_90", "whole")
    many, text = mapped(permuted((300, 300), (1, 0), "float16"), "sm_90", "whole")
    assert "32 lanes in and 16 out" in text
    # The way in has 88 steps, the way out 176.
    assert few.mod.script().count("T.unroll(33)") == 1
    assert "T.unroll(88)" in many.mod.script()
    assert "range(176)" in many.mod.script()


#: Batches and their tails: each slab begins and ends at sectors of both sides.
SLABS = [
    ((64, 33, 7), (0, 2, 1), "float32"),
    ((13, 100, 100), (0, 2, 1), "float32"),
    ((65, 31, 3), (0, 2, 1), "float64"),
    ((41, 31, 50), (0, 2, 1), "float16"),
    ((33, 5, 31), (0, 2, 1), "int8"),
    ((13, 33, 3, 9), (0, 3, 2, 1), "float32"),
    ((65, 9, 5, 50), (0, 3, 2, 1), "float64"),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("shape", "order", "dtype"), SLABS)
def test_slabs_of_whole_sectors_are_moved_by_a_block_each(
    shape: Shape, order: Shape, dtype: str
) -> None:
    pattern = permuted(shape, order, dtype)
    sch, text = mapped(pattern, None, "whole")
    size = np.dtype(dtype).itemsize
    assert max(components(permuted_addresses(shape, order), size, size)) < bytes_of(shape, dtype)
    rows = int(text.removeprefix("tile ").partition("x")[0])
    assert rows < shape[0]
    assert f" threads, {-(-shape[0] // rows)} slabs, a block each, " in text
    assert "one block" not in text
    assert moved(pattern, sch) == each_once(shape, order, dtype)


#: Ragged on both sides, and larger than any block may have.
LARGER = [
    ((300, 300), "int8", "sm_75"),
    ((300, 300), "float16", "sm_89"),
    ((300, 300), "float16", "sm_80"),
    ((7, 4097), "float64", "sm_80"),
    ((300, 300), "float32", "sm_90"),
    ((1000, 257), "int8", "sm_90"),
    ((4099, 31), "float16", "sm_90"),
    ((4097, 35), "float32", "sm_90"),
    ((4097, 10), "float64", "sm_90"),
    ((1001, 300), "int8", "sm_100"),
]


@pytest.mark.matrix
@pytest.mark.parametrize(("shape", "dtype", "arch"), LARGER)
def test_above_the_limit_of_a_block_the_least_of_each_sector_once_is_out_of_reach(
    shape: Shape, dtype: str, arch: str
) -> None:
    """All sectors are one component, and no block holds it at once: ``hanging.bound`` proves it."""
    size, held = np.dtype(dtype).itemsize, architecture(arch).shared_per_block
    source = permuted_addresses(shape, (1, 0))
    whole = components(source, size, size)
    assert whole.tolist() == [bytes_of(shape, dtype)]
    assert whole[0] > held
    least = bound(source, size, size, held)
    assert least == each_once(shape, (1, 0), dtype) - (-whole[0] // held) - 1
    pattern = permuted(shape, (1, 0), dtype)
    sch, _ = mapped(pattern, arch)
    assert moved(pattern, sch) >= least


def test_the_bound_is_what_the_best_of_all_cuts_moves_where_all_can_be_tried() -> None:
    """5 x 9 doubles: every way to give whole rows of one side to two blocks, against the bound."""
    source, size = permuted_addresses((5, 9), (1, 0)), 8
    read, written = source * size // 32, np.arange(45) * size // 32
    least = bound(source, size, size, 45 * size // 2 + size)
    found = []
    for cut in range(1, 1 << 9):
        block = cut >> (np.arange(45) // 5) & 1
        if 0 < block.sum() < 45:
            found.append(sum(len(np.unique(block << 32 | side)) for side in (read, written)))
    assert least == each_once((5, 9), (1, 0), "float64") + 1
    assert min(found) >= least


def test_components_of_what_needs_no_holding_together_are_small() -> None:
    """Rows of whole sectors: strips; a batch: slabs; an aligned copy: single sectors."""
    strips = components(permuted_addresses((1000, 33), (1, 0)), 4, 4)
    assert set(strips.tolist()) == {8 * 33 * 4}
    slabs = components(permuted_addresses((64, 33, 7), (0, 2, 1)), 4, 4)
    assert max(slabs) <= 8 * 33 * 7 * 4
    assert set(components(np.arange(64), 4, 4).tolist()) == {32}


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4097, 33), "float32"), ((33, 4097), "float16"), ((4097, 17), "float64")],
)
def test_one_more_than_whole_sectors_on_both_sides_leaves_skew_bands(
    shape: Shape, dtype: str
) -> None:
    """Sectors of both sides then begin where ``i + j`` is a multiple, so bands of it are apart.

    Such a band fits into a block, and blocks of bands could move each sector once; tiles are boxes,
    so here the bound proves nothing about what they move.
    """
    size = np.dtype(dtype).itemsize
    source = permuted_addresses(shape, (1, 0))
    held = architecture("sm_90").shared_per_block
    assert max(components(source, size, size)) < held < bytes_of(shape, dtype)
    assert bound(source, size, size, held) == each_once(shape, (1, 0), dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1000, 33), "float32"), ((33, 1000), "float64"), ((20, 1000), "float64")],
)
def test_a_matrix_ragged_on_one_side_falls_into_strips(shape: Shape, dtype: str) -> None:
    """So blocks share it out, however large it is, and still move no sector twice."""
    size = np.dtype(dtype).itemsize
    whole = components(permuted_addresses(shape, (1, 0)), size, size)
    assert max(whole) < bytes_of(shape, dtype)
    pattern = permuted(shape, (1, 0), dtype)
    sch, _ = mapped(pattern, None)
    assert moved(pattern, sch) == each_once(shape, (1, 0), dtype)
