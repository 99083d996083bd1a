"""The programs of a log's records: of ready schedules, and of a user's functions and schedules.

A record of a ready schedule names an operator, which makes the program of its configuration. A
function and a schedule of one's own are Python that no log holds; but the database beside the log
has each function and the trace of each trial that worked. Both ways end in an :class:`Operator`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from tvm import s_tir, tirx

from ...checks import path_of
from ...errors import RecordError, ScheduleError
from ...gpu.hardware import Architecture
from ..measure.backend import config_key
from ..records.database import RECORDS, WORKLOADS, Database
from ..records.log import Log, Reading
from ..records.record import Record
from ..records.tvm_record import TvmRecord, replay_errors
from ..space.candidate import program_of, without_knobs
from ..space.functions import digest_of
from ..space.knobs import Config, Knob, Refusal
from ..space.operator import Operator, find_operator, known_operators, operator_of

#: Value of each knob of a default configuration that nobody wrote down.
_UNKNOWN = "not in the log"
#: Ends the name of an operator that was made of a function, see :func:`digest_of`.
_DIGEST = re.compile(r"-([0-9a-f]{8})$")


class Programs:
    """Makes the programs of a log's records again; ``log`` is its folder or a ``*.jsonl`` file."""

    def __init__(self, log: str | os.PathLike[str]) -> None:
        self.log = path_of("A log", log, RecordError)
        self.folder = self.log if self.log.is_dir() else self.log.parent
        #: By line of the database, what its trace is once it was replayed; None if it cannot be.
        self._traces: dict[int, s_tir.Trace | None] = {}

    def operator(self, record: Record) -> Operator:
        """What schedules a record's configuration.

        Of a user's schedule it replays the traces of that and of trial 0. RecordError if the trial
        failed, or the database lacks it or has another program.
        """
        name = record.workload.operator
        if name in known_operators():
            return find_operator(name)
        entries = self._entries(record)
        _require_kept(record)
        func = entries[0].function
        assert func is not None
        if record.program is None:
            return self._fitting(record, func)
        return self._replayed(record, func, entries)

    @cached_property
    def _records(self) -> list[Record]:
        return Log(self.log).read().records

    @cached_property
    def _reading(self) -> Reading[TvmRecord]:
        return Database(self.folder).read()

    @cached_property
    def _digests(self) -> dict[int, str]:
        """Digest of the function of each line; lines share modules."""
        known: dict[int, str] = {}
        found = {}
        for one in self._reading.records:
            key = id(one.workload)
            if key not in known:
                func = one.function
                known[key] = "" if func is None else digest_of(func)
            found[one.line] = known[key]
        return found

    def _entries(self, record: Record) -> list[TvmRecord]:
        """The database's trials of a record's function; there is one at least."""
        name = record.workload.operator
        digest = _DIGEST.search(name)
        if digest is None:
            raise RecordError(
                f"Record {record.id} is of operator {name}, whose code is neither in schedules/ "
                "nor in a log; give the operator to tlx.tune, with this log, to run it again."
            )
        for file in (WORKLOADS, RECORDS):
            if not (self.folder / file).exists():
                raise RecordError(
                    f"Record {record.id} is of function {name}, whose program is in the database "
                    f"beside the log, and its file {self.folder / file} is missing."
                )
        entries = [one for one in self._reading.records if self._digests[one.line] == digest[1]]
        if not entries:
            raise RecordError(
                f"Record {record.id} is of function {name}, and the database in {self.folder} has "
                f"no such function{self._corrupt()}."
            )
        return entries

    def _corrupt(self) -> str:
        count = self._reading.corrupt
        lines = "line is" if count == 1 else "lines are"
        return f" ({count} of its {lines} corrupt)" if count else ""

    def _fitting(self, record: Record, func: tirx.PrimFunc) -> Operator:
        """The operator of a function that was tuned without a schedule."""
        fitting = replace(operator_of(func), name=record.workload.operator)
        try:
            fitting.check_config(record.config)
        except ScheduleError as error:
            raise RecordError(
                f"Record {record.id} names no program, and its knobs are not those of the schedule "
                f"that fits the function: {error}"
            ) from None
        return fitting

    def _replayed(
        self, record: Record, func: tirx.PrimFunc, entries: Sequence[TvmRecord]
    ) -> Operator:
        """The operator of a user's schedule, as far as its traces tell."""
        traces = {config_key(record.config): self._trace(record, entries)}
        default = self._default(record)
        missing = f"The log has no trial 0 of {record.workload.operator} to compare with."
        if default is not None and config_key(default.config) not in traces:
            try:
                _require_kept(default)
                traces[config_key(default.config)] = self._trace(default, entries)
            except RecordError as error:
                missing = str(error)

        def apply(sch: s_tir.Schedule, config: Config) -> None:
            trace = traces.get(config_key(config))
            if trace is None:
                raise RecordError(missing)
            trace.apply_to_schedule(sch, remove_postproc=False)

        first = dict.fromkeys(record.config, _UNKNOWN) if default is None else default.config
        knobs = [
            Knob(name, tuple(dict.fromkeys((first[name], value))), first[name])
            for name, value in record.config.items()
        ]
        usual = {knob.name: knob.default for knob in knobs}

        def check(config: Config, _: Architecture) -> Refusal | None:
            if config_key(config) in traces or config == usual:
                return None
            return Refusal("stored programs", "The log has no program of this configuration.")

        operator = operator_of(func, apply, knobs, check=check)
        return replace(operator, name=record.workload.operator)

    def _default(self, record: Record) -> Record | None:
        """Trial 0 of a record's run, or of the latest with its knobs."""
        firsts = [
            one
            for one in self._records
            if one.trial == 0
            and one.workload == record.workload
            and one.config.keys() == record.config.keys()
        ]
        return max(firsts, key=lambda one: (one.group == record.group, one.time), default=None)

    def _trace(self, record: Record, entries: Sequence[TvmRecord]) -> s_tir.Trace:
        """The trace of a record's program, without what samples its knobs."""
        seconds = list(record.times) if record.measured else [record.score]
        # Replaying takes 10 ms a line, and only a finalist's times differ from those stored.
        for one in sorted(entries, key=lambda one: one.entry[1] != seconds):
            trace = self._replay(one)
            if trace is not None and program_of(trace) == record.program:
                return without_knobs(trace)
        trials = "trial" if len(entries) == 1 else "trials"
        lost = sum(self._replay(one) is None for one in entries)
        unread = f", {lost} of which TVM cannot replay," if lost else ""
        raise RecordError(
            f"Record {record.id} of {record.workload.operator} is of program {record.program}, and "
            f"none of the {len(entries)} {trials}{unread} that the database in {self.folder} has "
            f"of it is{self._corrupt()}."
        )

    def _replay(self, one: TvmRecord) -> s_tir.Trace | None:
        if one.line not in self._traces:
            try:
                self._traces[one.line] = one.replayed().trace
            except replay_errors:
                self._traces[one.line] = None
        return self._traces[one.line]


def _require_kept(record: Record) -> None:
    """Raise RecordError for a trial that failed: the database has those that worked."""
    if record.score is None:
        raise RecordError(
            f"Record {record.id} of {record.workload.operator} failed ({record.error_class}); no "
            "program of it was kept."
        )
