"""A record's kernel for the page: its accesses, layouts, banks and pipeline."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod

import tvm
from tvm.target import Target

from ...errors import LayoutExtError
from ...layout import SwizzledSharedLayout
from ...target import cuda_target
from ...tune.apply.programs import Programs
from ...tune.records.log import Record
from ..banks import bank_picture
from ..explain import (
    ACCESS_HEADS,
    SHARED_HEADS,
    Explanation,
    access_table,
    shared_cells,
)
from ..pipeline_chart import explain_pipeline
from ..shared_buffers import SharedBuffer
from ..winner import explain_record, record_module
from .strided import strided_svg

__all__ = ["KernelView", "Picture", "kernel_of"]

#: Rows of a shared buffer that are drawn; all others follow the same rule.
_ROWS = 16
_XOR = re.compile(r"xor\((\d+), (\d+), (\d+)\)")


@dataclass(frozen=True)
class Picture:
    """A drawing and what it is of."""

    title: str
    svg: str


@dataclass(frozen=True)
class KernelView:
    """What the page tells of a kernel.

    Attributes
    ----------
    problem : str
        Why there is nothing to tell; empty if there is.
    accesses, shared : list of list of str
        Rows under :data:`access_heads` and :data:`shared_heads`.
    conflicts : int
        Bank conflicts in the blocks that were run.
    shared_bytes : int
    hazards, decisions : list of str
    layouts : list of Picture
        The shared buffers.
    banks, pipeline : str
        SVG; empty if there is no shared memory, or no pipeline.
    """

    problem: str = ""
    accesses: list[list[str]] = field(default_factory=list)
    shared: list[list[str]] = field(default_factory=list)
    conflicts: int = 0
    shared_bytes: int = 0
    hazards: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    layouts: list[Picture] = field(default_factory=list)
    banks: str = ""
    pipeline: str = ""
    access_heads: tuple[str, ...] = ACCESS_HEADS
    shared_heads: tuple[str, ...] = SHARED_HEADS


def kernel_of(record: Record, programs: Programs | None = None, *, pictures: bool) -> KernelView:
    """Build a record's kernel again and tell of it; what cannot be told has its reason.

    Parameters
    ----------
    record : Record
    programs : Programs, optional
        Of its log; by default records of ready schedules alone have a kernel.
    pictures : bool
        Whether to draw layouts, banks and pipeline, too.
    """
    try:
        operator = programs.operator(record) if programs is not None else None
        found = explain_record(record, operator)
        told = KernelView(
            accesses=access_table(found.rows),
            shared=[shared_cells(buffer) for buffer in found.shared],
            conflicts=found.bank_conflicts,
            shared_bytes=found.shared_bytes,
            hazards=found.hazards,
            decisions=[str(decision) for decision in found.decisions],
        )
        if not pictures:
            return told
        return _drawn(told, found, record_module(record, operator), cuda_target(record.arch))
    except LayoutExtError as error:
        return KernelView(problem=f"Its kernel cannot be explained: {error}")
    except Exception as error:
        # A record of another version may meet anything in TVM; the page is about all the others.
        lines = str(error).strip().splitlines() or ["no text"]
        return KernelView(
            problem=f"Its kernel cannot be built: {type(error).__name__}: {lines[-1]}"
        )


def _drawn(
    told: KernelView, found: Explanation, module: tvm.IRModule, target: Target
) -> KernelView:
    charts = explain_pipeline(module, target=target)
    return KernelView(
        **{
            **vars(told),
            "layouts": _layouts(found),
            "banks": bank_picture(found.banks) if found.banks else "",
            "pipeline": charts.svg() if charts.charts else "",
        }
    )


def _layouts(found: Explanation) -> list[Picture]:
    chosen = {
        decision.subject: decision.text
        for decision in found.decisions
        if decision.maker == "SwizzleSharedMemory"
    }
    drawn = (_layout(buffer, chosen.get(buffer.name, "")) for buffer in found.shared)
    return [picture for picture in drawn if picture is not None]


def _layout(buffer: SharedBuffer, chosen: str) -> Picture | None:
    """The first rows of a shared buffer by bank; None for one without rows."""
    if buffer.stride is None or len(buffer.shape) < 2:
        return None
    shape = min(buffer.shape[-2], _ROWS), buffer.shape[-1]
    bits = 8 * buffer.bytes // (prod(buffer.shape[:-1]) * buffer.stride)
    name, svg = _described(buffer, chosen, shape, bits)
    rows = f"first {shape[0]} of {prod(buffer.shape[:-1])} rows"
    return Picture(f"{buffer.name}: {name}, {rows} of {shape[1]} elements", svg)


def _described(
    buffer: SharedBuffer, chosen: str, shape: tuple[int, int], bits: int
) -> tuple[str, str]:
    """The layout's name, and its picture."""
    numbers = _XOR.match(chosen)
    if numbers is not None:
        vec, per_phase, max_phase = map(int, numbers.groups())
        layout = SwizzledSharedLayout(vec, per_phase, max_phase, [1, 0])
        return repr(layout), layout.render(shape, kind="svg", view="bank", element_bits=bits)
    name = f"rows {buffer.stride} elements apart" if buffer.padding else "plain rows"
    rows, columns = shape
    title = f"{buffer.name}, {name}"
    return name, strided_svg(title, rows, columns, buffer.stride or columns, bits)
