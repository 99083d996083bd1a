"""Tuning records: their final JSON form, and a log that many writers may append to at once.

A log is a folder of ``*.jsonl`` files, one record a line. New records go to ``trials.jsonl``.
A later record with the id of an earlier one takes its place: that is how a winner's
verification is added to an append-only file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import RecordError
from .cost import Counters
from .knobs import Value
from .workload import Workload

__all__ = ["SCHEMA_VERSION", "Log", "Reading", "Record"]

SCHEMA_VERSION = 1
_FILE = "trials.jsonl"


@dataclass(frozen=True)
class Record:
    """One trial.

    Attributes
    ----------
    time : str
        When it ended, ISO 8601 in UTC.
    runner : str
        ``"cuda"`` (measured) or ``"simulate"`` (modelled).
    device, arch : str
        The GPU's name (``"simulated GPU"`` for the simulator), and ptxas's word for it.
    versions : dict
        Of tvm, tvm_ffi, package, cuda, driver and python; None where there is none.
    workload : Workload
    trial : int
        Number in the seed's order; 0 is the default schedule.
    config : dict
        One value a knob.
    status : str
        ``"ok"`` or ``"error"``.
    times : tuple of float
        Seconds of each repeat; empty for the simulator.
    median, spread : float, optional
        Seconds: median of ``times``, and the distance between its quartiles.
    tflops, gbps : float, optional
        Work and least traffic over the median.
    smem_bytes : int, optional
        Shared memory of a block.
    registers : int, optional
        Of a thread; None if unknown.
    conflict_model : dict, optional
        The simulated GPU's counters for the whole grid, and the modelled cost made of them.
    verified_on : str, optional
        The workload on which the output was compared with NumPy's and found right; smaller than
        the record's own where simulating all of that takes too long.
    error_class, error_text : str, optional
        What went wrong.
    seed : int
    git_id : str, optional
        The source tree that ran it.
    """

    time: str
    runner: str
    device: str
    arch: str
    versions: dict[str, str | None]
    workload: Workload
    trial: int
    config: dict[str, Value]
    status: str
    seed: int
    times: tuple[float, ...] = ()
    median: float | None = None
    spread: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    smem_bytes: int | None = None
    registers: int | None = None
    conflict_model: dict[str, float] | None = None
    verified_on: str | None = None
    error_class: str | None = None
    error_text: str | None = None
    git_id: str | None = None
    id: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.status not in ("ok", "error"):
            raise ValueError(f"status {self.status!r} is neither ok nor error")
        if self.runner not in ("cuda", "simulate"):
            raise ValueError(f"runner {self.runner!r} is neither cuda nor simulate")
        object.__setattr__(self, "id", self._make_id())

    def _make_id(self) -> str:
        key = [*self.group, sorted(self.config.items())]
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]

    @property
    def group(self) -> tuple[Any, ...]:
        """What must agree before a record stands for a trial to come."""
        versions = tuple(self.versions.get(name) for name in ("tvm", "package"))
        return (self.workload.hash, self.runner, self.device, self.arch, *versions, self.seed)

    @property
    def score(self) -> float | None:
        """Seconds if measured, modelled cycles if simulated, None if the trial failed."""
        if self.status != "ok":
            return None
        return self.median if self.runner == "cuda" else (self.conflict_model or {}).get("cost")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, ``schema_version`` first; inverse of :meth:`from_json`."""
        data = asdict(self) | {"workload": self.workload.to_json(), "times": list(self.times)}
        return {"schema_version": SCHEMA_VERSION, "id": data.pop("id"), **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Read :meth:`to_json`'s form; KeyError, TypeError or ValueError if it is not that."""
        known = {f.name for f in fields(cls)} - {"id"}
        values = {name: data[name] for name in known}
        values["workload"] = Workload.from_json(values["workload"])
        values["times"] = tuple(map(float, values["times"]))
        for name, kind in _KINDS.items():
            if not isinstance(values[name], kind):
                raise ValueError(f"{name} is {values[name]!r}")
        if values["conflict_model"] is not None:
            _check_model(values["conflict_model"])
        return cls(**values)


def _check_model(model: Any) -> None:
    """Raise unless all counters are there, and all numbers; KeyError, TypeError or ValueError."""
    Counters.from_json(model)
    if not all(isinstance(model[name], int | float) for name in ("cost", "sectors_per_request")):
        raise ValueError(f"conflict_model is {model!r}")


_KINDS: dict[str, type] = {
    "time": str,
    "device": str,
    "arch": str,
    "versions": dict,
    "config": dict,
    "trial": int,
    "seed": int,
}


@dataclass(frozen=True)
class Reading:
    """What a log held.

    Attributes
    ----------
    records : list of Record
        The last of each id, in the order in which the ids first appeared.
    corrupt : int
        Lines that are no record.
    foreign : int
        Records of another schema version.
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
            _write_whole(handle, line)
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


def _write_whole(handle: int, line: bytes) -> None:
    """Write a line at the end of a locked file, or leave the file as it was."""
    size = os.fstat(handle).st_size
    # A writer that was killed half-way leaves a line without its end; it must not swallow ours.
    if size and os.pread(handle, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        if os.write(handle, line) < len(line):
            raise OSError(28, "short write")
    except OSError:
        os.ftruncate(handle, size)
        raise
