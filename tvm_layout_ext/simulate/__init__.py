"""The simulated GPU."""

from .report import Access, Hazard, Report, Site
from .run import simulate

__all__ = ["Access", "Hazard", "Report", "Site", "simulate"]
