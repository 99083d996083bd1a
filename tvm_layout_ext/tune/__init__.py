"""Tuning: knobs, the legal space, runners, records, and the search."""

from __future__ import annotations

from .knobs import Knob, knob
from .operator import Operator, find_operator, known_operators
from .records import Log, Record
from .search import Result, tune

__all__ = [
    "Knob",
    "Log",
    "Operator",
    "Record",
    "Result",
    "find_operator",
    "knob",
    "known_operators",
    "tune",
]
