"""A record's kernel for the page: its accesses, source, banks and pipeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from ...analysis.device_limits import launch_extents
from ...calls import disk
from ...errors import LayoutExtError
from ...text import lines_of
from ...tune.apply.programs import Programs
from ...tune.records.log import Record
from ..banks import bank_picture, worst
from ..pipeline_chart import explain_pipeline
from ..winner import explain_record

#: Blocks that are run: a block of each kind of a tuned kernel does the same.
_BLOCKS = 1


@dataclass(frozen=True)
class KernelView:
    """What the page tells of a kernel, or the problem why it cannot; all of it plain values.

    ``counted`` is the shape that the simulated GPU ran. ``tables`` are heads and rows, ``limit`` is
    of the whole shape, ``script`` and ``cuda`` have counters beside their lines. ``threads`` are
    those of a block, 0 where there are several kernels. ``banks`` and ``pipeline`` are SVG, empty
    if there is no shared memory, or no pipeline.
    """

    problem: str = ""
    counted: Sequence[int] = ()
    limit: str = ""
    threads: int = 0
    shared_bytes: int = 0
    bank_conflicts: int = 0
    tables: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]] = ()
    hazards: Sequence[str] = ()
    script: str = ""
    cuda: str = ""
    decisions: Sequence[str] = ()
    banks: str = ""
    pipeline: str = ""


def kernel_of(record: Record, programs: Programs | None = None) -> KernelView:
    """Build a record's kernel again and tell of it; what cannot be told has its reason.

    It is kept on disk, by all that it depends on. Without ``programs``, those of its log, records
    of ready schedules alone have a kernel.
    """
    work = record.workload
    key = disk.key_of("page", str(work), work.hash, record.config, record.arch, record.program)
    try:
        kept = disk.remembered(key, lambda: json.dumps(asdict(_told(record, programs))).encode())
        return KernelView(**json.loads(kept))
    except LayoutExtError as error:
        return KernelView(problem=f"Its kernel cannot be explained: {error}")
    except Exception as error:
        # A record of another version may meet anything in TVM; the page is about all the others.
        name, said = type(error).__name__, lines_of(error)[-1]
        return KernelView(problem=f"Its kernel cannot be built: {name}: {said}")


def _told(record: Record, programs: Programs | None) -> KernelView:
    operator = programs.operator(record) if programs is not None else None
    found, counted = explain_record(record, operator, blocks=_BLOCKS)
    charts = explain_pipeline(found.question.mod, target=found.question.target)
    kernels = list(found.program.kernels.values())
    return KernelView(
        counted=counted,
        limit=str(found.limit or ""),
        threads=_threads(kernels[0]) if len(kernels) == 1 else 0,
        shared_bytes=found.shared_bytes,
        bank_conflicts=found.bank_conflicts,
        tables=found.tables(),
        hazards=found.hazards,
        script=found.listing,
        cuda=found.cuda,
        decisions=list(map(str, found.decisions)),
        banks=bank_picture(worst(found.banks)) if found.banks else "",
        pipeline=charts.svg() if charts.charts else "",
    )


def _threads(kernel: Any) -> int:
    return prod(n for tag, n in launch_extents(kernel).items() if tag.startswith("threadIdx"))
