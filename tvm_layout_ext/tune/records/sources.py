"""Open whatever holds records: a log's folder, its database, or a database of TVM's own."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tvm.s_tir import meta_schedule as ms

from ...errors import RecordError
from .database import RECORDS, Database
from .log import Log
from .origin import Origin
from .record import Record
from .stored import Stored, entry_of

__all__ = ["Opened", "Source", "open_source"]

Source: TypeAlias = "str | os.PathLike[str] | Log | Database | ms.database.Database"


@dataclass(frozen=True)
class Opened:
    """What was found.

    Attributes
    ----------
    name : str
        What to call it in a message.
    records : list of Record
        Trials as configurations.
    stored : list of Stored
        Trials as traces.
    corrupt : int
        Lines that are neither.
    """

    name: str
    records: list[Record] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    corrupt: int = 0


def open_source(source: Source) -> Opened:
    """Read all records of a source.

    A folder may hold JSON lines, a database, or both. Records of a database object of TVM's own
    that name no versions count as made by those that are installed, for it was made or loaded here.

    Raises
    ------
    RecordError
        If there is nothing, or something else.
    """
    if isinstance(source, ms.database.Database):
        return Opened("the database", stored=_of_tvm(source))
    if isinstance(source, Database):
        return _stored(source)
    if isinstance(source, Log):
        return _lines(source)
    if not isinstance(source, str | os.PathLike):  # callers may pass anything
        raise RecordError(
            f"Cannot read records from a {type(source).__name__}; a log's folder, a Log, a "
            "Database or a meta_schedule database is wanted."
        )
    folder = Path(source)
    has_database = (folder / RECORDS).exists()
    if not has_database:
        return _lines(Log(folder))
    traces = _stored(Database(folder))
    lines = _lines(Log(folder)) if any(folder.glob("*.jsonl")) else Opened(str(folder))
    corrupt = traces.corrupt + lines.corrupt
    return Opened(str(folder), lines.records, traces.stored, corrupt)


def _lines(log: Log) -> Opened:
    reading = log.read()
    return Opened(str(log.folder), reading.records, corrupt=reading.corrupt)


def _stored(database: Database) -> Opened:
    reading = database.read()
    return Opened(str(database.folder), stored=reading.records, corrupt=reading.corrupt)


def _of_tvm(database: ms.database.Database) -> list[Stored]:
    found = []
    for line, record in enumerate(database.get_all_tuning_records()):
        trace, seconds, target, arguments = entry_of(record)
        target = dict(target or {})
        if Origin.from_tag(str(target.get("tag", ""))) is None:
            target["tag"] = Origin.here("cuda", "").tag()
        found.append(Stored(line, record.workload.mod, [trace, seconds, target, arguments]))
    return found
