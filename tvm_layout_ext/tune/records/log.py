"""A log of tuning records, to which many writers may append at once.

A log is a folder of ``*.jsonl`` files, one record a line. New records go to ``trials.jsonl``.
A later record with the id of an earlier one takes its place: that is how a winner's
verification is added to an append-only file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ...checks import path_of
from ...errors import RecordError
from .files import append_line, refusing
from .record import SCHEMA_VERSION, Record

_FILE = "trials.jsonl"

T = TypeVar("T")


@dataclass(frozen=True)
class Reading(Generic[T]):
    """Records, and lines that are none, or ``foreign``: of another schema version."""

    records: list[T]
    corrupt: int = 0
    foreign: int = 0

    @property
    def warning(self) -> str | None:
        """One sentence that counts what was skipped, or None."""
        parts = []
        if self.corrupt:
            parts.append(f"{self.corrupt} corrupt {'line' if self.corrupt == 1 else 'lines'}")
        if self.foreign:
            of = "record" if self.foreign == 1 else "records"
            parts.append(f"{self.foreign} {of} of a schema version other than {SCHEMA_VERSION}")
        return f"Skipped {' and '.join(parts)}." if parts else None


class Log:
    """A folder of records, made when needed; a ``*.jsonl`` file may also be read."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = path_of("A log", folder, RecordError)

    def prepare(self) -> None:
        """Make the folder, and raise RecordError if records cannot be written there."""
        with refusing(f"Cannot write a log in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / _FILE).open("ab").close()

    def append(self, record: Record) -> None:
        """Add one record, wholly or not at all; RecordError if it could not be written."""
        what = f"Record {record.id} was not written to {self.folder}"
        with refusing(what, "; the log is as it was before"):
            append_line(self.folder / _FILE, json.dumps(record.to_json(), allow_nan=False))

    def read(self) -> Reading[Record]:
        """Read all records; lines that are none are skipped and counted. RecordError if no log."""
        records: dict[str, Record] = {}
        corrupt = foreign = 0
        for line in self._lines():
            try:
                data = json.loads(line)
                if data["schema_version"] != SCHEMA_VERSION:
                    foreign += 1
                    continue
                record = Record.from_json(data)
                records[record.id] = record
            except Exception:  # as a line may hold anything
                corrupt += 1
        return Reading(list(records.values()), corrupt, foreign)

    def files(self) -> list[Path]:
        """The files of records, whether or not they are there if the log is none."""
        return sorted(self.folder.glob("*.jsonl")) if self.folder.is_dir() else [self.folder]

    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        """What changes when the log does: name, time and size of each file that is there."""
        with refusing(f"Cannot read a log at {self.folder}"):
            found = [(str(file), file.stat()) for file in self.files() if file.exists()]
        return tuple((name, facts.st_mtime_ns, facts.st_size) for name, facts in found)

    def _lines(self) -> Iterator[bytes]:
        with refusing(f"Cannot read a log at {self.folder}"):
            if self.folder.is_char_device():
                # Such as /dev/zero, which has no end.
                raise RecordError(f"Cannot read a log at {self.folder}: it is a device.")
            texts = [file.read_bytes() for file in self.files()]
        if not texts:
            raise RecordError(f"Folder {self.folder} holds no *.jsonl file of records.")
        return (line for text in texts for line in text.splitlines() if line.strip())
