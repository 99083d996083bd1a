"""Shared-memory wavefronts of products: Nsight Compute beside the simulated GPU.

Each operation of each product has a line: what Nsight Compute counted, what the simulated GPU
counts, and what the same requests would take without a bank conflict. Of asynchronous copies
(``ldgsts``) that is one wavefront for 128 bytes, which rows of 64 bytes cannot reach: a wavefront
serves one line of global memory (:mod:`.counts`).
"""

from __future__ import annotations

import csv
import io
import multiprocessing
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gemm_candidates import COUNTED

__all__ = ["OPERATIONS", "differing", "profile", "simulate_all", "simulate_case", "table"]

#: Nsight Compute's operation for each kind of access of the simulated GPU.
_OPERATIONS = {
    "load": "ld", "store": "st", "ldmatrix": "ldsm", "stmatrix": "stsm", "cp.async": "ldgsts",
}  # fmt: skip
OPERATIONS = tuple(_OPERATIONS.values())
#: What one wavefront moves at most: 32 banks of 4 bytes.
_LINE_BYTES = 128
_COUNTER = re.compile(
    r"smsp__sass_l1tex_(data_pipe_lsu_wavefronts|data_bank_conflicts_pipe_lsu)_mem_shared(_op_\w+)?"
)


def simulate_case(name: str) -> tuple[str, dict[str, int]]:
    """Wavefronts of each operation, under ``... least`` those without conflicts, and hazards."""
    import numpy as np

    from tvm_layout_ext.simulate import simulate

    case = COUNTED[name]
    m, n, k = case.shape
    rng = np.random.default_rng(0)
    sizes = ((m, k), (n, k) if case.layout == "nt" else (k, n))
    arrays = [_array(rng, size, case.operand) for size in sizes]
    report = simulate(case.schedule().mod, *arrays, None)
    counts = {"conflicts": int(report.bank_conflicts), "hazards": len(report.hazards)}
    for access in report.accesses:
        if access.scope.startswith("shared"):
            operation = _OPERATIONS[access.kind]
            least = access.wavefronts - access.bank_conflicts
            if operation == "ldgsts":
                least = -(-access.bytes // _LINE_BYTES)
            for key, count in ((operation, access.wavefronts), (f"{operation} least", least)):
                counts[key] = counts.get(key, 0) + count
    return name, counts


def _array(rng: Any, size: tuple[int, int], dtype: str) -> Any:
    import ml_dtypes
    import numpy as np

    if dtype == "int8":
        return rng.integers(-8, 8, size).astype("int8")
    return rng.standard_normal(size, np.float32).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


def simulate_all(processes: int, names: list[str] | None = None) -> dict[str, dict[str, int]]:
    """Count on the simulated GPU, a process a case."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        return dict(pool.imap_unordered(simulate_case, names or list(COUNTED), chunksize=1))


def profile(work: Path) -> dict[str, dict[str, float]]:
    """Nsight Compute's shared-memory counters of every counted case."""
    asked = subprocess.run(
        ["ncu", "--query-metrics", "--chips", "gh100"], capture_output=True, text=True, check=False
    )
    known = [line.split()[0] for line in asked.stdout.splitlines() if line.strip()]
    metrics = [f"{name}.sum" for name in known if _COUNTER.fullmatch(name)]
    command = [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--kernel-name", "regex:main_kernel", "--metrics", ",".join(metrics),
        sys.executable, "-m", "benchmarks.gemm", "launch", "--work", str(work), *COUNTED,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ncu failed with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    quoted = "\n".join(line for line in done.stdout.splitlines() if line.startswith('"'))
    rows = [row for row in csv.DictReader(io.StringIO(quoted)) if row["ID"].isdigit()]
    if len(rows) != len(COUNTED):
        raise RuntimeError(f"ncu saw {len(rows)} kernels where {len(COUNTED)} were launched.")
    return {
        name: {_short(metric): float(row[metric].replace(",", "")) for metric in metrics}
        for name, row in zip(COUNTED, rows, strict=True)
    }


def _short(metric: str) -> str:
    """``ldsm`` for wavefronts of that operation, ``ldsm conflicts`` for conflicts, ``all ...``."""
    operation = found[1] if (found := re.search(r"_op_(\w+)\.sum", metric)) else "all"
    return operation if "wavefronts" in metric else f"{operation} conflicts"


def table(simulated: dict[str, dict[str, int]], ncu: dict[str, dict[str, float]]) -> str:
    """Line up, for each case and operation, counted, simulated and conflict-free wavefronts."""
    head = ("counted", "simulated", "conflict-free")
    lines = [f"{'case':38} {'operation':9} {head[0]:>9} {head[1]:>9} {head[2]:>13}  equal"]
    pairs = [(name, operation) for name in COUNTED if name in simulated for operation in OPERATIONS]
    equal = different = 0
    for name, operation in pairs:
        count, real = simulated[name].get(operation, 0), ncu.get(name, {}).get(operation)
        if not count and not real:
            continue
        verdict = "" if real is None else "yes" if real == count else "NO"
        equal, different = equal + (verdict == "yes"), different + (verdict == "NO")
        shown = "-" if real is None else f"{real:,.0f}"
        least = simulated[name].get(f"{operation} least", 0)
        lines.append(f"{name:38} {operation:9} {shown:>9} {count:9,} {least:13,}  {verdict}")
    if ncu:
        lines.append(f"{equal} of {equal + different} counts are equal")
    return "\n".join(lines)


def differing(
    simulated: dict[str, dict[str, int]], ncu: dict[str, dict[str, float]]
) -> list[tuple[str, str]]:
    """Cases and operations that both counted, and not alike."""
    return [
        (name, operation)
        for name in simulated
        for operation in OPERATIONS
        if operation in ncu.get(name, {})
        and ncu[name][operation] != simulated[name].get(operation, 0)
    ]
