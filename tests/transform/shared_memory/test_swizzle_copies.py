"""``auto`` counts asynchronous copies by the rules of ``cp.async``: as the simulated GPU does."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import tvm_layout_ext as tlx
from benchmarks.gemm_kernels import Case
from tvm_layout_ext import decisions
from tvm_layout_ext.simulate import simulate

#: Tiles of float16 whose rows of K are 64 bytes, and 128.
TILES = {64: "tile_m=64 tile_n=64 tile_k=32", 128: "tile_m=64 tile_n=64 tile_k=64"}
SHAPE = (128, 128, 256)


def case(row_bytes: int, mode: str, stages: int = 3) -> Case:
    rest = f"warps_m=2 warps_n=1 stages={stages} prefetch=0 swizzle={mode}"
    return Case(SHAPE, f"{TILES[row_bytes]} {rest}")


@cache
def simulated(row_bytes: int, mode: str) -> dict[tuple[str, str], int]:
    """Wavefronts that the whole product takes, by buffer and kind of access."""
    a, b = (np.ones((128, 256), "float16") for _ in range(2))
    report = simulate(case(row_bytes, mode).schedule().mod, a, b, None)
    found: dict[tuple[str, str], int] = {}
    for access in report.accesses:
        if access.scope.startswith("shared") and access.kind in ("cp.async", "ldmatrix"):
            key = (access.buffer[0], access.kind)
            found[key] = found.get(key, 0) + access.wavefronts
    return found


def noted(row_bytes: int, mode: str, stages: int = 3) -> dict[str, Any]:
    """Name, wavefronts to write and to read, and the least, by buffer, of a block."""
    with decisions.collect() as notes:
        tlx.lower(case(row_bytes, mode, stages).schedule().mod, target=tlx.cuda_target("sm_90a"))
    pattern = r"(.*), (\d+) wavefronts a block to write and (\d+) to read, (\d+) without"
    found = {}
    for note in notes:
        said = re.match(pattern, note.text) if note.maker == "SwizzleSharedMemory" else None
        if said:
            found[note.subject[0]] = (said[1], int(said[2]), int(said[3]), int(said[4]))
    return found


@pytest.mark.matrix
@pytest.mark.parametrize("row_bytes", TILES)
@pytest.mark.parametrize("mode", ["auto", "pad"])
def test_what_decides_is_what_the_simulated_gpu_counts(row_bytes: int, mode: str) -> None:
    choices = noted(row_bytes, mode)
    times = 4  # blocks
    for buffer in "AB":
        _, writes, reads, _ = choices[buffer]
        counted = simulated(row_bytes, mode)
        assert times * writes == counted[buffer, "cp.async"]
        assert times * reads == counted[buffer, "ldmatrix"]


def test_without_asynchronous_copies_stores_are_counted() -> None:
    """One version is copied through registers."""
    assert all(one[1] == 256 for one in noted(64, "auto", stages=1).values())
    assert all(one[1] == 512 for one in noted(64, "auto").values())
