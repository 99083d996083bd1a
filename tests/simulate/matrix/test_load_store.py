"""``ldmatrix`` and ``stmatrix``: every lane and register, wavefronts, hazards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.programs import kernels
from tests.programs import matrices as programs
from tests.programs.running import gives
from tvm_layout_ext.build import device_program
from tvm_layout_ext.errors import SimulationError
from tvm_layout_ext.simulate import simulate

FORMS = [(number, trans) for number in (1, 2, 4) for trans in ("", ".trans")]
CTA_SYNC = "tirx.cuda.cta_sync"


def rows_of_warps(seed: int) -> Any:
    """A row number for each thread: those of its own warp, shuffled."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(32) + 32 * warp for warp in range(2)]).astype(np.int32)


def held(matrix: Any, lane: int, trans: str) -> Any:
    """The two elements of an 8x8 matrix that a lane holds, by the figure of the PTX ISA."""
    row, column = lane // 4, 2 * (lane % 4)
    return (matrix.T if trans else matrix)[row, column : column + 2]


@pytest.mark.parametrize(("number", "trans"), FORMS)
def test_ldmatrix_gives_each_lane_its_elements(number: int, trans: str) -> None:
    A = np.random.default_rng(0).integers(0, 1 << 16, (64, 8), dtype=np.uint16)
    R = rows_of_warps(1)
    report = simulate(programs.load_matrices(number, trans), A.view(np.float16), R, None)
    assert report.hazards == []
    got = report.outputs["D"].view(np.uint16).reshape(2, 32, number, 2)
    for warp in range(2):
        rows = A[R[32 * warp : 32 * warp + 8 * number]].reshape(number, 8, 8)
        for lane in range(32):
            expected = [held(rows[i], lane, trans) for i in range(number)]
            np.testing.assert_array_equal(got[warp, lane], expected)


@pytest.mark.parametrize(("number", "trans"), FORMS)
def test_stmatrix_takes_each_lane_s_elements(number: int, trans: str) -> None:
    A = np.random.default_rng(0).integers(0, 1 << 16, (64, 2 * number), dtype=np.uint16)
    R = rows_of_warps(1)
    report = simulate(programs.store_matrices(number, trans), A.view(np.uint32), R, None)
    assert report.hazards == []
    got = report.outputs["D"].view(np.uint16)
    elements = A.reshape(2, 32, number, 2)
    expected = np.zeros((64, 8), np.uint16)
    for warp in range(2):
        for i in range(number):
            rows = expected[R[32 * warp + 8 * i : 32 * warp + 8 * i + 8]]
            for lane in range(32):
                held(rows, lane, trans)[:] = elements[warp, lane, i]
            expected[R[32 * warp + 8 * i : 32 * warp + 8 * i + 8]] = rows
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("number", "trans"), FORMS)
def test_each_matrix_is_one_phase(number: int, trans: str) -> None:
    A, R = kernels.random((64, 8), "float16"), np.arange(64, dtype=np.int32)
    report = simulate(programs.load_matrices(number, trans), A, R, None)
    (load,) = [a for a in report.accesses if a.kind == "ldmatrix"]
    assert (load.buffer, load.scope, load.vector_bytes) == ("S", "shared", 16)
    assert (load.requests, load.wavefronts, load.bank_conflicts) == (2, 2 * number, 0)
    assert load.bytes == 2 * number * 8 * 16
    report = simulate(programs.store_matrices(number, trans), np.zeros((64, number), "uint32"), R)
    (store,) = [a for a in report.accesses if a.kind == "stmatrix"]
    assert (store.requests, store.wavefronts, store.bank_conflicts) == (2, 2 * number, 0)


# Rows of 16 bytes take 4 of the 32 banks, so 8 rows of a matrix meet as often as their starts do
# modulo 128 bytes.
@pytest.mark.parametrize(
    ("halves", "degree"), [(8, 1), (16, 2), (24, 1), (32, 4), (40, 1), (64, 8), (72, 1), (128, 8)]
)
def test_wavefronts_by_row_stride(halves: int, degree: int) -> None:
    report = simulate(programs.strided_rows(halves), kernels.random((32, halves), "float16"), None)
    (load,) = [a for a in report.accesses if a.kind == "ldmatrix"]
    assert (load.wavefronts, load.bank_conflicts) == (4 * degree, 4 * (degree - 1))


