"""A record's kernel for the page: its accesses, layouts, banks and pipeline."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod

from ...errors import LayoutExtError
from ...layout import SwizzledSharedLayout
from ...target import cuda_target
from ...tune.apply.programs import Programs
from ...tune.records.log import Record
from ..banks import bank_picture, worst
from ..drawing import as_svg
from ..explain import Explanation, explain
from ..layout_grids import strided_grid
from ..pipeline_chart import explain_pipeline
from ..shared_buffers import SharedBuffer
from ..winner import schedule_record

#: Rows of a shared buffer that are drawn; all others follow the same rule.
_ROWS = 16
#: Blocks that are run: a block of each kind of a tuned kernel does the same.
_BLOCKS = 1
_XOR = re.compile(r"xor\((\d+), (\d+), (\d+)\)")


@dataclass(frozen=True)
class KernelView:
    """What the page tells of a kernel, or the problem why it cannot.

    ``layouts`` are SVG of each shared buffer, by title; ``banks`` and ``pipeline`` SVG, empty if
    there is no shared memory, or no pipeline.
    """

    problem: str = ""
    found: Explanation | None = None
    layouts: dict[str, str] = field(default_factory=dict)
    banks: str = ""
    pipeline: str = ""


def kernel_of(record: Record, programs: Programs | None = None) -> KernelView:
    """Build a record's kernel again and tell of it; what cannot be told has its reason.

    Without ``programs``, those of its log, records of ready schedules alone have a kernel.
    """
    try:
        operator = programs.operator(record) if programs is not None else None
        module, arrays = schedule_record(record, operator)
        target = cuda_target(record.arch)
        found = explain(module, arrays=arrays, target=target, grid_sample=_BLOCKS)
        charts = explain_pipeline(module, target=target)
        return KernelView(
            found=found,
            layouts=_layouts(found),
            banks=bank_picture(worst(found.banks)) if found.banks else "",
            pipeline=charts.svg() if charts.charts else "",
        )
    except LayoutExtError as error:
        return KernelView(problem=f"Its kernel cannot be explained: {error}")
    except Exception as error:
        # A record of another version may meet anything in TVM; the page is about all the others.
        lines = str(error).strip().splitlines() or ["no text"]
        return KernelView(
            problem=f"Its kernel cannot be built: {type(error).__name__}: {lines[-1]}"
        )


def _layouts(found: Explanation) -> dict[str, str]:
    """The first rows of shared buffers by bank, alike ones once; one without rows has none."""
    chosen = {d.subject: d.text for d in found.decisions if d.maker == "SwizzleSharedMemory"}
    named: dict[tuple[str, str], list[str]] = {}
    for buffer in found.shared:
        if buffer.stride is not None:
            drawn = _layout(buffer, chosen.get(buffer.name, ""))
            named.setdefault(drawn, []).append(buffer.name)
    return {f"{', '.join(names)}: {title}": svg for (title, svg), names in named.items()}


def _layout(buffer: SharedBuffer, chosen: str) -> tuple[str, str]:
    stride, rows, columns = buffer.stride or 1, prod(buffer.shape[:-1]), buffer.shape[-1]
    shape = min(buffer.shape[-2], _ROWS), columns
    bits = 8 * buffer.bytes // (rows * stride)
    if numbers := _XOR.match(chosen):
        vec, per_phase, max_phase = map(int, numbers.groups())
        layout = SwizzledSharedLayout(vec, per_phase, max_phase, [1, 0])
        name = repr(layout)
        svg = layout.render(shape, kind="svg", view="bank", element_bits=bits)
    else:
        name = f"rows {stride} elements apart" if buffer.padding else "plain rows"
        grid = strided_grid(shape, stride, bits)
        svg = as_svg(name, [grid], "columns", merge=True)
    title = f"{name}, first {shape[0]} of {rows} rows of {columns} elements"
    return title, svg
