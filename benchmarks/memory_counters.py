"""Sectors and shared wavefronts of the memory-bound kernels: Nsight Compute, simulation, the least.

The simulated GPU runs some blocks of a large kernel at its full size, and its counts are scaled up
to the grid, which is exact where all blocks do the same: everywhere but in ``pad``. Rows of up to a
quarter of a gigabyte are simulated whole. The least follows from its accesses: the sectors that the
touched bytes lie in, and the passes that the access width costs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import counters
from benchmarks.memory_rows import Row, schedule
from tvm_layout_ext import _compat, device_program
from tvm_layout_ext.build import to_module
from tvm_layout_ext.simulate import simulate

__all__ = ["collect", "simulated", "table"]

#: Blocks of a grid that are simulated, and bytes of a row up to which all of them are. The first
#: and the last block are among them: of 16, those of a pad took 6% off its sectors, of 256 0.7%.
SAMPLE, WHOLE_BYTES = 256, 1 << 28
Counts = dict[str, int]


def simulated(row: Row, whole_bytes: int = WHOLE_BYTES) -> dict[str, Counts]:
    """Counts of the simulated GPU and the least possible, for the whole grid."""
    tensors = row.tensors()
    module = to_module(schedule(tensors), tensors)
    rng = np.random.default_rng(0)
    whole = row.bytes() <= whole_bytes
    shapes = row.shapes()
    (first, dtype), *others = shapes[:-1]
    # Which rows are gathered matters for sectors; what values are moved does not.
    numbers = [rng.integers(0, first[0], shape).astype(kind) for shape, kind in others]
    inputs = [np.zeros(first, dtype), *numbers]
    report = simulate(module, *inputs, None, grid_sample=None if whole else SAMPLE)
    done, total = report.blocks
    got, least = dict.fromkeys(counters.METRICS, 0), dict.fromkeys(counters.METRICS, 0)
    for access in report.accesses:
        if access.scope == "global":
            name = f"global {access.kind} sectors"
            count, best = access.sectors, access.ideal_sectors
        else:
            name = f"shared {access.kind} wavefronts"
            count, best = access.wavefronts, access.wavefronts - access.bank_conflicts
        got[name] += count
        least[name] += best
    return {
        "simulated": {name: count * total // done for name, count in got.items()},
        "least": {name: count * total // done for name, count in least.items()},
    }


def kernels_of(row: Row) -> int:
    """Kernels that a row launches."""
    tensors = row.tensors()
    return len(device_program(schedule(tensors), tensors).kernels)


def profiled(rows: Sequence[Row]) -> dict[str, Counts]:
    """Nsight Compute's counters of our kernels, from one process that launches them in order."""
    command = [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--kernel-name", "regex:main_kernel", "--metrics", ",".join(counters.METRICS.values()),
        sys.executable, "-m", "benchmarks.memory_bound", "launch", *(row.name for row in rows),
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    if out.returncode:
        raise RuntimeError(f"ncu failed with {out.returncode}:\n{out.stdout}\n{out.stderr}")
    return grouped(rows, counters.parse(out.stdout, counters.METRICS))


def grouped(rows: Sequence[Row], launches: Sequence[Counts]) -> dict[str, Counts]:
    """Add up the launches that belong to one row."""
    numbers = [kernels_of(row) for row in rows]
    if sum(numbers) != len(launches):
        raise RuntimeError(f"ncu saw {len(launches)} launches where {sum(numbers)} were expected.")
    left = iter(launches)
    found: dict[str, Counts] = {}
    for row, number in zip(rows, numbers, strict=True):
        mine = [next(left) for _ in range(number)]
        found[row.name] = {name: sum(counts[name] for counts in mine) for name in counters.METRICS}
    return found


def collect(
    rows: Sequence[Row], known: dict[str, Any] | None = None, *, simulate: bool
) -> dict[str, Any]:
    """Counters of each row, of as many sources as this machine has.

    Parameters
    ----------
    rows : sequence of Row
    known : dict, optional
        What another machine found before; what this one finds is added to it.
    simulate : bool
        Whether to simulate, which takes some ten seconds a row.
    """
    record: dict[str, Any] = {"sampled_blocks": SAMPLE, "ncu": {}, "simulated": {}, "least": {}}
    record |= known or {}
    if shutil.which("ncu") and _compat.has_gpu():
        record["ncu"] |= profiled(rows)
    for row in rows if simulate else ():
        record["sampled_blocks"] = SAMPLE
        for source, counts in simulated(row).items():
            record[source][row.name] = counts
    return record


def table(record: dict[str, Any]) -> str:
    """One line a row and counter."""
    names = record["ncu"] | record["simulated"]
    lines = [f"{'':26}{'counter':24}{'ncu':>14}{'simulated':>14}{'least':>14}"]
    for name in names:
        for counter in counters.METRICS:
            counts = [record[k].get(name, {}).get(counter) for k in ("ncu", "simulated", "least")]
            if any(counts):
                cells = "".join(f"{'-' if c is None else f'{c:,}':>14}" for c in counts)
                lines.append(f"{name:26}{counter:24}{cells}")
    return "\n".join(lines)
