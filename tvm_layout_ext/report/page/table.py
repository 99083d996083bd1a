"""The table of a workload's trials, as rows of cells that sort by number or by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...tune.records.log import Record
from ..text import number

__all__ = ["Column", "Row", "Table", "TableCell", "trial_table"]


@dataclass(frozen=True)
class TableCell:
    """One cell.

    Attributes
    ----------
    text : str
        As shown.
    key : int, float, str or None
        By what it is sorted; None, for an empty one, comes last either way.
    detail : str
        What to tell where one points at it.
    """

    text: str
    key: float | str | None
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """A heading.

    Attributes
    ----------
    name, detail : str
    numeric : bool
        Whether all its keys are numbers.
    """

    name: str
    detail: str
    numeric: bool


@dataclass(frozen=True)
class Row:
    """One trial; ``kind`` is ``winner``, ``default``, ``failed`` or empty."""

    kind: str
    cells: list[TableCell]


@dataclass(frozen=True)
class Table:
    """Columns, and a row a trial."""

    columns: list[Column]
    rows: list[Row]


@dataclass(frozen=True)
class _Source:
    """How a column is read off a record."""

    name: str
    detail: str
    value: Callable[[Record], Any]
    show: Callable[[Any], str] = str


def trial_table(records: Sequence[Record], winner: Record | None) -> Table:
    """Table trials of one workload in the order given; columns that are empty are left out.

    Parameters
    ----------
    records : sequence of Record
    winner : Record or None
        Whose row is marked, and whose score others are divided by.
    """
    best = winner.score if winner else None
    sources = [
        *_score_columns(records[0].measured, best),
        *_kernel_columns(),
        *_knob_columns(records),
        *_last_columns(),
    ]
    keyed = [[source.value(record) for record in records] for source in sources]
    kept = [
        (source, keys)
        for source, keys in zip(sources, keyed, strict=True)
        if any(key is not None for key in keys)
    ]
    columns = [Column(source.name, source.detail, _numeric(keys)) for source, keys in kept]
    rows = [
        Row(_kind(record, winner), [_cell(source, keys[i], record) for source, keys in kept])
        for i, record in enumerate(records)
    ]
    return Table(columns, rows)


def _numeric(keys: Sequence[Any]) -> bool:
    return all(isinstance(key, int | float) for key in keys if key is not None)


def _kind(record: Record, winner: Record | None) -> str:
    if record.score is None:
        return "failed"
    if winner is not None and record.id == winner.id:
        return "winner"
    return "default" if record.trial == 0 else ""


def _cell(source: _Source, key: Any, record: Record) -> TableCell:
    detail = f"{source.detail}; trial {record.trial}, {record.time}" if source.detail else ""
    return TableCell("" if key is None else source.show(key), key, detail)


def _score_columns(measured: bool, best: float | None) -> list[_Source]:
    def of_best(record: Record) -> float | None:
        return record.score / best if best and record.score is not None else None

    trial = _Source("trial", "number in its run; 0 is the default schedule", lambda r: r.trial)
    ratio = _Source("of best", "score over the winner's", of_best, lambda v: f"{v:.3f}")
    if not measured:
        cost = _Source(
            "modelled cost", "modelled cycles: a model, not a time", lambda r: r.score, number
        )
        return [trial, cost, ratio]
    return [
        trial,
        _Source("median us", "median of the repeats", _microseconds("median"), _figures),
        ratio,
        _Source("spread us", "distance of the quartiles", _microseconds("spread"), _figures),
        _Source("GB/s", "least traffic over the median", lambda r: r.gbps or None, _figures),
        _Source("TFLOPS", "work over the median", lambda r: r.tflops or None, _figures),
        _Source("MHz", "clock of the multiprocessors", lambda r: r.clock_mhz, _figures),
        _Source(
            "modelled us",
            "forecast of the closed-form model, no measurement",
            _microseconds("modelled_seconds"),
            _figures,
        ),
    ]


def _microseconds(name: str) -> Callable[[Record], float | None]:
    def read(record: Record) -> float | None:
        value = getattr(record, name) if record.score is not None else None
        return None if value is None else value * 1e6

    return read


def _figures(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def _kernel_columns() -> list[_Source]:
    return [
        _Source("registers", "of a thread, by ptxas", lambda r: r.registers),
        _Source("spilled", "bytes of a thread in local memory", lambda r: r.spill_bytes),
        _Source("shared bytes", "of a block", lambda r: r.smem_bytes, number),
        _Source(
            "conflicts", "bank conflicts of the simulated GPU", _model("bank_conflicts"), number
        ),
        _Source(
            "sectors / request",
            "of global memory, by the simulated GPU",
            _model("sectors_per_request"),
            number,
        ),
    ]


def _model(name: str) -> Callable[[Record], float | None]:
    return lambda record: (record.conflict_model or {}).get(name)


def _knob_columns(records: Sequence[Record]) -> list[_Source]:
    names = dict.fromkeys(name for record in records for name in record.config)
    return [_Source(name, f"knob {name}", _knob(name)) for name in names]


def _knob(name: str) -> Callable[[Record], Any]:
    return lambda record: record.config.get(name)


def _last_columns() -> list[_Source]:
    def reason(record: Record) -> str | None:
        return f"{record.error_class}: {record.error_text}" if record.score is None else None

    return [
        _Source("verified", "compared with the reference on", lambda r: r.verified_on),
        _Source("server", "RPC server that ran it", lambda r: r.server),
        _Source("failed with", "", reason),
        _Source("id", "of the record", lambda r: r.id),
    ]
