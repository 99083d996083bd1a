"""What tests of ``auto_coalesce`` share: values to move, and counts of what moved them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_layout_ext.simulate import Report


def numbers(shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    """Whole numbers that every type holds, so that results can be compared exactly."""
    return np.random.default_rng(0).integers(-100, 100, tuple(shape)).astype(dtype)


def sectors(report: Report, buffer: str) -> int:
    """Sectors of 32 bytes of all requests of a buffer, loads and stores."""
    return sum(access.sectors for access in report.accesses if access.buffer == buffer)
