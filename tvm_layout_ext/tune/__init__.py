"""Tuning: knobs, the legal space, runners, records, and the search."""

from __future__ import annotations

from .apply import apply_best
from .archive import archive
from .context import ApplyBest
from .database import Database
from .export import export
from .generic import operator_of
from .knobs import Knob, knob
from .module import tune_module
from .operator import Operator, find_operator, known_operators, register_operator
from .programs import Programs
from .records import Log, Record
from .search import Result, tune

__all__ = [
    "ApplyBest",
    "Database",
    "Knob",
    "Log",
    "Operator",
    "Programs",
    "Record",
    "Result",
    "apply_best",
    "archive",
    "export",
    "find_operator",
    "knob",
    "known_operators",
    "operator_of",
    "register_operator",
    "tune",
    "tune_module",
]
