"""Tables of trials and of records."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.table import Table

from ..tune.apply.check import Checked
from ..tune.apply.replay import Replay
from ..tune.measure.measurement import Measurement
from ..tune.records.log import Record
from ..tune.search.tune import Result
from ..tune.space.knobs import describe


def score_text(record: Record) -> str:
    """A record's score with its unit: a measured time, or a modelled cost."""
    if record.score is None:
        return "failed"
    return f"{record.score * 1e6:,.2f} us" if record.measured else f"{record.score:,.0f}"


def make_table(title: str, heads: Sequence[str], left: frozenset[str] = frozenset()) -> Table:
    """Make an empty table; the columns ``left`` are text, the others numbers."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", overflow="fold")
    return table


def trial_table(result: Result) -> Table:
    """All trials, best first; those that failed last, with their reason."""
    measured = result.trials[0].measured
    knobs = [knob.name for knob in result.task.operator.knobs]
    score = "median" if measured else "modelled cost"
    heads = [
        "trial",
        score,
        "of best",
        *(["spread", "GB/s", "TFLOPS"] if measured else []),
        "bank conflicts",
        "sectors / request",
        "shared bytes",
        *knobs,
        "verified",
    ]
    table = make_table(f"{result.task.workload} on {result.trials[0].device}", heads)
    for record in result.ranking:
        style = "bold green" if record is result.best else "dim" if record.score is None else ""
        table.add_row(*_trial_cells(record, result, measured), style=style)
    return table


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


def _trial_cells(record: Record, result: Result, measured: bool) -> list[str]:
    best = result.best.score if result.best else None
    timing = [_micro(record.spread), _figure(record.gbps), _figure(record.tflops)]
    config = [str(knob.of(record.config)) for knob in result.task.operator.knobs]
    return [
        str(record.trial),
        score_text(record),
        f"{record.score / best:.2f}x" if best and record.score else "",
        *(timing if measured else []),
        *_counter_cells(record),
        *config,
        "yes" if record.verified_on else "",
    ]


def _counter_cells(record: Record) -> list[str]:
    model, shared = record.conflict_model, record.smem_bytes
    if model is None:
        return ["", "", ""]
    return [
        f"{model['bank_conflicts']:,}",
        f"{model['sectors_per_request']:.2f}",
        f"{shared:,}" if shared is not None else "",
    ]


def _micro(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.2f} us"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def best_table(records: Sequence[Record]) -> Table:
    """One record a line, with its configuration."""
    heads = (
        "id",
        "workload",
        "device",
        "score",
        "bank conflicts",
        "sectors / request",
        "shared bytes",
        "verified",
        "config",
    )
    table = make_table(
        "Best of each workload", heads, frozenset({"id", "workload", "device", "config"})
    )
    for record in records:
        table.add_row(
            record.id,
            str(record.workload),
            f"{record.device} ({record.arch})",
            score_text(record) if record.measured else f"cost {score_text(record)}",
            *_counter_cells(record),
            "yes" if record.verified_on else "no",
            describe(record.config),
        )
    return table


def replay_lines(again: Replay) -> list[str]:
    """What a replay gave, beside what was recorded."""
    record, now = again.record, again.measurement
    lines = [f"config: {describe(record.config)}", f"right on {again.verified_on}"]
    if now.median is not None:
        before = "" if record.median is None else f", recorded {record.median * 1e6:,.2f} us"
        lines.append(f"median {now.median * 1e6:,.2f} us{before}")
    if now.conflict_model is not None:
        lines.append(
            ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in now.conflict_model.items())
        )
        same = {True: "the same as recorded", False: "not those recorded", None: "none recorded"}
        lines.append(f"counters: {same[again.same_counters]}")
    return lines


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
