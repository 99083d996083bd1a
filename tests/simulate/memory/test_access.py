"""Counts of whole kernels, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te
from tvm.s_tir import Schedule

from tests.programs import kernels, simulated
from tests.programs.running import gives
from tvm_layout_ext.simulate import AccessCounts, Report, simulate


def find(report: Report, buffer: str, kind: str) -> AccessCounts:
    (found,) = [a for a in report.accesses if a.buffer == buffer and a.kind == kind]
    return found


@pytest.mark.parametrize(("pad", "ways"), [(0, 32), (1, 1), (2, 2), (4, 4), (8, 8)])
def test_transpose_conflicts_by_padding(pad: int, ways: int) -> None:
    report = simulate(kernels.transpose(64, pad=pad), kernels.random((64, 64)))
    read = find(report, "A_shared", "load")
    requests = 64 * 64 // 32
    assert (read.requests, read.wavefronts) == (requests, requests * ways)
    assert read.bank_conflicts == requests * (ways - 1)
    assert find(report, "A_shared", "store").bank_conflicts == 0
    assert report.bank_conflicts == read.bank_conflicts
    assert report.shared_bytes == 32 * (32 + pad) * 4


def test_transpose_moves_whole_sectors() -> None:
    report = simulate(kernels.transpose(64), kernels.random((64, 64)))
    for buffer, kind in (("A", "load"), ("B", "store")):
        access = find(report, buffer, kind)
        assert (access.requests, access.sectors, access.ideal_sectors) == (128, 512, 512)
        assert access.scope == "global"
    assert report.sectors == 1024
    assert report.barriers == 4


@pytest.mark.parametrize(("dtype", "ways"), [("float16", 16), ("float32", 32), ("float64", 32)])
def test_transpose_conflicts_by_width(dtype: str, ways: int) -> None:
    report = simulate(kernels.transpose(64, dtype), kernels.random((64, 64), dtype))
    read = find(report, "A_shared", "load")
    # A column of 32 halves lies in rows of 64 bytes: 16 banks apart, so 2 banks serve 32 words.
    # Doubles go in two half-warps, each with 16 threads in one pair of banks: 2 x 16 wavefronts.
    assert read.wavefronts == read.requests * ways


def column_copy(stride: int) -> Schedule:
    """Each thread reads its own row's first elements: a stride between threads."""
    A = te.placeholder((32, stride), "float32", name="A")
    B = te.compute((32,), lambda i: A[i, 0], name="B")
    sch = Schedule(te.create_prim_func([A, B]))
    sch.bind(sch.get_loops(sch.get_sblock("B"))[0], "threadIdx.x")
    return sch


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (4, 16), (8, 32), (64, 32)])
def test_strided_read_costs_sectors(stride: int, sectors: int) -> None:
    report = simulate(column_copy(stride), kernels.random((32, stride)))
    access = find(report, "A", "load")
    assert (access.requests, access.sectors, access.ideal_sectors) == (1, sectors, 4)
    assert access.sectors_per_request == sectors


@pytest.mark.parametrize(
    ("dtype", "lanes", "requests", "width", "sectors"),
    [
        ("float32", 1, 1, 4, 4),
        ("float32", 2, 1, 8, 8),
        ("float32", 4, 1, 16, 16),
        # Each instruction moves every other 16 bytes and so touches all 32 sectors.
        ("float64", 4, 2, 16, 32),
        # Vectors of 3 and 6 as nvcc compiles them for sm_90a: uchar3, uint3, float3, ulonglong3.
        ("uint8", 3, 3, 1, 3),
        ("float16", 6, 3, 4, 12),
        ("float32", 3, 3, 4, 12),
        ("float32", 6, 3, 8, 24),
    ],
)
def test_instructions_of_a_vector(
    dtype: str, lanes: int, requests: int, width: int, sectors: int
) -> None:
    schedule = kernels.elementwise(lambda x: x, [dtype], 32 * lanes, lanes)
    value = np.arange(32 * lanes).astype(dtype)
    report = gives(schedule, value, B=value)
    assert len(report.accesses) == 2
    for access in report.accesses:
        assert (access.requests, access.vector_bytes) == (requests, width)
        assert (access.sectors, access.ideal_sectors) == (requests * sectors, sectors)
        assert access.bytes == value.nbytes


