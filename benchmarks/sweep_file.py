"""Sweeps: every legal candidate of a workload, measured once and kept, and searches replayed on it.

A sweep is a file of JSON lines: a header (:class:`Header`'s fields), then one line a candidate
(:class:`SweepEntry`'s). ``python -m benchmarks.sweep`` writes them on a GPU; wherever one is, what
a search would have found on that GPU can be told without it. In a compact file a configuration is
the list of its values, in the order of the header's knobs, and what is None is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from tvm_layout_ext.errors import LayoutExtError, RecordError
from tvm_layout_ext.tune.measure.backend import Measurement
from tvm_layout_ext.tune.records.files import replace_file
from tvm_layout_ext.tune.space.knobs import Config, describe
from tvm_layout_ext.tune.space.operator import Operator, Workload, find_operator
from tvm_layout_ext.tune.space.task import Task

__all__ = ["SWEEP_VERSION", "Header", "ReplayedError", "Sweep", "SweepEntry", "SweepRunner"]

SWEEP_VERSION = 1
#: Significant digits of a compact file's times; repeats differ from the third or fourth on.
DIGITS = 5


class ReplayedError(LayoutExtError):
    """A candidate that failed when the sweep was made."""


@dataclass(frozen=True)
class Header:
    """What a whole sweep was made with.

    Attributes
    ----------
    workload : Workload
    arch, device : str
        ptxas's name of the architecture, and the GPU's own.
    versions : dict
        As in a record.
    protocol : dict
        How the times were taken.
    knobs : dict
        Values of each knob, by name.
    legal : int
        Candidates worth trying; a sweep that was cut off has fewer.
    refused : dict
        How many combinations each rule left out.
    time : str
        When it began, ISO 8601 in UTC.
    clock_mhz : int, optional
        Of the GPU as it began.
    git_id : str, optional
        The source tree.
    continued : list of str
        When it was taken up again, each time.
    """

    workload: Workload
    arch: str
    device: str
    versions: dict[str, str | None]
    protocol: dict[str, Any]
    knobs: dict[str, list[int | str]]
    legal: int
    refused: dict[str, int]
    time: str
    clock_mhz: int | None = None
    git_id: str | None = None
    continued: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, the version first."""
        return {"sweep": SWEEP_VERSION, **asdict(self), "workload": self.workload.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Header:
        """Read :meth:`to_json`'s form; KeyError, TypeError or ValueError if it is not that."""
        if data["sweep"] != SWEEP_VERSION:
            raise ValueError(f"version {data['sweep']}")
        # Older files have not been continued.
        values = {f.name: data[f.name] for f in fields(cls) if f.name != "continued"}
        values["continued"] = list(data.get("continued", []))
        return cls(**(values | {"workload": Workload.from_json(data["workload"])}))


@dataclass(frozen=True)
class SweepEntry:
    """One candidate of a sweep.

    Attributes
    ----------
    index : int
        In the order of the legal space.
    config : dict
    times : list of float
        Seconds a launch, one number a repeat; empty if it failed.
    registers, spill_bytes, smem_bytes : int, optional
        ptxas's, and shared memory of a block.
    build_seconds : float, optional
        Of one core, from schedule to library.
    error : str, optional
        ``<ErrorClass>: <sentence>``.
    """

    index: int
    config: dict[str, Any]
    times: list[float] = field(default_factory=list)
    registers: int | None = None
    spill_bytes: int | None = None
    smem_bytes: int | None = None
    build_seconds: float | None = None
    error: str | None = None

    @property
    def seconds(self) -> float | None:
        """Median of the times; None if it failed."""
        return median(self.times) if self.times and self.error is None else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the median is for the reader's eye."""
        return asdict(self) | {"median": self.seconds}

    def to_compact(self, knobs: Sequence[str]) -> dict[str, Any]:
        """The same in half of the bytes: no names of knobs, times of :data:`DIGITS` digits."""
        times = [float(f"{time:.{DIGITS}g}") for time in self.times]
        values = asdict(self) | {"config": [self.config[name] for name in knobs], "times": times}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], knobs: Sequence[str] = ()) -> SweepEntry:
        """Read either form; KeyError, TypeError or ValueError if it is neither.

        Parameters
        ----------
        data : mapping
        knobs : sequence of str
            Names for a configuration that is a list of values.
        """
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        config = values["config"]
        named = config if isinstance(config, dict) else dict(zip(knobs, config, strict=True))
        return cls(**(values | {"config": named, "times": [float(t) for t in values["times"]]}))


