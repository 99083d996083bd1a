"""The report of a log: one page that needs nothing but itself, and its curves as PNG."""

from __future__ import annotations

from .plots import write_plots
from .render import render_page
from .view import Workload, workloads

__all__ = ["Workload", "render_page", "workloads", "write_plots"]
