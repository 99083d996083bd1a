"""The simulated GPU: runs a device program on NumPy arrays, counts and checks its accesses.

``docs/simulator.md`` describes how. :func:`tvm_layout_ext.simulate` lowers a schedule and runs it
here; nothing here knows of schedules and passes.
"""

from .report import AccessCounts, Hazard, Report, Site
from .run import run_program

__all__ = ["AccessCounts", "Hazard", "Report", "Site", "run_program"]
