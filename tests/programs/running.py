"""Programs run on the simulated GPU, and their results compared with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_layout_ext.simulate import Report, simulate

_OPTIONS = ("args", "target", "grid_sample", "seed", "progress")


def gives(source: Any, *arrays: Any, **named: Any) -> Report:
    """Simulate: each output that is named equals its value exactly, and there is no hazard."""
    options = {name: named.pop(name) for name in _OPTIONS if name in named}
    report = simulate(source, *arrays, **options)
    for name, value in named.items():
        np.testing.assert_array_equal(report.outputs[name], value)
    assert report.hazards == []
    return report


def kinds(report: Report) -> set[str]:
    """Kinds of the hazards that a simulation found."""
    return {hazard.kind for hazard in report.hazards}