@dataclass(frozen=True)
class Sweep:
    """A sweep as it was read.

    Attributes
    ----------
    header : Header
    entries : list of Entry
    corrupt : int
        Lines that are no entry, such as one that was cut off.
    """

    header: Header
    entries: list[SweepEntry]
    corrupt: int = 0

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Sweep:
        """Read a file.

        Raises
        ------
        RecordError
            If there is none, or its first line is not a header of this version.
        """
        try:
            lines = Path(path).read_text(errors="replace").splitlines()
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise RecordError(f"Cannot read a sweep at {path}: {reason}.") from None
        try:
            header = Header.from_json(json.loads(lines[0]))
        except (ValueError, KeyError, TypeError, IndexError):
            raise RecordError(
                f"{path} does not begin with a sweep's header of version {SWEEP_VERSION}."
            ) from None
        entries, corrupt = [], 0
        for line in filter(str.strip, lines[1:]):
            try:
                entries.append(SweepEntry.from_json(json.loads(line), list(header.knobs)))
            except (ValueError, KeyError, TypeError, AttributeError):
                corrupt += 1
        return cls(header, entries, corrupt)

    def write_compact(self, path: str | os.PathLike[str]) -> None:
        """Write a file that :meth:`read` reads, in as few bytes as stay readable.

        One that is there, maybe the only copy of hours of measuring, is replaced at once.

        Raises
        ------
        RecordError
            If it cannot be written; what was there is as it was.
        """
        knobs = list(self.header.knobs)
        lines = [self.header.to_json(), *(entry.to_compact(knobs) for entry in self.entries)]
        text = (json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        try:
            replace_file(Path(path), "".join(text).encode())
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise RecordError(f"Cannot write a sweep to {path}: {reason}.") from None

    @cached_property
    def best(self) -> SweepEntry:
        """The fastest candidate.

        Raises
        ------
        RecordError
            If none worked.
        """
        worked = [entry for entry in self.entries if entry.seconds is not None]
        if not worked:
            raise RecordError(f"None of the sweep's {len(self.entries)} candidates worked.")
        return min(worked, key=lambda entry: entry.seconds or 0.0)

    @property
    def operator(self) -> Operator:
        """The sweep's operator, with the knobs that it had when the sweep was made.

        Those that are newer have the value :attr:`Knob.before`, which is what was swept.
        """
        found = find_operator(self.header.workload.operator)
        swept = [one for one in found.knobs if one.name in self.header.knobs or one.before is None]
        return replace(found, knobs=tuple(swept))

    @cached_property
    def by_config(self) -> dict[tuple[Any, ...], SweepEntry]:
        """Entries by the values of their knobs, in the header's order."""
        return {self.key(entry.config): entry for entry in self.entries}

    def key(self, config: Config) -> tuple[Any, ...]:
        """A configuration's values in the order of the header's knobs."""
        return tuple(config.get(name) for name in self.header.knobs)


class SweepRunner:
    """Answers with what a sweep measured; a runner like the others, for ``tune(runner=...)``.

    Parameters
    ----------
    sweep : Sweep or path
    """

    name = "cuda"

    def __init__(self, sweep: Sweep | str | os.PathLike[str]) -> None:
        self.sweep = sweep if isinstance(sweep, Sweep) else Sweep.read(sweep)
        self.device = self.sweep.header.device

    def run(self, task: Task, config: Config) -> Measurement:
        """What the sweep measured of a candidate.

        Raises
        ------
        RecordError
            If the sweep is of another workload, or lacks the candidate.
        ReplayedError
            If the candidate failed.
        """
        header = self.sweep.header
        if task.workload != header.workload:
            raise RecordError(f"The sweep is of {header.workload}, not of {task.workload}.")
        entry = self.sweep.by_config.get(self.sweep.key(config))
        newer = [one for one in task.operator.knobs if one.name not in header.knobs]
        if entry is None or any(one.of(config) != one.before for one in newer):
            raise RecordError(f"The sweep of {header.workload} lacks {describe(config)}.")
        if entry.seconds is None:
            raise ReplayedError(entry.error or "It has no times.")
        return Measurement(
            smem_bytes=entry.smem_bytes or 0,
            conflict_model=None,
            times=tuple(entry.times),
            verified_on=str(header.workload),
            registers=entry.registers,
            spill_bytes=entry.spill_bytes,
            l2=header.protocol.get("l2"),
            protocol=dict(header.protocol),
            clock_mhz=header.clock_mhz,
        )

    def verify(self, task: Task, config: Config) -> str:
        """Every candidate with times had the right result when the sweep was made."""
        verified = self.run(task, config).verified_on
        assert verified is not None
        return verified
