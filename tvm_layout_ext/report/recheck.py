"""Tables of stored winners that were run again."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ..tune.apply.check import Checked
from ..tune.apply.replay import Replay
from ..tune.measure.measurement import Measurement
from ..tune.records.log import Record
from ..tune.space.knobs import describe
from .tuning import make_table, score_text

__all__ = ["bench_table", "checked_table"]


def checked_table(checked: Sequence[Checked]) -> Table:
    """Winner and default as they are now, a workload a line."""
    heads = ("workload", "runner", "recorded", "winner now", "default now", "ratio", "verdict")
    table = make_table("Stored winners against the default", heads, frozenset(heads[:2]))
    for one in checked:
        table.add_row(
            str(one.record.workload),
            one.runner,
            _recorded(one.record),
            _now(one.winner),
            _now(one.default),
            "" if one.ratio is None else f"{one.ratio:.3f}",
            _verdict(one),
            style="bold red" if one.warning else "",
        )
    return table


def _verdict(one: Checked) -> str:
    if one.failure is not None:
        return "fails"
    if one.default is None:
        return "default fails"
    return "default is faster" if one.warning else "wins"


def bench_table(replays: Sequence[Replay]) -> Table:
    """Each winner as recorded and as it is now."""
    heads = ("workload", "runner", "recorded", "now", "ratio", "spread", "config")
    table = make_table("Stored winners, run again", heads, frozenset((*heads[:2], heads[-1])))
    for one in replays:
        spread = one.measurement.spread
        table.add_row(
            str(one.record.workload),
            one.runner,
            _recorded(one.record),
            _now(one.measurement),
            _ratio(one),
            "" if spread is None else f"{spread * 1e6:,.2f} us",
            describe(one.record.config),
        )
    return table


def _ratio(one: Replay) -> str:
    """Now over recorded; a modelled cost is not compared with a time."""
    recorded, measured = one.record.score, one.measurement.median is not None
    if not recorded or measured != one.record.measured:
        return ""
    return f"{one.measurement.score / recorded:.3f}"


def _recorded(record: Record) -> str:
    return score_text(record) if record.measured else f"modelled cost {score_text(record)}"


def _now(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    if measurement.median is None:
        return f"modelled cost {measurement.score:,.0f}"
    return f"{measurement.median * 1e6:,.2f} us"
