"""The table of a workload's trials, whose columns sort by number or by word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..text import number
from ..tune.records.log import Record


@dataclass(frozen=True)
class Column:
    """A heading, what to tell where one points below it, and a cell for each trial.

    Cells are sorted by ``keys``: numbers or text, None for an empty cell, which comes last.
    """

    name: str
    detail: str
    keys: list[Any]
    texts: list[str]

    @property
    def numeric(self) -> bool:
        """Whether all its keys are numbers."""
        return all(isinstance(key, int | float) for key in self.keys if key is not None)


@dataclass(frozen=True)
class Table:
    """Columns, and of each trial its kind (``winner``, ``default``, ``failed``, empty) and when."""

    columns: list[Column]
    rows: list[tuple[str, str]]


def trial_table(records: Sequence[Record], winner: Record | None) -> Table:
    """Table trials of one workload in the order given; columns that are empty are left out.

    The winner's row is marked, and others' scores are divided by the winner's.
    """
    columns = []
    for name, detail, value, show in _sources(records, winner.score if winner else None):
        keys = [value(record) for record in records]
        if any(key is not None for key in keys):
            texts = ["" if key is None else show(key) for key in keys]
            columns.append(Column(name, detail, keys, texts))
    rows = [(_kind(r, winner), f"trial {r.trial}, {r.time}") for r in records]
    return Table(columns, rows)


def _kind(record: Record, winner: Record | None) -> str:
    if record.score is None:
        return "failed"
    if winner is not None and record.id == winner.id:
        return "winner"
    return "default" if record.trial == 0 else ""


#: Name, detail, what a record has there, and its text.
_Source = tuple[str, str, Callable[[Record], Any], Callable[[Any], str]]


def _sources(records: Sequence[Record], best: float | None) -> Iterator[_Source]:
    yield "trial", "number in its run; 0 is the default schedule", lambda r: r.trial, str
    yield from (_measured if records[0].measured else _modelled)(best)
    yield "registers", "of a thread, by ptxas", lambda r: r.registers, str
    yield "spilled", "bytes of a thread in local memory", lambda r: r.spill_bytes, str
    yield "shared bytes", "of a block", lambda r: r.smem_bytes, number
    yield "conflicts", "bank conflicts of the simulated GPU", _counter("bank_conflicts"), number
    sectors = _counter("sectors_per_request")
    yield "sectors / request", "of global memory, by the simulated GPU", sectors, number
    for knob in dict.fromkeys(name for record in records for name in record.config):
        yield knob, f"knob {knob}", _knob(knob), str
    yield "verified", "compared with the reference", lambda r: r.verified_on and "yes", str
    yield "server", "RPC server that ran it", lambda r: r.server, str
    yield "failed with", "", _reason, str
    yield "id", "of the record", lambda r: r.id, str


def _modelled(best: float | None) -> Iterator[_Source]:
    yield "modelled cost", "modelled cycles: a model, not a time", lambda r: r.score, number
    yield _of_best(best)


def _measured(best: float | None) -> Iterator[_Source]:
    yield "median us", "median of the repeats", _microseconds("median"), _figures
    yield _of_best(best)
    yield "spread us", "distance of the quartiles", _microseconds("spread"), _figures
    yield "GB/s", "least traffic over the median", lambda r: r.gbps or None, _figures
    yield "TFLOPS", "work over the median", lambda r: r.tflops or None, _figures
    yield "MHz", "clock of the multiprocessors", lambda r: r.clock_mhz, _figures


def _of_best(best: float | None) -> _Source:
    def ratio(record: Record) -> float | None:
        return record.score / best if best and record.score is not None else None

    return "of best", "score over the winner's", ratio, "{:.3f}".format


def _microseconds(name: str) -> Callable[[Record], float | None]:
    def read(record: Record) -> float | None:
        value = getattr(record, name) if record.score is not None else None
        return None if value is None else value * 1e6

    return read


def _figures(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def _counter(name: str) -> Callable[[Record], float | None]:
    return lambda record: (record.conflict_model or {}).get(name)


def _knob(name: str) -> Callable[[Record], Any]:
    return lambda record: record.config.get(name)


def _reason(record: Record) -> str | None:
    return f"{record.error_class}: {record.error_text}" if record.score is None else None
