"""Shared-memory wavefronts of products: Nsight Compute beside the simulated GPU."""

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

__all__ = ["profile", "simulate_all", "simulate_case", "table"]

#: Nsight Compute's operation for each kind of access of the simulated GPU.
_OPERATIONS = {
    "load": "ld", "store": "st", "ldmatrix": "ldsm", "stmatrix": "stsm", "cp.async": "ldgsts",
}  # fmt: skip
_COUNTER = re.compile(
    r"smsp__sass_l1tex_(data_pipe_lsu_wavefronts|data_bank_conflicts_pipe_lsu)_mem_shared(_op_\w+)?"
)


def simulate_case(name: str) -> tuple[str, dict[str, int]]:
    """Wavefronts of each operation, and those over the least possible."""
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
            counts[operation] = counts.get(operation, 0) + access.wavefronts
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
    """One line a case: ``operation simulated/profiled`` where both count."""
    lines = []
    for name in COUNTED:
        if name not in simulated:
            continue
        real = ncu.get(name, {})
        cells = [
            f"{operation} {count:,}" + (f"/{real[operation]:,.0f}" if operation in real else "")
            for operation, count in sorted(simulated[name].items())
        ]
        rest = [f"{k} {v:,.0f}" for k, v in sorted(real.items()) if k not in simulated[name] and v]
        lines.append(f"{name:36} {'  '.join([*cells, *rest])}")
    return "\n".join(lines)
