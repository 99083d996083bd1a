"""What the page shows of each workload, gathered from a log's records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...errors import LayoutExtError
from ...text import number
from ...tune.apply.programs import Programs
from ...tune.model.cost import FORMULA
from ...tune.records.log import Record
from ...tune.records.record import best_first
from ...tune.space.knobs import describe
from ...tune.space.operator import Operator, find_operator
from ..comparison import counter_rows
from ..occupancy import occupancy
from ..trials import Table, trial_table
from ..tuning import score_text
from .kernel import KernelView, kernel_of
from .roofline import Roofline, roofline, winner_of, work_unit
from .search import Search, search_of


@dataclass(frozen=True)
class WorkloadView:
    """One workload on one device, by one kind of runner."""

    slug: str  #: For links and file names
    title: str
    device: str
    measured: bool
    table: Table
    records: list[Record]  #: Trials in the log's order
    search: Search | None  #: In the order of the table; None if no knob varies
    roof: Roofline | None
    winner: Record | None
    default: Record | None
    facts: list[tuple[str, str]]  #: Score, gain and trials in a few words
    conditions: list[tuple[str, str]]  #: Device, clock, protocol, versions
    counters: list[list[str]]  #: Counter or knob, default, winner, ratio
    failures: list[list[str]]  #: Error, how many trials it ended, the first sentence
    after: KernelView | None  #: The winner's kernel
    formula: str  #: Of the modelled cost, for modelled scores
    verdict: str  #: How good the winner is, and what limits it

    def overview(self) -> list[tuple[str, float]]:
        """Text and key of each cell that the workload has in the table of all."""
        best, point = self.winner, winner_of(self.roof)
        score = (best.score if best else None) or 0.0
        gain = self.default.score / score if score and self.default and self.default.score else 0.0
        share = self.roof.bound(point) if self.roof and point else 0.0
        rate, unit = 0.0, ""
        if self.roof and point and self.measured:
            rate, unit = self.roof.rate(point)
        return [
            (score_text(best) if best else "none", score or float("inf")),
            (f"{number(rate)} {unit}" if rate else "", rate),
            (f"{share:.0%}" if share else "", share),
            (f"{gain:.2f}" if gain else "", gain),
            (str(len(self.records)), len(self.records)),
        ]

    def to_json(self) -> dict[str, Any]:
        """What the table of all and the head of the workload say, for other programs."""
        return {
            "workload": self.title,
            "device": self.device,
            "measured": self.measured,
            "trials": len(self.records),
            "verdict": self.verdict,
            "winner": self.winner.to_json() if self.winner else None,
            "default": self.default.to_json() if self.default else None,
        }


def workloads(
    records: Sequence[Record],
    *,
    kernels: bool = True,
    told: Callable[[str], None] | None = None,
    programs: Programs | None = None,
) -> list[WorkloadView]:
    """Gather what the page shows, in the order in which workloads appear in the log.

    With ``kernels``, the winners' kernels are built again and explained, by the log's ``programs``
    or as ready schedules. ``told`` is called with each title before, since that takes seconds.
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        key = (record.workload.hash, record.runner, record.device, record.arch)
        groups.setdefault(key, []).append(record)
    views = []
    for index, group in enumerate(groups.values(), 1):
        if told is not None:
            told(f"{group[0].workload} on {group[0].device}")
        views.append(_workload(index, group, kernels, programs))
    return views


def _workload(
    index: int,
    group: list[Record],
    kernels: bool,
    programs: Programs | None,
) -> WorkloadView:
    ranked = best_first(group)
    winner = ranked[0] if ranked[0].score is not None else None
    default = next((record for record in group if record.trial == 0), None)
    named = [("default", default), ("winner", winner)]
    points = [(name, record) for name, record in named if record is not None]
    first = group[0]
    # Of a trial that failed no program was kept. It is looked up where it is needed.
    operator = partial(_operator, winner or first, programs)
    roof = roofline(points, *_work(group, operator))
    after = kernel_of(winner, programs) if winner and kernels else None
    title = " ".join(str(first.workload).split())
    return WorkloadView(
        slug=_slug(title, index),
        title=title,
        device=f"{first.device} ({first.arch})",
        measured=first.measured,
        table=trial_table(ranked, winner),
        records=group,
        search=search_of(ranked),
        roof=roof,
        verdict=_verdict(winner, default, roof, after),
        winner=winner,
        default=default,
        facts=_facts(group, winner, default),
        conditions=_conditions(group, winner or first),
        counters=_beside(default, winner),
        failures=_failures(group),
        after=after,
        formula="" if first.measured else FORMULA,
    )


