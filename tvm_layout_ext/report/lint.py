"""Rules that a kernel is held to in tests and on the command line, counted on the simulated GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..checks import is_one_of, whole, whole_number
from ..errors import ScheduleError
from ..gpu.hardware import MAX_ACCESS_BYTES
from ..simulate.report import AccessCounts
from .explain import AccessRow, Explanation, explain
from .listing import listing

#: Findings that a failed assertion tells.
_TOLD = 8


@dataclass(frozen=True)
class Rules:
    """What a kernel may do; None leaves something unchecked."""

    bank_conflicts: int | None = 0  #: The most in the blocks that are run
    hazards: int | None = 0  #: Likewise
    #: The least that a lane moves in a request to global memory, where a full warp takes part and
    #: the tensor's rows allow that much.
    min_vector_bytes: int | None = None
    #: The most sectors of an access to global memory over the least that its bytes need.
    max_sectors_ratio: float | None = None

    def __post_init__(self) -> None:
        for name in ("bank_conflicts", "hazards"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 0, ScheduleError)
        width, ratio = self.min_vector_bytes, self.max_sectors_ratio
        if width is not None and not is_one_of(whole(width), (1, 2, 4, 8, MAX_ACCESS_BYTES)):
            raise ScheduleError(f"min_vector_bytes is 1, 2, 4, 8 or 16, not {width!r}.")
        if ratio is not None and (not isinstance(ratio, int | float) or not ratio >= 1):
            raise ScheduleError(f"max_sectors_ratio is a number from 1, not {ratio!r}.")


@dataclass(frozen=True)
class Finding:
    """A rule that a kernel breaks.

    ``rule`` is the name of the rule, ``count`` what was counted and ``limit`` what may be. ``line``
    and ``code`` are those of the listing, which are 0 and empty of what has no line of its own.
    """

    rule: str
    buffer: str
    block: str | None
    message: str
    count: float
    limit: float
    line: int
    code: str
    sites: int = 1

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        more = f" (and {self.sites - 1} lines alike)" if self.sites > 1 else ""
        return f"{self.rule}: {where}{self.message}{more}" + (
            f"\n    {self.code}" * bool(self.code)
        )

    def as_github(self, file: str, line: int) -> str:
        """An annotation of a file's line, as GitHub reads it from the output of a job."""
        text = self.message.replace("%", "%25").replace("\n", "%0A").replace("\r", "%0D")
        kind = "error" if self.rule == "hazards" else "warning"
        return f"::{kind} file={file},line={line},title={self.rule}::{text}"


def lint(
    source: Any, args: Sequence[Any] | None = None, rules: Rules | None = None, **options: Any
) -> list[Finding]:
    """List what breaks the rules, by default those of :class:`Rules`.

    ``options`` are those of :func:`.explain.explain`.
    """
    return _merged(_findings(explain(source, args, **options), rules or Rules()))


def _findings(found: Explanation, rules: Rules) -> Iterator[Finding]:
    report = found.question.report
    code = ["", *report.script.split("\n")]
    if rules.hazards is not None and len(report.hazards) > rules.hazards:
        for hazard in report.hazards:
            site = hazard.sites[0]
            yield Finding(
                "hazards", hazard.buffer, site.block, str(hazard), len(report.hazards),
                rules.hazards, site.line, code[site.line].strip(),
            )  # fmt: skip
    is_conflicting = (
        rules.bank_conflicts is not None and report.bank_conflicts > rules.bank_conflicts
    )
    for access in report.accesses:
        for rule, message, count, limit in _broken(access, found, rules, is_conflicting):
            line = access.site.line
            yield Finding(
                rule, access.buffer, access.site.block, message, count, limit, line,
                code[line].strip(),
            )  # fmt: skip


def _broken(
    access: AccessCounts, found: Explanation, rules: Rules, is_conflicting: bool
) -> Iterator[tuple[str, str, float, float]]:
    """Rule, message, count and limit of what one access breaks."""
    block = f" in block {access.site.block}" if access.site.block else ""
    who = f"{access.kind} of {access.buffer}{block}"
    if access.bank_conflicts and is_conflicting:
        least = access.wavefronts - access.bank_conflicts
        total = found.bank_conflicts
        message = (
            f"{who} takes {access.wavefronts:,} wavefronts where {least:,} would do; the kernel "
            f"has {total:,} bank conflicts, and {rules.bank_conflicts:,} may be"
        )
        yield "bank_conflicts", message, access.bank_conflicts, rules.bank_conflicts or 0
    row = AccessRow.of(access, found.question.widest)
    wanted = min(rules.min_vector_bytes or 0, row.widest_bytes or 0)
    if access.vector_bytes < wanted:
        message = (
            f"{who} moves {access.vector_bytes} bytes a lane in a request, of which there are "
            f"{access.requests:,}; its tensor allows {row.widest_bytes}, and at least {wanted} are "
            f"asked for"
        )
        yield "min_vector_bytes", message, access.vector_bytes, wanted
    ratio = access.sectors / access.ideal_sectors if access.ideal_sectors else 1.0
    if rules.max_sectors_ratio is not None and ratio > rules.max_sectors_ratio:
        message = (
            f"{who} touches {access.sectors:,} sectors where its bytes fill "
            f"{access.ideal_sectors:,}, {ratio:.3g} times as many; at most "
            f"{rules.max_sectors_ratio:g} times may be"
        )
        yield "max_sectors_ratio", message, ratio, rules.max_sectors_ratio


def _merged(findings: Iterator[Finding]) -> list[Finding]:
    """Say what an unrolled loop repeats line by line once."""
    found: dict[Any, Finding] = {}
    for one in findings:
        key = (one.rule, one.buffer, one.block, one.message)
        known = found.get(key)
        found[key] = one if known is None else replace(known, sites=known.sites + 1)
    return list(found.values())


def as_json(findings: Mapping[str, Sequence[Finding]]) -> str:
    """Findings by the name of the kernel, for other programs."""
    listed = {name: [asdict(one) for one in some] for name, some in findings.items()}
    return json.dumps(listed, indent=2)


def assert_kernel(
    source: Any,
    args: Sequence[Any] | None = None,
    *,
    bank_conflicts: int | None = 0,
    hazards: int | None = 0,
    min_vector_bytes: int | None = None,
    max_sectors_ratio: float | None = None,
    **options: Any,
) -> None:
    """Fail a test if a kernel uses memory worse than is said, or has a hazard.

    Runs some blocks on the simulated GPU; needs no GPU and no compiler.

    Parameters
    ----------
    source, args, **options
        As of :func:`tvm_layout_ext.explain`.
    bank_conflicts, hazards, min_vector_bytes, max_sectors_ratio
        As of :class:`Rules`; None leaves something unchecked.

    Raises
    ------
    AssertionError
        With the buffer, block, line and numbers of each rule that is broken, how many blocks were
        run, and the listing that the lines count.

    Examples
    --------
    >>> tlx.assert_kernel(sch, min_vector_bytes=16, max_sectors_ratio=1.05)  # doctest: +SKIP
    """
    rules = Rules(bank_conflicts, hazards, min_vector_bytes, max_sectors_ratio)
    explained = explain(source, args, **options)
    found = _merged(_findings(explained, rules))
    if found:
        report = explained.question.report
        run, blocks = report.blocks
        head = f"The kernel breaks these rules, in the {run:,} of {blocks:,} blocks that were run."
        rest = len(found) - _TOLD
        told = [*map(str, found[:_TOLD]), *([f"and {rest} more"] if rest > 0 else [])]
        raise AssertionError("\n".join([head, *told, listing(report, is_whole=False)]))
