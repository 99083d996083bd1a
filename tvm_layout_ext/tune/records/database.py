"""The database of schedules beside a log: two files in the format of TVM's ``JSONDatabase``.

``database_workload.json`` holds a computation a line, ``database_tuning_record.json`` a trial a
line: the number of its computation's line, its trace, its seconds and its target. TVM's own writer
and reader leave three things open, all of which happen to a tuner:

* Writers know nothing of each other, so that two of them give a number to different computations.
  Here every write looks up the number again, under a lock on ``database.lock``.
* One line that is no record ends TVM's reader by an exception, and an empty line, ``null`` or
  ``{}`` by a segmentation fault. :meth:`Database.read` skips what it cannot use and counts it, and
  :meth:`Database.mend` moves it to ``database_skipped.txt``, so that TVM can read the rest.
* A query asks neither for the target nor for versions: see :mod:`.selection`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ...errors import RecordError
from .files import append_whole, locked, replace_file
from .origin import Origin, seal_of, tagged
from .stored import StoredReading, entry_of, parse, parse_workload, placeholder, seal

__all__ = ["RECORDS", "WORKLOADS", "Database"]

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
_LOCK, _SKIPPED = "database.lock", "database_skipped.txt"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Database:
    """A folder with the two files.

    Parameters
    ----------
    folder : str or os.PathLike
        A log's folder; made by :meth:`prepare` or the first :meth:`append`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._workloads = _Table(self.folder / WORKLOADS)
        self._records = _Table(self.folder / RECORDS)
        #: Line of each computation by structural hash; traces already stored, with their tags.
        self._lines: dict[int, list[tuple[int, tvm.IRModule]]] = {}
        self._known: set[str] = set()

    def prepare(self) -> None:
        """Make the folder and both files, and mend what a killed writer left.

        Raises
        ------
        RecordError
            If they cannot be made or written.
        """
        with self._guarded("Cannot write a database in"):
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in (WORKLOADS, RECORDS):
                os.close(os.open(self.folder / name, _FLAGS, 0o644))
        self.mend()

    def append(
        self,
        workload: tvm.IRModule,
        trace: s_tir.Trace,
        run_secs: Sequence[float],
        target: Target,
        origin: Origin,
    ) -> bool:
        """Add one trial: wholly or not at all, whoever else is writing.

        Parameters
        ----------
        workload : tvm.IRModule
            The computation before any schedule, one function named ``main``.
        trace : tvm.s_tir.Trace
            Of its schedule.
        run_secs : sequence of float
            Seconds of each repeat, or one modelled figure.
        target : tvm.target.Target
        origin : Origin
            Written into the target's tag.

        Returns
        -------
        bool
            False if the same trace for the same target and origin is there already; a run that is
            resumed may so add all it knows, and no record is doubled.

        Raises
        ------
        RecordError
            If it could not be written, e.g. because the disk is full; both files are then as they
            were before.
        """
        record = entry_of(
            ms.database.TuningRecord(
                trace,
                ms.database.Workload(workload),
                [float(one) for one in run_secs],
                tagged(target, origin),
                ms.arg_info.ArgInfo.from_entry_func(workload, remove_preproc=True),
            )
        )
        if not all(math.isfinite(one) for one in run_secs):
            raise RecordError(f"Seconds {list(run_secs)} are not all finite; nothing was written.")
        with self._guarded("A record was not written to", "; it is as it was before"):
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
            self._records.append([line, seal(entry, record)])
        except OSError:
            self._workloads.truncate(before)
            raise
        self._catch_up()
        return True

    def _catch_up(self) -> None:
        """Take in what was written since the last time, by whomever."""
        if self._workloads.replaced() or self._records.replaced():
            for table in (self._workloads, self._records):
                table.rewind()
            self._lines, self._known = {}, set()
        for number, text in self._workloads.fresh():
            if (module := parse_workload(text)) is not None:
                self._lines.setdefault(_hash(module), []).append((number, module))
        for _, text in self._records.fresh():
            with suppress(ValueError, TypeError, IndexError, RecursionError):
                line, record = json.loads(text)
                self._known.add(_key(line, record))

    def _line_of(self, workload: tvm.IRModule) -> int | None:
        alike = self._lines.get(_hash(workload), ())
        return next((n for n, one in alike if tvm_ffi.structural_equal(one, workload)), None)

    def read(self) -> StoredReading:
        """Read all records; lines that are none are skipped and counted.

        Raises
        ------
        RecordError
            If there is no database.
        """
        with self._guarded("Cannot read a database in"):
            if not self._workloads.path.exists():
                raise FileNotFoundError(errno.ENOENT, "no database")
            return parse(self._workloads.lines(), self._records.lines())

    def mend(self, replay: bool = False) -> int:
        """Make both files such that TVM's reader takes them; return how many lines were moved.

        A computation that is broken is replaced by an empty module, so that the numbers of the
        others stay; records that are broken, or of a broken computation, are taken out. Both are
        kept in ``database_skipped.txt``. Two lines with one computation stay as they are.

        Parameters
        ----------
        replay : bool
            Also replay every trace, as TVM's reader does (about 10 ms each).

        Raises
        ------
        RecordError
            If the files cannot be read or written; they are then as they were.
        """
        guarded = self._guarded("Cannot mend the database in", "; it is as it was before")
        with guarded, locked(self.folder / _LOCK):
            workloads, records = self._workloads.lines(), self._records.lines()
            reading = parse(workloads, records)
            bad = set(reading.broken_workloads)
            kept = [one.line for one in reading.records if not replay or one.replays()]
            lost = sorted(set(range(len(records))) - set(kept))
            moved = [workloads[i] for i in sorted(bad)] + [records[i] for i in lost]
            if moved:
                with (self.folder / _SKIPPED).open("ab") as file:
                    file.write(_joined(moved))
                # Numbers stay, so that a reader between the two replacements sees nothing wrong.
                fresh = [placeholder(i) if i in bad else t for i, t in enumerate(workloads)]
                replace_file(self._workloads.path, _joined(fresh))
                replace_file(self._records.path, _joined([records[i] for i in kept]))
            return len(moved)

    def tvm(self) -> ms.database.JSONDatabase:
        """Open it with TVM's own reader, after :meth:`mend`."""
        self.mend(replay=True)
        return ms.database.JSONDatabase(work_dir=str(self.folder))

    @contextmanager
    def _guarded(self, what: str, after: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RecordError(
                f"{what} {self.folder}: {os.strerror(error.errno or 0)}{after}."
            ) from None


class _Table:
    """One of the files, and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rewind()

    def rewind(self) -> None:
        """Forget what was read."""
        self._inode, self._offset, self._count = 0, 0, 0

    def size(self) -> int:
        """Bytes; 0 if there is no file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def lines(self) -> list[bytes]:
        """All lines; no file is no line."""
        return _split(self.path.read_bytes()) if self.path.exists() else []

    def replaced(self) -> bool:
        """Whether the file is another one than that read so far, or shorter."""
        if not self._offset:
            return False
        return self.size() < self._offset or self.path.stat().st_ino != self._inode

    def fresh(self) -> Iterator[tuple[int, bytes]]:
        """Lines that were not read yet, with their numbers; the last one ends if it is whole."""
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            file.seek(self._offset)
            text = _without_torn_end(file, file.read())
            self._inode, self._offset = os.fstat(file.fileno()).st_ino, file.tell()
        for line in _split(text):
            yield self._count, line
            self._count += 1

    def append(self, entry: Any) -> int:
        """Add a line after :meth:`fresh` was read; return its number."""
        line = json.dumps(entry, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        handle = os.open(self.path, _FLAGS, 0o644)
        try:
            append_whole(handle, line)
        finally:
            os.close(handle)
        return self._count

    def truncate(self, size: int) -> None:
        """Cut what was appended off again."""
        if self.path.exists():
            os.truncate(self.path, size)


def _without_torn_end(file: Any, text: bytes) -> bytes:
    """Close the last line if it is whole JSON, else cut it off: its writer was killed.

    Nobody names a torn computation, as records are written after their computation.
    """
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


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _hash(module: tvm.IRModule) -> int:
    return int(tvm_ffi.structural_hash(module))


def _key(line: int, record: Sequence[Any]) -> str:
    """What makes two records one: computation, trace and target, whatever their seconds."""
    target = dict(record[2] or {})
    target["tag"], _ = seal_of(str(target.get("tag", "")))
    text = json.dumps([line, record[0], target], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
