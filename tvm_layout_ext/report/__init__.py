"""Reports: how a kernel uses memory, and what a run of the tuner found."""

from __future__ import annotations

from .explain import Explanation, explain

__all__ = ["Explanation", "explain"]
