"""Tuning: knobs, the legal space, runners, records, and the search."""

from __future__ import annotations

from .apply.apply import apply_best
from .apply.context import ApplyBest
from .apply.module import tune_module
from .apply.programs import Programs
from .export.export import export
from .records.database import Database
from .records.log import Log, Record
from .records.records import archive
from .search.tune import Result, tune
from .space.knobs import Knob, knob
from .space.operator import (
    Operator,
    find_operator,
    known_operators,
    operator_of,
    register_operator,
)

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
