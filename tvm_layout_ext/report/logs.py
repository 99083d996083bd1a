"""Two logs beside each other: the winners of the workloads that both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from ..errors import RecordError
from ..tune.apply.replay import best_records
from ..tune.records.log import Record
from ..tune.records.record import NOISE
from .tuning import make_table, recorded_text

_Key = tuple[str, bool, str, str]


@dataclass(frozen=True)
class Pair:
    """The winners of one workload on one device."""

    before: Record
    after: Record

    @property
    def ratio(self) -> float:
        """The later score over the earlier: below 1 is faster."""
        before, after = self.before.score, self.after.score
        return after / before if before and after is not None else float("nan")

    @property
    def knobs(self) -> list[str]:
        """The knobs that differ, as ``name old -> new``; a knob that one lacks is ``-`` there."""
        old, new = self.before.config, self.after.config
        return [
            f"{name} {old.get(name, '-')} -> {new.get(name, '-')}"
            for name in dict.fromkeys([*old, *new])
            if old.get(name) != new.get(name)
        ]


@dataclass(frozen=True)
class Compared:
    """A pair for each workload that both logs have on one device, and remarks.

    Remarks are sentences: how many got faster or slower, and what only one log has.
    """

    pairs: list[Pair]
    remarks: list[str]


def compare_logs(
    logs: tuple[Sequence[Record], Sequence[Record]], names: tuple[str, str]
) -> Compared:
    """Put the winners of two logs beside each other.

    The earlier log comes first; ``names`` are what messages call them. Times are compared with
    times and modelled costs with modelled costs, of the same device.
    """
    before, after = (_winners(records) for records in logs)
    pairs = [Pair(before[key], after[key]) for key in before if key in after]
    if not pairs:
        raise RecordError(
            f"{names[0]} and {names[1]} have no workload of the same device in common; they hold "
            f"{_held(before)}, and {_held(after)}."
        )
    only = [
        f"Only in {name}: {_held(missing)}."
        for name, own, other in ((names[0], before, after), (names[1], after, before))
        if (missing := {key: own[key] for key in own if key not in other})
    ]
    return Compared(pairs, [_verdict(pairs), *only])


def _winners(records: Sequence[Record]) -> dict[_Key, Record]:
    """The best of each workload and device; here and on a server count alike."""
    winners: dict[_Key, Record] = {}
    for record in best_records(records):
        key = (record.workload.hash, record.measured, record.device, record.arch)
        other = winners.get(key)
        if other is None or (record.score or 0.0) < (other.score or 0.0):
            winners[key] = record
    return winners


def _held(winners: dict[_Key, Record]) -> str:
    return ", ".join(f"{r.workload} on {r.device}" for r in winners.values()) or "no winner"


def _verdict(pairs: Sequence[Pair]) -> str:
    """Count by ratio; measured ones within :data:`~.NOISE` are not told apart."""
    faster = sum(pair.ratio < 1 - _noise(pair) for pair in pairs)
    slower = sum(pair.ratio > 1 + _noise(pair) for pair in pairs)
    same = len(pairs) - faster - slower
    return f"{faster} faster, {slower} slower, {same} the same (times within {NOISE:.1%})."


def _noise(pair: Pair) -> float:
    return NOISE if pair.before.measured else 0.0


def pairs_table(found: Compared) -> Table:
    """One pair of winners a line."""
    rows = [
        [
            ("workload", str(pair.before.workload)),
            ("device", f"{pair.before.device} ({pair.before.arch})"),
            ("before", recorded_text(pair.before)),
            ("after", recorded_text(pair.after)),
            ("ratio", f"{pair.ratio:.3f}"),
            ("knobs that differ", ", ".join(pair.knobs) or "none"),
        ]
        for pair in found.pairs
    ]
    return make_table("Winners of both logs", rows, ("workload", "device", "knobs that differ"))
