"""Tables of trials and of records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

from rich.table import Table

from ..tune.apply.replay import Checked, Replay
from ..tune.measure.backend import Measurement
from ..tune.records.log import Record
from ..tune.search.tune import Result
from ..tune.space.knobs import describe
from .trials import trial_table

#: What is told of :class:`.cost.Counters`, in this order.
COUNTERS = (
    "blocks",
    "requests",
    "sectors",
    "ideal_sectors",
    "sectors_per_request",
    "wavefronts",
    "bank_conflicts",
    "barriers",
)
#: Columns of the page's table that a terminal has no room for.
_WIDE = ("MHz", "registers", "spilled", "server", "failed with", "id")
_STYLES = {"winner": "bold green", "failed": "dim"}
#: Head and cell of each column.
Row = Sequence[tuple[str, str]]


def score_text(record: Record) -> str:
    """A record's score with its unit: a measured time, or a modelled cost."""
    if record.score is None:
        return "failed"
    return f"{record.score * 1e6:,.2f} us" if record.measured else f"{record.score:,.0f}"


def recorded_text(record: Record) -> str:
    """A record's score, and what it is if no time."""
    return score_text(record) if record.measured else f"modelled cost {score_text(record)}"


def make_table(
    title: str, rows: Sequence[Row], left: Collection[str] = (), styles: Sequence[str] = ()
) -> Table:
    """Table rows; the columns ``left`` are text, the others numbers."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for head, _ in rows[0] if rows else ():
        table.add_column(head, justify="left" if head in left else "right", overflow="fold")
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        table.add_row(*(cell for _, cell in row), style=style)
    return table


def result_table(result: Result) -> Table:
    """All trials, best first; those that failed last."""
    found = trial_table(result.ranking, result.best)
    columns = [c for c in found.columns if c.name not in _WIDE or c.detail.startswith("knob ")]
    rows = [[(c.name, c.texts[at]) for c in columns] for at in range(len(found.rows))]
    styles = [_STYLES.get(kind, "") for kind, _ in found.rows]
    title = f"{result.task.workload} on {result.trials[0].device}"
    return make_table(title, rows, styles=styles)


def failures(result: Result) -> list[str]:
    """One line for each different reason, with the trials that failed for it."""
    reasons: dict[str, list[int]] = {}
    for record in result.trials:
        if record.score is None:
            text = f"{record.error_class}: {record.error_text}"
            reasons.setdefault(text, []).append(record.trial)
    return [
        f"Failed: trial {', '.join(map(str, trials))} with {text}"
        for text, trials in reasons.items()
    ]


def phase_line(trials: Sequence[Record]) -> str | None:
    """Where the time of measured trials went, one sentence; None if no record tells."""
    told = [record.phases for record in trials if record.phases]
    if not told:
        return None
    parts = ", ".join(
        f"{name} {median(one.get(name, 0.0) for one in told):.3g} s"
        for name in dict.fromkeys(name for one in told for name in one)
    )
    return f"Seconds of a trial, medians of {len(told)}: {parts}."


def _counters(record: Record) -> Row:
    model, shared = record.conflict_model, record.smem_bytes
    return [
        ("bank conflicts", "" if model is None else f"{model['bank_conflicts']:,}"),
        ("sectors / request", "" if model is None else f"{model['sectors_per_request']:.2f}"),
        ("shared bytes", "" if model is None or shared is None else f"{shared:,}"),
    ]


def _micro(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.2f} us"


def best_table(records: Sequence[Record]) -> Table:
    """One record a line, with its configuration."""
    rows: list[Row] = [
        [
            ("id", record.id),
            ("workload", str(record.workload)),
            ("device", f"{record.device} ({record.arch})"),
            ("score", score_text(record) if record.measured else f"cost {score_text(record)}"),
            *_counters(record),
            ("verified", "yes" if record.verified_on else "no"),
            ("config", describe(record.config)),
        ]
        for record in records
    ]
    return make_table("Best of each workload", rows, ("id", "workload", "device", "config"))


def replay_lines(again: Replay) -> list[str]:
    """What a replay gave, beside what was recorded."""
    record, now = again.record, again.measurement
    lines = [f"config: {describe(record.config)}", f"right on {again.verified_on}"]
    if now.median is not None:
        before = "" if record.median is None else f", recorded {record.median * 1e6:,.2f} us"
        lines.append(f"median {now.median * 1e6:,.2f} us{before}")
    if now.conflict_model is not None:
        lines.append(
            ", ".join(f"{k.replace('_', ' ')} {now.conflict_model[k]:,}" for k in COUNTERS)
        )
        same = {True: "the same as recorded", False: "not those recorded", None: "none recorded"}
        lines.append(f"counters: {same[again.same_counters]}")
    return lines


def checked_table(checked: Sequence[Checked]) -> Table:
    """Winner and default as they are now, a workload a line."""
    rows: list[Row] = [
        [
            ("workload", str(one.record.workload)),
            ("runner", one.runner),
            ("recorded", recorded_text(one.record)),
            ("winner now", _now(one.winner)),
            ("default now", _now(one.default)),
            ("ratio", "" if one.ratio is None else f"{one.ratio:.3f}"),
            ("verdict", _verdict(one)),
        ]
        for one in checked
    ]
    styles = ["bold red" if one.warning else "" for one in checked]
    return make_table("Stored winners against the default", rows, ("workload", "runner"), styles)


def _verdict(one: Checked) -> str:
    if one.failure is not None:
        return "fails"
    if one.default is None:
        return "default fails"
    if one.winner is one.default:
        return "is the default"
    return "default is faster" if one.warning else "wins"


def bench_table(replays: Sequence[Replay]) -> Table:
    """Each winner as recorded and as it is now."""
    rows: list[Row] = [
        [
            ("workload", str(one.record.workload)),
            ("runner", one.runner),
            ("recorded", recorded_text(one.record)),
            ("now", _now(one.measurement)),
            ("ratio", _ratio(one)),
            ("spread", _micro(one.measurement.spread)),
            ("config", describe(one.record.config)),
        ]
        for one in replays
    ]
    return make_table("Stored winners, run again", rows, ("workload", "runner", "config"))


def _ratio(one: Replay) -> str:
    """Now over recorded; a modelled cost is not compared with a time."""
    recorded, measured = one.record.score, one.measurement.median is not None
    if not recorded or measured != one.record.measured:
        return ""
    return f"{one.measurement.score / recorded:.3f}"


def _now(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    if measurement.median is None:
        return f"modelled cost {measurement.score:,.0f}"
    return _micro(measurement.median)