def _verdict(
    winner: Record | None,
    default: Record | None,
    roof: Roofline | None,
    after: KernelView | None,
) -> str:
    if winner is None or not winner.score:
        return "No candidate worked."
    parts = [score_text(winner) if winner.measured else f"modelled cost {score_text(winner)}"]
    if roof is not None and (point := winner_of(roof)) is not None:
        parts.append(roof.binding(point))
    if default is not None and default.score:
        gain = default.score / winner.score
        is_default = default.id == winner.id
        parts.append("the default" if is_default else f"{gain:.2f} times as fast as the default")
    said = [f"{', '.join(parts)}."]
    if after is not None:
        said.append(after.limit)
        if after.threads and winner.smem_bytes is not None:
            needs = after.threads, winner.registers, winner.smem_bytes
            said.append(str(occupancy(winner.arch, *needs)))
    return " ".join(filter(None, said))


def _beside(default: Record | None, winner: Record | None) -> list[list[str]]:
    """Knobs that differ, and counters."""
    if default is None or winner is None or default.id == winner.id:
        return []
    knobs = [
        [f"knob {name}", str(default.config.get(name, "")), str(value), ""]
        for name, value in winner.config.items()
        if value != default.config.get(name)
    ]
    return knobs + counter_rows(default, winner)


def _slug(title: str, index: int) -> str:
    """A name of a workload without its type, which the page offers to ``export``."""
    return re.sub(r"\W|^(?=\d)", "_", f"{title.rpartition(' ')[0]}_{index}", flags=re.ASCII)


def _operator(record: Record, programs: Programs | None) -> Operator:
    """Raise LayoutExtError if nobody knows it."""
    if programs is not None:
        return programs.operator(record)
    return find_operator(record.workload.operator)


def _work(group: Sequence[Record], find: Callable[[], Operator]) -> tuple[float, float]:
    """Arithmetic operations and least traffic of a workload; zeros if nobody knows."""
    workload = group[0].workload
    for record in group:
        if record.median and record.gbps is not None and record.tflops is not None:
            return record.tflops * record.median * 1e12, record.gbps * record.median * 1e9
    try:
        operator = find()
    except LayoutExtError:
        return 0.0, 0.0
    return operator.flops(workload.shape), operator.traffic(workload.shape, workload.dtype)


def _failures(group: Sequence[Record]) -> list[list[str]]:
    """Why trials failed: rows of the error's class, how many, and the first one's sentence."""
    texts: dict[str, list[str]] = {}
    for record in sorted(group, key=lambda record: record.trial):
        if record.score is None:
            texts.setdefault(str(record.error_class), []).append(str(record.error_text))
    return [
        [kind, f"{len(some):,}", _first_sentence(some[0])]
        for kind, some in sorted(texts.items(), key=lambda item: -len(item[1]))
    ]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text.strip().partition("\n")[0], maxsplit=1)[0]


def _facts(
    group: Sequence[Record], winner: Record | None, default: Record | None
) -> list[tuple[str, str]]:
    failed = sum(record.score is None for record in group)
    trials = (
        "trials",
        f"{len(group):,}, {failed:,} of them failed" if failed else f"{len(group):,}",
    )
    if winner is None:
        return [("winner", "no candidate worked"), trials]
    kind = "median" if winner.measured else "modelled cost"
    facts = [(kind, score_text(winner)), ("record", winner.id)]
    if default is not None and default.score and winner.score:
        gain = f"{winner.score / default.score:.3f} of it ({score_text(default)})"
        facts.append(("against the default", gain))
    if winner.gbps:
        facts.append(("least traffic", f"{number(winner.gbps)} GB/s"))
    if winner.tflops:
        facts.append(("arithmetic", f"{number(winner.tflops)} {work_unit(winner.workload.dtype)}"))
    checked = winner.verified_on or "not verified"
    return [*facts, ("verified on", checked), trials, ("configuration", describe(winner.config))]


def _conditions(group: Sequence[Record], shown: Record) -> list[tuple[str, str]]:
    servers = sorted({record.server for record in group if record.server})
    clocks = sorted({record.clock_mhz for record in group if record.clock_mhz})
    protocol = " ".join(f"{name}={value}" for name, value in (shown.protocol or {}).items())
    dates = sorted(record.time for record in group)
    versions = Counter(_versions(record) for record in group)
    rows = [
        ("runner", shown.runner),
        ("device", f"{shown.device} ({shown.arch})"),
        ("servers", ", ".join(servers)),
        ("clock", f"{clocks[0]:g} to {clocks[-1]:g} MHz" if clocks else ""),
        ("L2 cache", shown.l2 or ""),
        ("protocol", protocol),
        ("repeats", str(len(shown.times)) if shown.times else ""),
        ("time", f"{_minute(dates[0])} to {_minute(dates[-1])} UTC"),
        ("source", shown.git_id or ""),
        *(("versions", f"{text} ({count} trials)") for text, count in versions.most_common()),
    ]
    return [(name, text) for name, text in rows if text]


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _versions(record: Record) -> str:
    return ", ".join(f"{name} {value}" for name, value in record.versions.items() if value)
