"""The report of a log: one page that needs nothing but itself, and its curves as PNG."""

from __future__ import annotations

from .render import render_page, write_plots
from .view import WorkloadView, workloads

__all__ = ["WorkloadView", "render_page", "workloads", "write_plots"]
