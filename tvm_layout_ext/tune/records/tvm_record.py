"""A line of TVM's tuning database, taken apart with care: TVM's parsers crash on some.

An empty line, ``null``, ``{}``, or a ``null`` deep inside a trace end the process by a segmentation
fault. So records carry a digest, and a line is handed to TVM only if it is as it was written. What
others wrote into the file is read by TVM's own ``JSONDatabase``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..measure.environment import code_versions
from ..space.functions import bare, same_function
from .record import MODELLED, Record

#: TVM's mark of a trial that failed; such a record says nothing of a schedule.
_FAILED_SECONDS = 1e10
#: What TVM raises for a record that it cannot read or replay.
replay_errors = (RuntimeError, ValueError, TypeError, KeyError, IndexError)
_PREFIX, _BETWEEN, _IS = "layout_ext", "; ", "="
_SEAL = f"{_BETWEEN}sha256{_IS}"
#: A line of the workload file: a hash, and a module in base64.
_Workload = list[str]
#: Trace, seconds, target and argument types.
_Entry = list[Any]


@dataclass(frozen=True)
class Provenance:
    """What made a record: versions of TVM and of this package, the runner and the GPU's name.

    TVM writes a target's ``tag`` down and asks nothing of it, so that is where they are.
    """

    tvm: str
    package: str
    runner: str
    device: str

    @classmethod
    def here(cls, runner: str, device: str) -> Provenance:
        """What this process makes."""
        return cls(*code_versions(), runner, device)

    @classmethod
    def of(cls, record: Record) -> Provenance:
        """What made a record of the log."""
        tvm_version, package = map(str, record.code_versions)
        return cls(tvm_version, package, record.runner, record.device)

    @property
    def versions(self) -> tuple[str, str]:
        """Of TVM and of this package."""
        return self.tvm, self.package

    @property
    def measured(self) -> bool:
        """Whether its seconds are times, not a model's."""
        return self.runner != MODELLED

    def tag(self) -> str:
        """One line of text; inverse of :meth:`from_tag`."""
        return _BETWEEN.join((_PREFIX, *(f"{name}{_IS}{one}" for name, one in vars(self).items())))

    @classmethod
    def from_tag(cls, tag: str) -> Provenance | None:
        """Read a tag; None if nobody wrote a provenance there."""
        first, *rest = tag_of(tag)[0].split(_BETWEEN, 4)
        values = dict(part.split(_IS, 1) for part in rest if _IS in part)
        if first != _PREFIX or list(values) != list(cls.__annotations__):
            return None
        return cls(**values)

    def target(self, target: Target) -> Target:
        """A target that names this, and is otherwise the same."""
        return Target(_plain(target.export()) | {"tag": self.tag()})


@dataclass(frozen=True)
class TvmRecord:
    """One trial of TVM's database: the number of its line, its computation, and its entry."""

    line: int
    workload: tvm.IRModule
    entry: _Entry

    @property
    def seconds(self) -> float | None:
        """Mean of the repeats, by which TVM ranks; None if the trial failed."""
        mean = fmean(self.entry[1] or [_FAILED_SECONDS])
        return mean if mean < _FAILED_SECONDS else None

    @property
    def arch(self) -> str | None:
        """Architecture of its target, e.g. ``sm_90a``; None if that is no GPU of NVIDIA's."""
        return (self.entry[2] or {}).get("arch")

    @property
    def provenance(self) -> Provenance | None:
        """None if nobody wrote it down."""
        return Provenance.from_tag(_tag(self.entry))

    @property
    def measured(self) -> bool:
        """Whether its seconds are known to be times."""
        return self.provenance is not None and self.provenance.measured

    @property
    def function(self) -> tirx.PrimFunc | None:
        """The computation; None if there are several functions, as others may store."""
        functions = [func for _, func in self.workload.functions_items()]
        alone = len(functions) == 1 and isinstance(functions[0], tirx.PrimFunc)
        return functions[0] if alone else None

    def computes(self, func: tirx.PrimFunc) -> bool:
        """Whether its computation is that of a :func:`.bare` function."""
        own = self.function
        return own is not None and same_function(bare(own), func)

    def scheduled(self) -> tirx.PrimFunc:
        """Its computation as its trace schedules it; one of :data:`replay_errors` if it cannot."""
        sch = s_tir.Schedule(self.workload, debug_mask="none")
        self.replayed().trace.apply_to_schedule(sch, remove_postproc=False)
        ((_, function),) = sch.mod.functions_items()
        return function

    def replayed(self) -> ms.database.TuningRecord:
        """As TVM's object, whose trace was replayed; one of :data:`replay_errors` if it cannot."""
        return ms.database.TuningRecord.from_json(self.entry, ms.database.Workload(self.workload))