def test_equal_rows_are_one_wavefront_a_matrix() -> None:
    A, R = kernels.random((64, 8), "float16"), np.repeat(np.arange(8, dtype=np.int32), 8)
    report = simulate(programs.load_matrices(4, ""), A, R, None)
    (load,) = [a for a in report.accesses if a.kind == "ldmatrix"]
    # No two matrices join, as two phases of a plain load do.
    assert (load.wavefronts, load.bank_conflicts) == (8, 0)


def test_crooked_row_is_an_error() -> None:
    with pytest.raises(SimulationError, match=r"Misaligned address: thread \(0,0,0\).*ldmatrix"):
        simulate(programs.strided_rows(16, start=4), kernels.random((32, 16), "float16"), None)


def test_address_may_be_displaced_by_bytes() -> None:
    A = kernels.random((32, 24), "float16")
    direct, displaced = (
        simulate(programs.strided_rows(24, start, moved), A, None).outputs["D"]
        for start, moved in ((16, 0), (0, 32))
    )
    np.testing.assert_array_equal(displaced, direct)
    assert (displaced.view(np.uint16)[0, 0:2] == A[0, 16:18].view(np.uint16)).all()


def test_row_out_of_bounds_is_an_error() -> None:
    A, R = kernels.random((64, 8), "float16"), np.arange(64, dtype=np.int32)
    R[5] = 64
    with pytest.raises(SimulationError, match=r"Out of bounds: thread \(5,0,0\).*ldmatrix"):
        simulate(programs.load_matrices(1, ""), A, R, None)


def test_addresses_of_lanes_beyond_the_matrices_do_not_matter() -> None:
    A, R = kernels.random((64, 8), "float16"), np.arange(64, dtype=np.int32)
    R[8:32] = 1000
    assert simulate(programs.load_matrices(1, ""), A, R, None).hazards == []


@pytest.mark.parametrize(
    ("kernel", "barriers"),
    [
        (programs.load_matrices, [(CTA_SYNC, 0)]),
        (programs.store_matrices, [(CTA_SYNC, 0)]),
        (programs.store_matrices, [(CTA_SYNC, 1), (kernels.SYNC, 0)]),
    ],
    ids=["ldmatrix after stores", "stmatrix after stores", "loads after stmatrix"],
)
def test_without_a_barrier_between_stores_and_loads_is_a_race(
    kernel: Any, barriers: list[tuple[str, int]]
) -> None:
    R = rows_of_warps(3)
    program = device_program(kernel(4, ""))
    for call, which in barriers:
        program = kernels.without(program, call, which)
    is_load = kernel is programs.load_matrices
    given = kernels.random((64, 8), "float16") if is_load else np.full((64, 4), 0x20001, np.uint32)
    (hazard,) = simulate(program, given, R, None).hazards
    assert (hazard.kind, hazard.buffer) == ("race", "S")
    # Each row is that of the lane which gives its address: no race where that lane wrote it.
    assert hazard.count == 8 * int((np.arange(64) != R).sum())


@pytest.mark.parametrize("row", [0, 5, 8, 31])
def test_unwritten_row_poisons_what_is_computed_from_it(row: int) -> None:
    report = simulate(programs.unwritten_row(row), kernels.random((32, 8), "float16"), None)
    (hazard,) = report.hazards
    assert hazard.kind == "poison"
    assert (hazard.buffer, hazard.index // 8) == ("S", row)
    # A's row of the matrix that the row is in: 4 lanes, of whose 4 results 2 are in that row.
    assert hazard.count == 4 * 2
    first = row % 8 * 4
    assert hazard.threads == (f"thread ({first},0,0) of block (0,0,0)",)


@pytest.mark.parametrize("threads", [8, 31])
def test_part_of_a_warp_is_a_hazard(threads: int) -> None:
    report = simulate(programs.part_of_a_warp(threads), kernels.random((32, 8), "float16"), None)
    kinds = [hazard.kind for hazard in report.hazards]
    assert kinds == ["divergent", "poison"]
    assert f"{threads} of the 32 threads of a warp" in report.hazards[0].message
    assert "execute ldmatrix" in report.hazards[0].message
    assert report.hazards[1].count == threads


def test_whole_warp_under_a_condition_is_no_hazard() -> None:
    report = simulate(programs.part_of_a_warp(32), kernels.random((32, 8), "float16"), None)
    assert report.hazards == []


def test_local_array_seen_as_words() -> None:
    A = kernels.random((32, 4), "float16")
    expected = A.view(np.uint32).copy()
    expected[:, 1] += 1
    gives(programs.viewed_local(), A, None, D=expected)
