"""Full tiles are written in rows of 256 bytes a warp, and their vectors put down in halves."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.programs.coalesced import numbers
from tests.programs.emitted import cuda_text, require_no_spills
from tests.programs.running import gives
from tvm_layout_ext.simulate.report import Report

H200 = tlx.cuda_target("sm_90a")


def permuting(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> s_tir.Schedule:
    a = te.placeholder(shape, dtype, "A")
    where = [axes.index(dim) for dim in range(len(shape))]
    b = te.compute([shape[dim] for dim in axes], lambda *i: a(*[i[w] for w in where]), "B")
    return s_tir.Schedule(te.create_prim_func([a, b]))


def ran(sch: s_tir.Schedule, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Report:
    value = numbers(shape, dtype)
    report = gives(sch, value, None, B=value.transpose(axes))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    assert report.sectors == report.ideal_sectors == 2 * value.nbytes // 32
    return report


def widths(report: Report) -> dict[tuple[str, str], set[int]]:
    found: dict[tuple[str, str], set[int]] = {}
    for access in report.accesses:
        found.setdefault((access.buffer, access.kind), set()).add(access.vector_bytes)
    return found


@pytest.mark.parametrize(
    ("shape", "axes", "dtype", "threads"),
    [
        ((256, 256), (1, 0), "float32", 512),
        ((128, 384), (1, 0), "int32", 512),
        ((256, 256), (1, 0), "float16", 1024),
        ((2, 128, 12, 32), (0, 2, 3, 1), "float16", 1024),
        # Vectors of a merged dim reach over the ends of its rows of 6.
        ((2, 128, 32, 6), (0, 2, 3, 1), "float32", 512),
        ((64, 3, 64), (2, 1, 0), "float32", 512),
    ],
)
def test_a_warp_stores_256_bytes_of_a_row_and_meets_no_bank_twice(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, threads: int
) -> None:
    sch = permuting(shape, axes, dtype)
    assert f"{threads} threads" in sch.auto_coalesce("B").report
    report = ran(sch, shape, axes, dtype)
    assert widths(report) == {
        ("A", "load"): {16},
        ("A_shared", "store"): {8},
        ("A_shared", "load"): {4},
        ("B", "store"): {16},
    }
    # Halves cost what whole vectors do: a warp moves 128 bytes a wavefront either way.
    stored = [a for a in report.accesses if a.buffer == "A_shared" and a.kind == "store"]
    moved = int(np.prod(shape)) * np.dtype(dtype).itemsize
    assert sum(a.wavefronts for a in stored) == moved // 128
    (store, *_) = tlx.device_program(sch, target=H200).kernels.values()
    along, rows = lanes_of(str(store), 16 // np.dtype(dtype).itemsize)
    assert (along, rows) == (16, 2)


def lanes_of(kernel: str, vector: int) -> tuple[int, int]:
    """Lanes of a warp along a row of what is stored, and rows: from the address of a store."""
    (address, *_) = re.findall(r"T\.address_of\(B\[(.*?)\]\)", kernel)
    (mask,) = re.findall(rf"\(threadIdx_x & (\d+)\) \* {vector}\b", address)
    return int(mask) + 1, 32 // (int(mask) + 1)


@pytest.mark.parametrize(
    ("shape", "axes", "dtype", "width"),
    [
        # A row of the tile is 128 bytes, as int8's is.
        ((4, 64, 4096), (0, 2, 1), "float16", 64),
        ((256, 256), (1, 0), "int8", 128),
        # Not all tiles are full.
        ((264, 264), (1, 0), "float32", 64),
        # Elements of 8 bytes were not measured.
        ((256, 256), (1, 0), "float64", 64),
    ],
)
def test_other_tiles_are_put_down_as_they_come(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, width: int
) -> None:
    sch = permuting(shape, axes, dtype)
    sch.auto_coalesce("B")
    value = numbers(shape, dtype)
    report = gives(sch, value, None, B=value.transpose(axes))
    assert (report.bank_conflicts, report.hazards) == (0, [])
    put = widths(report)["A_shared", "store"]
    assert put == widths(report)["A", "load"]


def test_narrow_accesses_and_fewer_threads_are_kept_to() -> None:
    sch = permuting((256, 256), (1, 0), "float32")
    assert "128 threads" in sch.auto_coalesce("B", num_threads=128).report
    assert widths(ran(sch, (256, 256), (1, 0), "float32"))["A_shared", "store"] == {8}
    sch = permuting((256, 256), (1, 0), "float32")
    sch.auto_coalesce("B", vector_bytes=8)
    report = ran(sch, (256, 256), (1, 0), "float32")
    assert widths(report)["A_shared", "store"] == widths(report)["A", "load"] == {8}


@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_register_is_spilled_and_loads_go_before_the_stores(dtype: str, tmp_path: Path) -> None:
    sch = permuting((256, 256), (1, 0), dtype)
    sch.auto_coalesce("B")
    told = require_no_spills(cuda_text(sch), tmp_path)
    (registers,) = map(int, re.findall(r"Used (\d+) registers", told))
    # Two blocks of 1,024 threads, or four of 512, fill a multiprocessor.
    assert registers <= 32
