"""TVM's database beside a log: schedules in two files, as TVM's own ``JSONDatabase`` has them.

``database_workload.json`` holds a computation a line, ``database_tuning_record.json`` a trial a
line: the number of its computation's line, its trace, its seconds and its target. Writers look
that number up under a lock, so that two of them agree on it; TVM's own do not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ...checks import path_of
from ...errors import RecordError
from .files import append_line, locked, refusing
from .log import Reading
from .tvm_record import (
    Provenance,
    TvmRecord,
    entry_of,
    parse,
    parse_workload,
    replay_errors,
    sealed,
    tag_of,
)

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
_LOCK = "database.lock"


class Database:
    """A log's folder with the two files, made by :meth:`prepare` or the first :meth:`append`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = path_of("A database", folder, RecordError)
        self._workloads = _Table(self.folder / WORKLOADS)
        self._records = _Table(self.folder / RECORDS)
        #: Line of each computation by structural hash; digests of the records that are there.
        self._lines: dict[int, list[tuple[int, tvm.IRModule]]] = {}
        self._known: set[str] = set()

    def prepare(self) -> None:
        """Make the folder and both files; RecordError if they cannot be made or written."""
        with refusing(f"Cannot write a database in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in (WORKLOADS, RECORDS):
                (self.folder / name).open("ab").close()
            with locked(self.folder / _LOCK):
                self._catch_up()

    def append(
        self,
        workload: tvm.IRModule,
        trace: s_tir.Trace,
        run_secs: Sequence[float],
        target: Target,
        provenance: Provenance,
    ) -> bool:
        """Add a trial; False if the same trace for the same target and provenance is there already.

        ``workload`` is the computation before any schedule; ``run_secs`` are of each repeat, or one
        modelled figure. RecordError if it cannot be written; the files are then as before.
        """
        record = entry_of(
            ms.database.TuningRecord(
                trace,
                ms.database.Workload(workload),
                [float(one) for one in run_secs],
                provenance.target(target),
                ms.arg_info.ArgInfo.from_entry_func(workload, remove_preproc=True),
            )
        )
        if not all(math.isfinite(one) for one in run_secs):
            raise RecordError(f"Seconds {list(run_secs)} are not all finite; nothing was written.")
        what = f"A record was not written to {self.folder}"
        with refusing(what, "; it is as it was before"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / _LOCK):
                return self._append(workload, record)

    def _append(self, workload: tvm.IRModule, record: list[Any]) -> bool:
        self._catch_up()
        line = self._line_of(workload)
        if line is not None and _key(line, record) in self._known:
            return False
        before = self._workloads.size()
        if line is None:
            line = self._workloads.append(ms.database.Workload(workload).as_json())
        entry = json.loads(self._workloads.lines()[line])
        try:
            self._records.append([line, sealed(entry, record)])
        except OSError:
            self._workloads.truncate(before)
            raise
        self._catch_up()
        return True

    def _catch_up(self) -> None:
        """Take in what was written since the last time, by whomever."""
        for number, text in self._workloads.fresh():
            if (module := parse_workload(text)) is not None:
                self._lines.setdefault(_hash(module), []).append((number, module))
        for _, text in self._records.fresh():
            with suppress(ValueError, TypeError, IndexError, RecursionError):
                line, record = json.loads(text)
                self._known.add(_key(line, record))

    def _line_of(self, workload: tvm.IRModule) -> int | None:
        """The line of a computation, also by its names: traces find blocks by theirs."""
        alike = self._lines.get(_hash(workload), ())
        return next((n for n, one in alike if _is_same(one, workload)), None)

    def read(self) -> Reading[TvmRecord]:
        """Read all records; broken lines are skipped and counted. RecordError if there is none."""
        with refusing(f"Cannot read a database in {self.folder}"):
            if not self._workloads.path.exists():
                raise FileNotFoundError(errno.ENOENT, "no database")
            return Reading(*parse(self._workloads.lines(), self._records.lines()))

    def tvm(self) -> ms.database.Database:
        """All that can be replayed (10 ms a record), as a database of TVM's own in memory."""
        database = ms.database.MemoryDatabase()
        for one in self.read().records:
            with suppress(*replay_errors):
                replayed = one.replayed()
                database.commit_workload(one.workload)
                database.commit_tuning_record(replayed)
        return database


class _Table:
    """One of the files, and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = self._count = 0

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def lines(self) -> list[bytes]:
        return _split(self.path.read_bytes()) if self.path.exists() else []

    def fresh(self) -> Iterator[tuple[int, bytes]]:
        """Lines that were not read yet, with their numbers; the last one ends if it is whole."""
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            file.seek(self._offset)
            text = _without_torn_end(file, file.read())
            self._offset = file.tell()
        for line in _split(text):
            yield self._count, line
            self._count += 1

    def append(self, entry: Any) -> int:
        """Add a line after :meth:`fresh` was read; return its number."""
        append_line(self.path, json.dumps(entry, allow_nan=False, separators=(",", ":")))
        return self._count

    def truncate(self, size: int) -> None:
        if self.path.exists():
            os.truncate(self.path, size)


def _without_torn_end(file: Any, text: bytes) -> bytes:
    """Close the last line if it is whole JSON, else cut it off: its writer was killed."""
    end = text.rfind(b"\n") + 1
    if torn := text[end:]:
        with suppress(ValueError):
            json.loads(torn)
            file.write(b"\n")
            return text + b"\n"
        file.truncate(file.tell() - len(torn))
        file.seek(0, os.SEEK_END)
    return text[:end]


def _split(text: bytes) -> list[bytes]:
    return text.split(b"\n")[:-1] if text.endswith(b"\n") else text.split(b"\n") if text else []


def _hash(module: tvm.IRModule) -> int:
    return int(tvm_ffi.structural_hash(module))


def _is_same(one: tvm.IRModule, other: tvm.IRModule) -> bool:
    return bool(tvm_ffi.structural_equal(one, other)) and one.script() == other.script()


def _key(line: int, record: Sequence[Any]) -> str:
    """What makes two records one: computation, trace and target, whatever their seconds."""
    target = dict(record[2] or {})
    target["tag"], _ = tag_of(str(target.get("tag", "")))
    text = json.dumps([line, record[0], target], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