def test_matmul_reads() -> None:
    A, B = kernels.random((64, 64)), kernels.random((64, 64), seed=1)
    report = simulate(kernels.matmul(), A, B)
    np.testing.assert_allclose(report.outputs["C"], A @ B, rtol=1e-4, atol=1e-4)
    # 8 warps, 64 steps of k, 4 x 4 products a thread; an element of A stays the same in four.
    a, b = find(report, "A_shared", "load"), find(report, "B_shared", "load")
    assert (a.requests, b.requests) == (8 * 64 * 4, 8 * 64 * 16)
    # Unrolled, each element is loaded once, and four at a time.
    assert a.requests - a.open_requests == b.requests - b.open_requests == 8 * 64
    # A: two rows of threads read two words 64 words apart, in one bank. B: 16 threads read every
    # fourth word, so 8 banks serve 16 words.
    assert (a.wavefronts, b.wavefronts) == (2 * a.requests, 2 * b.requests)
    assert report.barriers == 8


def test_asynchronous_copies_count_on_both_sides() -> None:
    halves = [kernels.random((64, 64), "float16", seed) for seed in (0, 1)]
    report = simulate(kernels.async_matmul_program(), *halves)
    sides: dict[tuple[str, str], int] = {}
    for access in report.accesses:
        if access.vector_bytes == 16:
            key = access.buffer, access.kind
            sides[key] = sides.get(key, 0) + access.requests
    # 64 x 64 halves are 8192 bytes: 16 requests of 512.
    copied = [("A", "load"), ("B", "load")]
    copied += [("A_shared.dyn", "cp.async"), ("B_shared.dyn", "cp.async")]
    assert sides == dict.fromkeys(copied, 16)


def test_atomics_are_a_kind_of_their_own() -> None:
    report = simulate(simulated.histogram, kernels.random((256,), "int32"), np.zeros(4, "int32"))
    access = find(report, "B", "atomic")
    assert (access.requests, access.sectors) == (8, 8)


@pytest.fixture(scope="module")
def report() -> Any:
    return simulate(kernels.transpose(64, pad=1), kernels.random((64, 64)))


def test_site_has_the_line_of_the_script(report: Report) -> None:
    lines = report.script.split("\n")
    for access in report.accesses:
        assert access.buffer in lines[access.site.line - 1]
        assert "@" not in lines[access.site.line - 1]


def test_script_is_what_tvm_prints(report: Report) -> None:
    from tvm_layout_ext.build import device_program

    (kernel,) = device_program(kernels.transpose(64, pad=1)).kernels.values()
    assert report.script == kernel.script()


def test_site_has_the_block_of_the_schedule(report: Report) -> None:
    blocks = {(a.buffer, a.kind): a.site.block for a in report.accesses}
    assert blocks["A", "load"] == blocks["A_shared", "store"] == "A_shared"
    assert blocks["A_shared", "load"] == blocks["B", "store"] == "B"


def test_names_survive_merged_shared_memory() -> None:
    halves = [kernels.random((64, 64), "float16", seed) for seed in (0, 1)]
    report = simulate(kernels.matmul(64, "float16", "float32", scope="shared.dyn"), *halves)
    assert "buf_dyn_shmem" in report.script
    names = {a.buffer for a in report.accesses if a.scope == "shared.dyn"}
    assert names == {"A_shared.dyn", "B_shared.dyn"}


def test_table_shows_every_access(report: Report) -> None:
    text = report.text()
    head, *rows = text.split("\n")
    assert head.split()[:4] == ["buffer", "scope", "kind", "bytes"]
    for access, row in zip(report.accesses, rows, strict=False):
        assert row.split()[:4] == [access.buffer, access.scope, access.kind, "4"]
    assert "0 hazards" in text
    assert "4 barriers" in text


def test_sampled_blocks_count_exactly_their_share() -> None:
    A = kernels.random((256, 256))
    whole = simulate(kernels.transpose(256), A)
    part = simulate(kernels.transpose(256), A, grid_sample=16, seed=3)
    assert part.blocks == (16, 64)
    assert whole.blocks == (64, 64)
    assert part.sectors * 4 == whole.sectors
    assert part.bank_conflicts * 4 == whole.bank_conflicts
    got = part.outputs["B"]
    assert got.mask.sum() == 256 * 256 * 3 // 4
    np.testing.assert_array_equal(got.compressed(), A.T[~got.mask])
    # The first and the last block are always among them.
    assert not got.mask[0, 0]
    assert not got.mask[-1, -1]


def test_sample_is_chosen_by_the_seed() -> None:
    A = kernels.random((256, 256))
    masks = [
        simulate(kernels.transpose(256), A, grid_sample=8, seed=seed).outputs["B"].mask
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0] != masks[2]).any()
