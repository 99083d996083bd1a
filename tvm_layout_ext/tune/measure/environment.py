"""Facts about the machine and the software that go into every record."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from ..._compat import has_gpu, tvm_version
from ..._version import __version__

SIMULATED_DEVICE = "simulated GPU"
#: Names the commit where the source tree comes without its history, as in a container.
GIT_VARIABLE = "TVM_LAYOUT_EXT_GIT_ID"
_DRIVER = ("--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def now() -> str:
    """The time in UTC, ISO 8601, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = _QUOTA.read_text().split()
        return max(1, min(allowed or 1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        # No quota of control groups, or "max".
        return allowed or 1


def cuda_device() -> str:
    """Name of the first GPU, e.g. ``NVIDIA H200``."""
    import tvm

    return str(tvm.cuda(0).device_name)


@lru_cache(maxsize=1)
def versions() -> dict[str, str | None]:
    """Versions of everything that shapes a result; None where there is none."""
    return {
        "tvm": tvm_version(),
        "tvm_ffi": metadata.version("apache-tvm-ffi"),
        "package": __version__,
        "cuda": _cuda(),
        "driver": _first_line(["nvidia-smi", *_DRIVER]),
        "python": platform.python_version(),
    }


def code_versions() -> tuple[str, str]:
    """Of TVM and of this package, which decide what a schedule becomes."""
    known = versions()
    return str(known["tvm"]), str(known["package"])


def _cuda() -> str | None:
    """Version of the CUDA runtime that TVM uses, e.g. ``13.0``; None without a GPU."""
    if not has_gpu():
        return None
    import tvm

    number = int(tvm.cuda(0).api_version)
    return f"{number // 1000}.{number % 1000 // 10}"


def clock_mhz() -> int | None:
    """Clock of the first visible GPU's multiprocessors now."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    query = ["--query-gpu=clocks.sm", "--format=csv,noheader,nounits", f"--id={visible}"]
    line = _first_line(["nvidia-smi", *query]) or ""
    return int(line) if line.strip().isdigit() else None


@lru_cache(maxsize=1)
def git_id() -> str | None:
    """Commit of the source tree this package runs from, with ``-dirty``; None if installed."""
    named = os.environ.get(GIT_VARIABLE)
    if named:
        return named
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    return _first_line(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"])


def _first_line(command: list[str]) -> str | None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip().splitlines()[0] if ran.stdout.strip() else None
