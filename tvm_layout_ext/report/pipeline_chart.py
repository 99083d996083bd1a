"""``explain_pipeline``: which body of a pipelined loop does what for which iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.target import Target

from .. import decisions
from ..build import lower
from ..text import brief, columns
from ..transform.pipeline.record import PipelineRecord, PipelineStep
from .drawing.boxes import as_svg
from .drawing.grid import Cell, Grid

#: Bodies shown after the first that uses every version.
_MORE = 3
#: Loops of at most so many iterations are shown whole.
_WHOLE = 8


@dataclass(frozen=True)
class PipelineChart:
    """One pipelined loop: the plan that the pass carried out.

    ``refused`` says, by buffer, why copies into it go through registers all the same.
    """

    record: PipelineRecord
    refused: dict[str, str]

    @property
    def bodies(self) -> range:
        """The bodies shown; those below 0 are the prologue."""
        record = self.record
        shown = record.depth + max((b.versions for b in record.buffers), default=1) + _MORE
        if record.last is not None:
            count = record.last + 1
            shown = count if count <= _WHOLE else min(shown, count)
        return range(-record.depth, shown)

    @property
    def has_all(self) -> bool:
        """Whether no body is left out."""
        return self.record.last is not None and self.bodies.stop == self.record.last + 1

    def title(self) -> str:
        """The loop and its extent."""
        return (
            f"Loop {self.record.loop}, {self.record.extent} iterations, "
            f"{self.record.depth} before the first that computes"
        )

    def label(self, step: PipelineStep) -> str:
        """What a step does, in words."""
        by = "" if step.fills is None else "async" if self.is_async(step) else "registers"
        told = ", ".join(filter(None, (by, step.role)))
        name = f"copy {step.fills}" if step.fills else step.name
        return f"{name} ({told})" if told else name

    def is_async(self, step: PipelineStep) -> bool:
        """Whether a step is an asynchronous copy."""
        return step.fills is not None and step.asynchronous and step.fills not in self.refused

    def arrives(self, body: int) -> bool:
        """Whether a body begins with a wait or a barrier."""
        return body >= 0 or any(s.ahead > 0 and s.reads for s in self.record.steps)

    def wait(self, body: int) -> str:
        """Groups that may be under way after the wait of a body."""
        pending = self.record.prologue_wait if body < 0 else self.record.wait
        return "" if pending is None or not self.arrives(body) else f"<={pending}"

    def barrier(self, body: int) -> str:
        """A mark where a body has a barrier after its wait."""
        return "x" if self.record.barrier and self.arrives(body) else ""

    def cell(self, step: PipelineStep, body: int) -> str:
        """Iteration and versions of a step in a body; empty where it does not run."""
        iteration = self.record.runs(step, body)
        if iteration is None:
            return ""
        used = [step.fills] if step.fills else list(step.reads)
        versions = [f"v{self.record.version(name, iteration)}" for name in used]
        shown = versions[:1] if len(set(versions)) == 1 else versions
        return " ".join([str(iteration), *([",".join(shown)] if shown else [])])

    def rows(self) -> list[tuple[str, list[str]]]:
        """Name and cells of each row in the order of a body: wait, barrier, each step."""
        steps = [(self.label(s), [self.cell(s, b) for b in self.bodies]) for s in self.record.steps]
        return [
            ("groups under way", [self.wait(body) for body in self.bodies]),
            ("barrier", [self.barrier(body) for body in self.bodies]),
            *steps,
        ]

    def notes(self) -> list[str]:
        """Buffers with their bytes, waits in words, refusals."""
        record = self.record
        lines = [
            f"{b.name}: {b.versions} versions x {b.version_bytes:,} = {b.bytes:,} bytes ({b.scope})"
            for b in record.buffers
        ]
        lines.append(f"Shared memory of all versions: {record.shared_bytes:,} bytes.")
        if record.wait is not None:
            lines.append(
                f"Groups under way: after the wait at the top of a body at most {record.wait}; the "
                "copies of a body form one group. After the loop a wait for all."
            )
        lines += record.channels
        lines += [
            f"{name} is copied through registers: {why}." for name, why in self.refused.items()
        ]
        return lines

    def grid(self) -> Grid:
        """The chart as boxes: a colour is a version, a dashed box a copy that lands later."""
        end: list[Cell | None] = [] if self.has_all else [None]
        # Waits and barriers come before the steps.
        heads = [None] * (len(self.rows()) - len(self.record.steps))
        cells = [
            [self._box(step, body, text) for body, text in zip(self.bodies, row, strict=True)] + end
            for step, (_, row) in zip([*heads, *self.record.steps], self.rows(), strict=True)
        ]
        columns = [*map(str, self.bodies), *("..." for _ in end)]
        names = [name for name, _ in self.rows()]
        return Grid(self.title(), names, columns, cells, self.notes(), self.record.depth)

    def _box(self, step: PipelineStep | None, body: int, text: str) -> Cell | None:
        if not text:
            return None
        if step is None:
            return Cell(text, -1, 0, body, body, f"body {body}: {text}")
        iteration = self.record.runs(step, body) or 0
        used = step.fills or (step.reads[0] if step.reads else None)
        hue = -1 if used is None else self.record.version(used, iteration)
        detail = f"body {body}: {self.label(step)}, iteration {iteration}"
        return Cell(text, hue, 0, iteration, body, detail, self.is_async(step))

    def __str__(self) -> str:
        bodies = [str(body) for body in self.bodies]
        ends = [] if self.has_all else ["..."]
        cells = [[name, *(cell or "." for cell in row), *ends] for name, row in self.rows()]
        table = columns(["body", *bodies, *ends], cells)
        return "\n".join([self.title(), table, *self.notes()])


_NONE = "No loop keeps several versions of a buffer."


@dataclass(frozen=True)
class PipelineExplanation:
    """What :func:`explain_pipeline` found; ``text()`` draws it.

    There is a chart for each pipelined loop, inner loops before those around them.
    """

    charts: list[PipelineChart]

    def text(self) -> str:
        """The charts below each other."""
        return "\n\n".join(map(str, self.charts)) or _NONE

    def __str__(self) -> str:
        said = [line for one in self.charts for line in (one.title(), *one.notes())]
        return brief(said, "text() draws it, svg() in colour.") if said else _NONE

    __repr__ = __str__

    def svg(self) -> str:
        """Draw all charts below each other, as one SVG document."""
        return as_svg(
            "Pipelines: iteration and version by body", [c.grid() for c in self.charts], "version"
        )

    def _repr_svg_(self) -> str:
        return self.svg()


def explain_pipeline(
    source: Any, args: Sequence[Any] | None = None, *, target: str | Target | None = None
) -> PipelineExplanation:
    """Draw who is copied where and when by the pipelined loops of a program.

    Lowers the program and shows the plans that pass ``InjectMultiStageBuffer`` carried out. A cell
    holds the iteration that a statement works for, and the version of the buffer that it fills or
    reads; a body that comes before 0 is one of the prologue. What ``lower`` gave has no such loops
    any more; other parameters are as of ``lower``. Print its ``text()``, or write its
    ``svg()`` to a file.

    Examples
    --------
    A copy with 2 versions, and a loop of 4::

        Loop k, 4 iterations, 1 before the first that computes
        body              -1    0     1     2     3
        groups under way  .     <=0   <=0   <=0   <=0
        barrier           .     x     x     x     x
        copy S (async)    0 v0  1 v1  2 v0  3 v1  .
        sum               .     0 v0  1 v1  2 v0  3 v1
    """
    with decisions.collect() as made:
        lower(source, args, target=target)
    records = [d.record for d in made if isinstance(d.record, PipelineRecord)]
    refused = {
        d.subject: d.text.partition(": ")[2]
        for d in made
        if d.maker == "LowerAsyncCopy" and d.refused
    }
    charts = []
    for record in dict.fromkeys(records):
        names = {buffer.name for buffer in record.buffers}
        own = {name: why for name, why in refused.items() if name in names}
        charts.append(PipelineChart(record, own))
    return PipelineExplanation(charts)
