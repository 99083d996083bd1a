"""Each kind of hazard: a kernel that must have it, and one like it that must not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.programs import kernels, simulated
from tests.programs.running import gives, kinds
from tvm_layout_ext.build import device_program
from tvm_layout_ext.errors import SimulationError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.compile import kernel

INTS = kernels.random((64,), "int32")
FLOATS = kernels.random((64,))


@pytest.mark.parametrize(
    ("name", "values", "kind", "buffer", "count", "words"),
    [
        ("warp_sync_too_weak", INTS, "race", "B", 64, "no barrier"),
        ("warp_exchange", INTS, "race", "B", 64, "no barrier"),
        ("lost_updates", kernels.random((256,), "int32"), "race", "B", 252, "no barrier"),
        (
            "unwritten_read",
            FLOATS,
            "poison",
            "S",
            16,
            r"S\[63\] .* global memory by thread \(0,0,0",
        ),
        ("poison_address", INTS, "poison", "L", 4, "used as an address"),
        ("poison_predicate", INTS, "poison", "L", 4, "decides a branch"),
        ("half_written", INTS, "poison", "B", 32, "the first at index 1"),
        ("divergent_barrier", INTS, "barrier", "barrier", 1, "32 of the 64 threads of a block"),
        ("half_warp_barrier", INTS, "barrier", "barrier", 1, "16 of the 32 threads of a warp"),
    ],
)
def test_each_kind_is_reported(
    name: str, values: Any, kind: str, buffer: str, count: int, words: str
) -> None:
    report = simulate(getattr(simulated, name), values)
    assert kinds(report) == {kind}
    found = report.hazards[0]
    assert (found.buffer, found.count) == (buffer, count)
    assert re.search(words, found.message)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("warp_sync_enough", INTS),
        ("unwritten_unused", FLOATS),
        ("two_roles", INTS),
        ("separate_ifs", INTS),
    ],
)
def test_their_likes_are_clean(name: str, values: Any) -> None:
    assert simulate(getattr(simulated, name), values).hazards == []


def test_missing_barrier_is_a_race() -> None:
    program = kernels.without(device_program(kernels.transpose()), kernels.SYNC, 0)
    report = simulate(program, kernels.random((64, 64)))
    (hazard,) = report.hazards
    assert hazard.kind == "race"
    assert hazard.buffer == "A_shared"
    # 31 of each warp's 32 threads read what another wrote: 4 blocks, 1024 elements, 31/32.
    assert hazard.count == 4 * 1024 * 31 // 32
    assert len(hazard.threads) == len(hazard.sites) == 2
    assert "no barrier" in hazard.message


@pytest.mark.parametrize("which", [0, 1])
def test_matmul_needs_both_barriers(which: int) -> None:
    program = kernels.without(device_program(kernels.matmul()), kernels.SYNC, which)
    A, B = kernels.random((64, 64)), kernels.random((64, 64), seed=1)
    report = simulate(program, A, B)
    assert {h.buffer for h in report.hazards} == {"A_shared", "B_shared"}
    assert kinds(report) == {"race"}
    verb = "writes" if which == 0 else "reads"
    assert all(verb in hazard.message for hazard in report.hazards)


def test_reduction_needs_its_barrier() -> None:
    program = kernels.without(device_program(kernels.row_sum()), kernels.SYNC, 0)
    report = simulate(program, kernels.random((64, 128)))
    assert [h.kind for h in report.hazards] == ["race"]
    assert report.hazards[0].buffer == "red_buf_staging"


@pytest.mark.parametrize("threads", [8, 24, 32, 64, 100, 128])
def test_reduction_shuffles_from_idle_lanes_without_a_hazard(threads: int) -> None:
    A = kernels.random((16, 200))
    report = simulate(kernels.row_sum(16, 200, threads), A)
    assert report.hazards == []
    np.testing.assert_allclose(report.outputs["B"], A.sum(1), rtol=1e-4, atol=1e-4)


def test_block_that_reads_what_another_writes_races() -> None:
    report = simulate(simulated.between_blocks, INTS, np.zeros(64, "int32"))
    assert kinds(report) == {"race"}
    assert "block (1,0,0)" in report.hazards[0].message


def test_blocks_of_different_batches_race_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_BATCH_LANES", 32)
    report = simulate(simulated.between_blocks, INTS, np.zeros(64, "int32"))
    assert kinds(report) == {"race"}
    assert "a thread of another block" in report.hazards[0].message


def test_atomics_do_not_race() -> None:
    values = kernels.random((256,), "int32")
    gives(simulated.histogram, values, np.zeros(4, "int32"), B=np.bincount(values % 4, minlength=4))


def test_atomic_and_plain_write_race() -> None:
    report = simulate(simulated.atomic_and_store, INTS, np.zeros(1, "int32"))
    assert kinds(report) == {"race"}


def test_same_bits_are_redundant_not_a_race() -> None:
    report = simulate(simulated.same_bits, INTS)
    assert report.hazards == []
    (found,) = report.redundant
    assert found.kind == "redundant"
    assert found.count == 32


def test_unbound_copy_is_redundant() -> None:
    report = simulate(simulated.unbound_copy, INTS)
    assert report.hazards == []
    assert [h.buffer for h in report.redundant] == ["S"]
    np.testing.assert_array_equal(report.outputs["B"], INTS[::-1])


def test_thread_may_read_its_own_redundant_write_without_a_barrier() -> None:
    program = kernels.without(device_program(simulated.unbound_copy), kernels.SYNC, 0)
    report = simulate(program, INTS)
    # Every thread wrote all of S itself, so none depends on another.
    assert report.hazards == []


def test_another_thread_may_not_read_a_redundant_write_without_a_barrier() -> None:
    program = kernels.without(device_program(simulated.half_the_threads_copy), kernels.SYNC, 0)
    report = simulate(program, INTS)
    assert kinds(report) == {"race"}
    assert report.hazards[0].count == 32
    assert simulate(simulated.half_the_threads_copy, INTS).hazards == []


def test_given_output_array_is_initialised() -> None:
    start = np.arange(64, dtype="int32")
    report = simulate(simulated.half_written, INTS, start)
    assert report.hazards == []
    np.testing.assert_array_equal(report.outputs["B"][1::2], start[1::2])
    np.testing.assert_array_equal(start, np.arange(64))


def test_accumulating_into_an_omitted_output_is_poison() -> None:
    assert kinds(simulate(simulated.accumulate, INTS)) == {"poison"}
    gives(simulated.accumulate, INTS, np.ones(64, "int32"), B=INTS + 1)


def test_out_of_bounds_is_an_error_with_all_detail() -> None:
    with pytest.raises(SimulationError, match=r"thread \(63,0,0\).*index 64 of A.*\(64,\)"):
        simulate(simulated.outside, INTS)


def test_guarded_access_is_in_bounds() -> None:
    gives(simulated.guarded, INTS, B=np.r_[INTS[1:], 0])


def test_misaligned_vector_is_an_error() -> None:
    with pytest.raises(SimulationError, match="16-byte store at index 1 of B"):
        simulate(simulated.misaligned, FLOATS, np.zeros(256, "float32"))


def test_a_program_that_runs_again_is_counted_anew() -> None:
    for name, values in (("lost_updates", kernels.random((256,), "int32")), ("two_roles", INTS)):
        program = device_program(getattr(simulated, name))
        first, _, again = (simulate(program, one) for one in (values, values + 1, values))
        assert (again.hazards, again.accesses) == (first.hazards, first.accesses)
        assert again.script == first.script
