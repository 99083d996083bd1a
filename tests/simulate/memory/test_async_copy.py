"""``cp.async`` with a source size or a predicate: zeros come with the copy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.programs import kernels, matrices
from tests.programs.running import gives, kinds
from tvm_layout_ext.build import device_program
from tvm_layout_ext.errors import NotModelled, SimulationError
from tvm_layout_ext.simulate import simulate

A = kernels.random((32, 8), "float16")
FIRST_TEN = np.arange(32)[:, None] < 10


@pytest.mark.parametrize(
    "tail",
    [
        "T.if_then_else(v < 10, T.uint32(16), T.uint32(0))",
        "T.ptx.pred(v >= 10)",
    ],
    ids=["src_size", "ignore_src"],
)
def test_threads_without_a_source_store_zeros(tail: str) -> None:
    report = gives(matrices.copy_with(tail), A, None, D=np.where(FIRST_TEN, A, 0))
    load = next(a for a in report.accesses if a.buffer == "A")
    # Only ten threads read, 16 bytes each: 5 sectors.
    assert (load.bytes, load.sectors) == (160, 5)


@pytest.mark.parametrize(("width", "size"), [(16, 4), (16, 16), (16, 0), (8, 6), (4, 2)])
def test_zeros_fill_up_to_the_copy_size(width: int, size: int) -> None:
    program = matrices.copy_with(f"T.uint32({size})", width)
    expected = np.full((32, 8), 7, np.float16)
    expected[:, : width // 2] = 0
    expected[:, : size // 2] = A[:, : size // 2]
    gives(program, A, None, D=expected)


@pytest.mark.parametrize(
    ("size", "wavefronts"),
    [
        ("T.uint32(16)", 4),
        ("T.uint32(8)", 8),
        # Two lanes read nothing, which counts as one more line.
        ("T.if_then_else(v < 30, T.uint32(16), T.uint32(0))", 5),
        ("T.Cast('uint32', T.Select(v < 30, 16, 0))", 5),
        ("T.if_then_else(v < 30, T.uint32(16), T.uint32(8))", 8),
        ("T.Cast('uint32', v % 2 * 8 + 8)", 8),
    ],
    ids=["whole", "half", "all or nothing", "cast of it", "all or half", "in a register"],
)
def test_copies_that_the_machine_fills_up_take_twice_the_wavefronts(
    size: str, wavefronts: int
) -> None:
    report = simulate(matrices.copy_with(size), A, None)
    copied = next(a for a in report.accesses if a.kind == "cp.async")
    assert copied.wavefronts == wavefronts


def test_zeros_are_not_there_before_the_wait() -> None:
    program = matrices.copy_with("T.ptx.pred(v >= 10)")
    early = kernels.without(device_program(program), "tirx.ptx.cp_async_wait_all", 0)
    assert kinds(simulate(early, A, None)) == {"async", "poison"}


def test_sizes_may_differ_from_thread_to_thread() -> None:
    program = matrices.copy_with("T.Cast('uint32', v % 5 * 4)")
    kept = np.arange(8)[None, :] < np.arange(32)[:, None] % 5 * 2
    gives(program, A, None, D=np.where(kept, A, 0))


def test_part_of_an_element_is_refused() -> None:
    program = matrices.copy_with("T.Cast('uint32', v)")
    with pytest.raises(NotModelled, match="with 1 bytes of source"):
        simulate(program, A, None)


def test_an_address_is_computed_where_nothing_is_read_too() -> None:
    """The index of a source of 0 bytes is loaded: once for the warp, and it must be there."""
    report = gives(
        matrices.copy_by_index(32),
        A,
        np.arange(32, dtype="int32"),
        None,
        D=np.where(FIRST_TEN, A, 0),
    )
    load = next(a for a in report.accesses if a.buffer == "I")
    assert (load.bytes, load.sectors) == (128, 4)
    with pytest.raises(SimulationError, match="load at index 20 of I, which has shape"):
        simulate(matrices.copy_by_index(20), A, np.arange(20, dtype="int32"), None)