def usable(records: Sequence[TvmRecord], arch: str) -> tuple[list[TvmRecord], int]:
    """Records that hold on an architecture for the installed versions, measured and best first.

    Also how many were left out; TVM's own query asks for none of this.
    """
    versions = code_versions()
    own = [
        one
        for one in records
        if one.arch == arch and one.provenance is not None and one.provenance.versions == versions
    ]
    worked = [one for one in own if one.seconds is not None]
    worked.sort(key=lambda one: (not one.measured, one.seconds))
    return worked, len(records) - len(own)


def entry_of(record: ms.database.TuningRecord) -> _Entry:
    """Write a record as plain JSON values; TVM's Python method stops at an index map."""
    entry = _plain(tvm.get_global_func("s_tir.meta_schedule.TuningRecordAsJSON")(record))
    assert isinstance(entry, list)
    return entry


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tvm_ffi.Array | list | tuple):
        return [_plain(one) for one in value]
    return tvm.ir.save_json(value)


def tag_of(tag: str) -> tuple[str, str | None]:
    """Take a tag and its digest apart; None if it has none."""
    before, seal, digest = tag.rpartition(_SEAL)
    return (before, digest) if seal else (tag, None)


def sealed(workload: _Workload, entry: _Entry) -> _Entry:
    """Write a record's digest into its target's tag."""
    trace, seconds, target, arguments = json.loads(json.dumps(entry))
    digest = _digest(workload, [trace, seconds, target, arguments])
    return [trace, seconds, target | {"tag": f"{_tag(entry)}{_SEAL}{digest}"}, arguments]


def _digest(workload: _Workload, entry: _Entry) -> str:
    """Sixteen hex digits of all that a record says, its target's tag apart."""
    trace, seconds, target, arguments = entry
    rest = {key: value for key, value in (target or {}).items() if key != "tag"}
    text = json.dumps([workload[1], trace, seconds, rest, arguments], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_workload(text: bytes) -> tvm.IRModule | None:
    """Read a line of the workload file; None if it is none."""
    entry = _workload(text)
    return None if entry is None else _module(entry)


def parse(workloads: Sequence[bytes], records: Sequence[bytes]) -> tuple[list[TvmRecord], int]:
    """Read the lines of both files; the records, and how many lines of both are broken."""
    plain = [_workload(text) for text in workloads]
    modules = [None if one is None else _module(one) for one in plain]
    found = []
    for line, text in enumerate(records):
        if parsed := _record(text, plain):
            number, entry = parsed
            module = modules[number]
            if module is not None and module.functions:
                found.append(TvmRecord(line, module, entry))
    return found, len(records) - len(found) + modules.count(None)


def _workload(text: bytes) -> _Workload | None:
    """A line of the workload file, as far as Python can tell; None if it is none."""
    try:
        number, module = json.loads(text)
        # Eight bytes of length come before the text.
        graph = base64.b64decode(module, validate=True)
        size, body = int.from_bytes(graph[:8], "little"), graph[8:]
        nodes = json.loads(body)["nodes"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_whole = isinstance(number, str) and size == len(body) and isinstance(nodes, list)
    return [number, module] if is_whole else None


def _module(entry: _Workload) -> tvm.IRModule | None:
    try:
        module = ms.database.Workload.from_json(entry).mod
    except replay_errors:
        return None
    return module if isinstance(module, tvm.IRModule) else None


def _record(text: bytes, workloads: Sequence[_Workload | None]) -> tuple[int, _Entry] | None:
    try:
        line, entry = json.loads(text)
        workload = workloads[line]
        _, digest = tag_of(_tag(entry))
        whole = workload is not None and digest == _digest(workload, entry)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return (line, entry) if whole else None


def _tag(entry: _Entry) -> str:
    return str((entry[2] or {}).get("tag", ""))
