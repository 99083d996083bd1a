"""A log of tuning records, to which many writers may append at once.

A log is a folder of ``*.jsonl`` files, one record a line. New records go to ``trials.jsonl``.
A later record with the id of an earlier one takes its place: that is how a winner's
verification is added to an append-only file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import RecordError
from .files import append_whole
from .record import SCHEMA_VERSION, Record

_FILE = "trials.jsonl"


@dataclass(frozen=True)
class Reading:
    """What a log held: the last record of each id, and how many lines were skipped.

    ``corrupt`` lines are no record, ``foreign`` ones of another schema version.
    """

    records: list[Record]
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
    """A folder of records.

    Parameters
    ----------
    folder : str or os.PathLike
        Made by the first :meth:`append`; a ``*.jsonl`` file of records may also be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def prepare(self) -> None:
        """Make the folder, and raise RecordError if records cannot be written there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            os.close(self._open())
        except OSError as error:
            raise RecordError(
                f"Cannot write a log in {self.folder}: {os.strerror(error.errno or 0)}."
            ) from None

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        return os.open(self.folder / _FILE, flags, 0o644)

    def append(self, record: Record) -> None:
        """Add one record: wholly or not at all, whoever else is writing.

        Raises
        ------
        RecordError
            If the line could not be written, e.g. because the disk is full.
        """
        line = json.dumps(record.to_json(), allow_nan=False).encode() + b"\n"
        try:
            handle = self._open()
        except OSError as error:
            raise RecordError(
                f"Cannot write to the log {self.folder}: {os.strerror(error.errno or 0)}."
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            append_whole(handle, line)
        except OSError as error:
            raise RecordError(
                f"Record {record.id} was not written to {self.folder}: "
                f"{os.strerror(error.errno or 0)}; the log is as it was before."
            ) from None
        finally:
            os.close(handle)

    def read(self) -> Reading:
        """Read all records; lines that are none are skipped and counted.

        Raises
        ------
        RecordError
            If there is no log.
        """
        records: dict[str, Record] = {}
        corrupt = foreign = 0
        for line in self._lines():
            parsed = _parse(line)
            if isinstance(parsed, Record):
                records[parsed.id] = parsed
            elif parsed is _FOREIGN:
                foreign += 1
            else:
                corrupt += 1
        return Reading(list(records.values()), corrupt, foreign)

    def _lines(self) -> Iterator[bytes]:
        files = sorted(self.folder.glob("*.jsonl")) if self.folder.is_dir() else [self.folder]
        try:
            texts = [file.read_bytes() for file in files]
        except OSError as error:
            raise RecordError(
                f"Cannot read a log at {self.folder}: {os.strerror(error.errno or 0)}."
            ) from None
        if not texts:
            raise RecordError(f"Folder {self.folder} holds no *.jsonl file of records.")
        return (line for text in texts for line in text.splitlines() if line.strip())


_FOREIGN = object()


def _parse(line: bytes) -> Record | object | None:
    """A record, ``_FOREIGN`` if it is one of another schema version, None if it is none."""
    try:
        data = json.loads(line)
        if data["schema_version"] != SCHEMA_VERSION:
            return _FOREIGN
        return Record.from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
