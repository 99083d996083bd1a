"""Lines of TVM's tuning database, taken apart with care: TVM's parsers crash on some.

An empty line, ``null``, ``{}``, or a ``null`` deep inside a trace end the process by a segmentation
fault. So nothing is handed to TVM before its form was checked here, and what this package wrote
carries a digest of its own text and of its computation's.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import meta_schedule as ms

from .origin import Origin, seal_of, sealed

__all__ = [
    "Stored",
    "StoredReading",
    "digest_of",
    "entry_of",
    "parse",
    "parse_workload",
    "placeholder",
    "seal",
]

#: TVM's mark of a trial that failed; such a record says nothing of a schedule.
_FAILED_SECONDS = 1e10
_MENDED = "layout_ext.mended"
_ERRORS = (RuntimeError, ValueError, TypeError, KeyError, IndexError)
#: A line of the workload file: a hash, and a module in base64.
_Workload = list[str]
_Entry = list[Any]


@dataclass(frozen=True)
class Stored:
    """One trial.

    Attributes
    ----------
    line : int
        Number of its line.
    workload : tvm.IRModule
        The computation before any schedule.
    entry : list
        Trace, seconds, target and argument types, as TVM writes them.
    """

    line: int
    workload: tvm.IRModule
    entry: _Entry

    @property
    def seconds(self) -> float | None:
        """Mean of the repeats, by which TVM ranks; None if the trial failed."""
        times = self.entry[1] or [_FAILED_SECONDS]
        mean = fmean(times)
        return mean if mean < _FAILED_SECONDS else None

    @property
    def arch(self) -> str | None:
        """Architecture of its target, e.g. ``sm_90a``; None if that is no GPU of NVIDIA's."""
        return (self.entry[2] or {}).get("arch")

    @property
    def origin(self) -> Origin | None:
        """Versions, runner and device; None if nobody wrote them down."""
        return Origin.from_tag(_tag(self.entry))

    def record(self) -> ms.database.TuningRecord:
        """As TVM's object, whose trace was replayed on the computation.

        Raises
        ------
        RuntimeError, ValueError
            If TVM cannot replay it.
        """
        return ms.database.TuningRecord.from_json(self.entry, ms.database.Workload(self.workload))

    def replays(self) -> bool:
        """Whether TVM can read it."""
        try:
            self.record()
        except _ERRORS:
            return False
        return True


@dataclass(frozen=True)
class StoredReading:
    """What a database held.

    Attributes
    ----------
    records : list of Stored
        In the order of the file.
    broken_records, broken_workloads : tuple of int
        Numbers of lines that are no record, or one of no computation; and of lines that are no
        computation.
    """

    records: list[Stored]
    broken_records: tuple[int, ...] = ()
    broken_workloads: tuple[int, ...] = ()

    @property
    def corrupt(self) -> int:
        """How many lines are broken."""
        return len(self.broken_records) + len(self.broken_workloads)


def placeholder(line: int) -> bytes:
    """A computation that nobody asks for, in place of a broken one; no two are alike."""
    module = tvm.IRModule({}).with_attr(_MENDED, line)
    return json.dumps(ms.database.Workload(module).as_json()).encode()


def entry_of(record: ms.database.TuningRecord) -> _Entry:
    """Write a record as plain JSON values.

    TVM's Python method stops at an index map, of which ``transform_block_layout`` has one; its C++
    writes the map's own JSON as a string, and so does this.
    """
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
    if isinstance(value, tvm_ffi.Map | dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tvm_ffi.Array | list | tuple):
        return [_plain(one) for one in value]
    return tvm.ir.save_json(value)


def digest_of(workload: _Workload, entry: _Entry) -> str:
    """Sixteen hex digits of all that a record says, its target's tag apart."""
    trace, seconds, target, arguments = entry
    rest = {key: value for key, value in (target or {}).items() if key != "tag"}
    text = json.dumps([workload[1], trace, seconds, rest, arguments], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def seal(workload: _Workload, entry: _Entry) -> _Entry:
    """Write a record's digest into its target's tag."""
    trace, seconds, target, arguments = json.loads(json.dumps(entry))
    tag = sealed(_tag(entry), digest_of(workload, [trace, seconds, target, arguments]))
    return [trace, seconds, target | {"tag": tag}, arguments]


def parse_workload(text: bytes) -> tvm.IRModule | None:
    """Read a line of the workload file; None if it is none."""
    entry = _workload(text)
    return None if entry is None else _module(entry)


def parse(workloads: Sequence[bytes], records: Sequence[bytes]) -> StoredReading:
    """Read the lines of both files."""
    plain = [_workload(text) for text in workloads]
    entries = [_record(text, plain) for text in records]
    modules = [None if one is None else _module(one) for one in plain]
    good = list(_with_modules(entries, modules))
    numbers = {one.line for one in good}
    return StoredReading(
        good,
        tuple(i for i in range(len(records)) if i not in numbers),
        tuple(i for i, one in enumerate(modules) if one is None),
    )


def _with_modules(
    entries: Sequence[tuple[int, _Entry] | None], modules: Sequence[tvm.IRModule | None]
) -> Iterator[Stored]:
    for line, parsed in enumerate(entries):
        if parsed is not None:
            number, entry = parsed
            module = modules[number]
            if module is not None and module.functions:
                yield Stored(line, module, entry)


def _workload(text: bytes) -> _Workload | None:
    """A line of the workload file, as far as Python can tell; None if it is none."""
    try:
        entry = json.loads(text)
        if not _all_of(entry, (str, str)):
            return None
        # Eight bytes of length come before the text.
        graph = base64.b64decode(entry[1], validate=True)
        size, body = int.from_bytes(graph[:8], "little"), graph[8:]
        nodes = json.loads(body)["nodes"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return entry if size == len(body) and isinstance(nodes, list) else None


def _module(entry: _Workload) -> tvm.IRModule | None:
    try:
        module = ms.database.Workload.from_json(entry).mod
    except _ERRORS:
        return None
    return module if isinstance(module, tvm.IRModule) else None


def _record(text: bytes, workloads: Sequence[_Workload | None]) -> tuple[int, _Entry] | None:
    """A line of the record file, as far as Python can tell; None if it is none."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not _all_of(parsed, (int, list)):
        return None
    line, entry = parsed
    if not 0 <= line < len(workloads) or not _is_entry(entry):
        return None
    workload = workloads[line]
    if workload is None:
        return None
    _, digest = seal_of(_tag(entry))
    return (line, entry) if digest in (None, digest_of(workload, entry)) else None


def _is_entry(entry: _Entry) -> bool:
    if not _all_of(entry, (list, list | None, dict | None, list | None)):
        return False
    trace, seconds, _, arguments = entry
    return (
        _all_of(trace, (list, list))
        and all(_all_of(inst, (str, list, list, list)) for inst in trace[0])
        and all(isinstance(one, list) for one in trace[1])
        and all(isinstance(one, int | float) for one in seconds or ())
        and all(isinstance(one, list) and one for one in arguments or ())
    )


def _tag(entry: _Entry) -> str:
    return str((entry[2] or {}).get("tag", ""))


def _all_of(value: Any, kinds: Sequence[Any]) -> bool:
    """Whether a list has exactly elements of these types."""
    return (
        isinstance(value, list)
        and len(value) == len(kinds)
        and all(isinstance(one, kind) for one, kind in zip(value, kinds, strict=True))
    )
