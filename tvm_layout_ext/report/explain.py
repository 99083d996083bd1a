"""``explain``: every global and shared access of a kernel, with what it costs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import gcd, prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from .. import decisions
from ..analysis.bank_conflict import Conflict
from ..analysis.nest import element_bytes
from ..build import device_program, to_module
from ..checks import whole_number
from ..errors import ScheduleError
from ..gpu.hardware import MAX_ACCESS_BYTES, SECTOR_BYTES, WARP_SIZE
from ..ir.conditions import analyzer_of
from ..ir.device_program import DeviceProgram
from ..ir.queries import is_number
from ..simulate.report import AccessCounts
from ..simulation import simulate
from ..target import resolve
from ..text import brief, columns
from .advice import Advice, Question, advise
from .banks import bank_tables, read_conflicts
from .cuda_listing import cuda_listing
from .limit import Limit, longest, read_limits
from .listing import listing
from .shared_buffers import SharedBuffer, read_shared_buffers

#: Blocks that are run for the counters; every block of a regular kernel does the same.
_GRID_SAMPLE = 4
_SEED = 0
_ACCESS_HEADS = (
    "buffer",
    "scope",
    "kind",
    "vector bytes",
    "sectors/request",
    "least",
    "conflict",
    "block",
    "sites",
    "lines",
)
_REST = "text() has every access, what was decided, and the code with counters beside its lines."
_SHARED_HEADS = ("shared buffer", "shape", "row stride", "padding", "bytes")

#: Heads and rows of a table.
Table = tuple[tuple[str, ...], list[list[str]]]


@dataclass(frozen=True)
class AccessRow:
    """One access site of global or shared memory."""

    buffer: str
    scope: str
    kind: str
    vector_bytes: int
    requests: int  #: Warp-wide accesses that were run
    sectors_per_request: float | None  #: None for shared memory, and so is the next
    ideal_sectors_per_request: float | None  #: What the bytes need at least
    #: Wavefronts over the least possible, 1 to 32; None for global memory.
    conflict_degree: float | None
    block: str | None  #: Of the schedule, where it is known
    line: int  #: Of the printed device function
    #: What a thread of a full warp could move at once: up to 16 bytes that divide tensor rows.
    widest_bytes: int | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether the tensor allows wider accesses: fewer requests for the same sectors."""
        return self.widest_bytes is not None and self.vector_bytes < self.widest_bytes

    @staticmethod
    def of(record: AccessCounts, widest: Mapping[str, int]) -> AccessRow:
        """Divide the counters of an access by its requests; ``widest`` is what tensors allow."""
        requests, is_global = max(record.requests, 1), record.scope == "global"
        least = record.wavefronts - record.bank_conflicts
        # Half a warp and less, as one lane that stores a sum, has nothing to do more widely.
        moved = 2 * SECTOR_BYTES * record.ideal_sectors
        is_full = moved > WARP_SIZE * requests * record.vector_bytes
        return AccessRow(
            record.buffer,
            record.scope,
            record.kind,
            record.vector_bytes,
            record.requests,
            record.sectors / requests if is_global else None,
            record.ideal_sectors / requests if is_global else None,
            None if is_global else record.wavefronts / max(least, 1),
            record.site.block,
            record.site.line,
            widest.get(record.buffer) if is_global and is_full else None,
        )

    def cells(self) -> tuple[str, ...]:
        """All but the line, as text."""
        degree, width = self.conflict_degree, str(self.vector_bytes)
        return (
            self.buffer,
            self.scope,
            self.kind,
            f"{width} of {self.widest_bytes}" if self.is_narrow else width,
            _number(self.sectors_per_request),
            _number(self.ideal_sectors_per_request),
            "-" if degree is None else f"{_number(degree)}-way",
            self.block or "-",
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` found; ``str`` has the verdict and advice, ``text()`` all of it.

    Attributes
    ----------
    rows : list of AccessRow
        One a site, in the order of the program.
    shared : list of SharedBuffer
        Stride, padding and bytes of each shared buffer.
    shared_bytes : int
        What a block allocates, after merging.
    bank_conflicts : int
        Of the blocks that were run.
    hazards : list of str
        Races and reads of unwritten memory that the simulated GPU saw.
    decisions : list of Decision
        What the passes chose or refused, and why.
    banks : list of Conflict
        Lane by lane, the banks that each shared access meets.
    whole : IRModule, optional
        The same schedule of a larger shape, whose limit is told.
    """

    rows: list[AccessRow]
    shared: list[SharedBuffer]
    shared_bytes: int
    bank_conflicts: int
    hazards: list[str]
    decisions: list[decisions.Decision]
    banks: list[Conflict]
    question: Question = field(repr=False)
    program: DeviceProgram = field(repr=False)
    whole: tvm.IRModule | None = field(default=None, repr=False)

    @cached_property
    def limit(self) -> Limit | None:
        """What limits the kernel that takes the longest; None where that cannot be modelled."""
        asked = self.question
        if self.whole is None:
            return asked.now.limit
        return longest(read_limits(self.whole, asked.target, asked.report, asked.mod))

    @cached_property
    def advice(self) -> list[Advice]:
        """At most three things to do, each tried on a copy of the program when first asked for."""
        return advise(self.question)

    @cached_property
    def listing(self) -> str:
        """The device functions, whose lines the table counts, with counters beside the lines."""
        return listing(self.question.report)

    @cached_property
    def cuda(self) -> str:
        """The kernels in CUDA, with the same counters beside the lines."""
        return cuda_listing(self.program, self.question.report)

    def tables(self) -> list[Table]:
        """Accesses, and shared buffers if there are any.

        Sites that differ in nothing but their line, as unrolling leaves them, share a row.
        """
        lines: dict[tuple[str, ...], list[int]] = {}
        for row in self.rows:
            lines.setdefault(row.cells(), []).append(row.line)
        accesses = [[*cells, str(len(at)), _span(at)] for cells, at in lines.items()]
        shared = [buffer.cells() for buffer in self.shared]
        return [(_ACCESS_HEADS, accesses), *([(_SHARED_HEADS, shared)] if shared else [])]

    def text(self) -> str:
        """All of it: tables, hazards, limit, advice, decisions, banks that clash, and the code."""
        run, blocks = self.question.report.blocks
        parts = [
            *(columns(*table) for table in self.tables()),
            f"Shared memory of a block: {self.shared_bytes:,} bytes; {run:,} of {blocks:,} blocks "
            f"were run. Bank conflicts in the blocks run: {self.bank_conflicts:,}.",
            "\n".join(self.question.report.open),
            "\n".join(f"Hazard: {hazard}" for hazard in self.hazards),
            str(self.limit or ""),
            "\n".join(map(str, self.advice)),
            "\n".join(map(str, self.decisions)),
            bank_tables([bank for bank in self.banks if bank.wavefronts > bank.least]),
            listing(self.question.report, is_whole=False),
        ]
        return "\n\n".join(part for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "accesses": [asdict(row) for row in self.rows],
            "shared": [asdict(buffer) for buffer in self.shared],
            "shared_bytes": self.shared_bytes,
            "bank_conflicts": self.bank_conflicts,
            "open": self.question.report.open,
            "hazards": self.hazards,
            "limit": self.limit and {"name": self.limit.name, **asdict(self.limit)},
            "advice": [asdict(advice) for advice in self.advice],
            "decisions": [str(decision) for decision in self.decisions],
            "listing": self.listing,
        }

    def __str__(self) -> str:
        return brief([*self._summary(), *map(str, self.advice)], _REST)

    def __repr__(self) -> str:
        return "\n".join(self._summary())

    def _summary(self) -> list[str]:
        """At most four lines: what is wrong, what limits, what to do."""
        run, blocks = self.question.report.blocks
        narrow = list(dict.fromkeys(row.buffer for row in self.rows if row.is_narrow))
        said = [
            f"Explanation: {len(self.rows)} accesses, {run:,} of {blocks:,} blocks run, "
            f"{self.bank_conflicts:,} bank conflicts, {len(self.hazards)} hazards"
        ]
        if narrow:
            said.append(f"Narrower than they may be: {', '.join(narrow[:8])}")
        said += [f"Hazard: {hazard}" for hazard in self.hazards[:1]]
        return [*said, *([str(self.limit)] if self.limit else [])]


def _span(lines: Sequence[int]) -> str:
    low, high = min(lines), max(lines)
    return str(low) if low == high else f"{low}-{high}"


def explain(
    source: Any,
    args: Sequence[Any] | None = None,
    *,
    arrays: Sequence[Any] | None = None,
    values: Mapping[str, int] | None = None,
    target: str | Target | None = None,
    grid_sample: int | None = _GRID_SAMPLE,
) -> Explanation:
    """Say how a kernel uses memory: each access's vector width, sectors, and bank conflicts.

    Runs some blocks on the simulated GPU; needs no GPU and no compiler.

    Parameters
    ----------
    source : tvm_layout_ext.te.Schedule, tvm.s_tir.Schedule, PrimFunc or IRModule
        What was scheduled, or what ``lower`` gave.
    args : sequence of te.Tensor, optional
        Parameters of a TE-style schedule; by default its inputs and then its outputs.
    arrays : sequence, optional
        As for ``simulate``; by default drawn at random.
    values : mapping of str to int, optional
        Values of symbolic sizes and of numbers among the parameters.
    target : str or tvm.target.Target, optional
        By default :func:`tvm_layout_ext.default_target`.
    grid_sample : int or None
        How many blocks to run; None runs all.

    Raises
    ------
    ScheduleError
        If a symbolic size has no value, or the source is of another type.
    NotModelled
        If the kernel uses something that the simulated GPU does not model.
    """
    mod = to_module(source, args)
    if arrays is not None and not isinstance(arrays, list | tuple):
        raise ScheduleError(f"arrays is a list of them, not {arrays!r}.")
    if values is not None and not isinstance(values, Mapping):
        raise ScheduleError(f"values has sizes by their names, not {values!r}.")
    drawn = list(arrays) if arrays is not None else draw_arguments(mod, values or {})
    bound = resolve(getattr(source, "target", None) if target is None else target)
    with decisions.collect() as made:
        program = device_program(mod, target=bound)
        report = simulate(program, *drawn, grid_sample=grid_sample)
    in_memory = ("global", "shared", "shared.dyn")
    widest = _widest_accesses(mod)
    is_te = hasattr(source, "to_module")
    rows = [AccessRow.of(record, widest) for record in report.accesses if record.scope in in_memory]
    return Explanation(
        rows=rows,
        shared=read_shared_buffers(mod, bound),
        shared_bytes=report.shared_bytes,
        bank_conflicts=report.bank_conflicts,
        hazards=[str(hazard) for hazard in report.hazards],
        decisions=list(dict.fromkeys(made)),
        banks=read_conflicts(program),
        question=Question(mod, report, drawn, bound, widest, grid_sample, is_te),
        program=program,
    )


def _widest_accesses(mod: tvm.IRModule) -> dict[str, int]:
    """Bytes, up to 16, that divide the rows of each global tensor of known row length."""
    tensors: list[Any] = []
    look = (s_tir.SBlock, lambda block: tensors.extend(block.alloc_buffers))
    for func in mod.functions.values():
        if isinstance(func, tirx.PrimFunc):
            tensors += [param for param in func.params if hasattr(param, "shape")]
            tvm_ffi.structural_walk(func.body, [look])
    found: dict[str, int] = {}
    for tensor in tensors:
        extents = [n for n in tensor.shape if not is_number(n, 1)][-1:] or [1]
        if isinstance(extents[0], int | tirx.IntImm) and not list(tensor.ty.strides):
            row = int(extents[0]) * element_bytes(tensor)
            aligned = int(tensor.ty.data_alignment) or element_bytes(tensor)
            found[str(tensor.name)] = gcd(row, aligned, MAX_ACCESS_BYTES)
    return found


def draw_arguments(mod: tvm.IRModule, values: Mapping[str, int]) -> list[Any]:
    """Random arrays, and the given numbers, for the parameters of a module's only function.

    ``values`` has each symbolic size, and each number among the parameters, by name.
    """
    functions = {gv: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    if len(functions) != 1:
        names = ", ".join(sorted(gv.name_hint for gv in functions)) or "none"
        raise ScheduleError(f"explain needs a module of one function; this one has {names}.")
    (func,) = functions.values()
    rng = np.random.default_rng(_SEED)
    return [_argument(rng, param, values) for param in func.params]


def _argument(rng: np.random.Generator, param: Any, values: Mapping[str, int]) -> Any:
    if not hasattr(param, "shape"):
        if param.name not in values:
            raise ScheduleError(f"Parameter {param.name} is a number; give its value.")
        return values[param.name]
    shape = tuple(_extent(extent, param.name, values) for extent in param.shape)
    size = f"{' x '.join(map(str, shape))} {param.dtype}"
    try:
        dtype = np.dtype(str(param.dtype))
    except TypeError:
        raise ScheduleError(f"Parameter {param.name} is {size}, a type without arrays.") from None
    # Drawn as doubles. Linux grants any memory, and ends the process that uses it.
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (8 + dtype.itemsize)
    if prod(shape) > most:
        raise ScheduleError(
            f"Parameter {param.name} is {size}; this machine's memory holds {most:,} elements."
        )
    drawn = rng.random(shape)
    drawn *= 8
    return drawn.astype(dtype)


def _extent(extent: Any, buffer: str, values: Mapping[str, int]) -> int:
    if isinstance(extent, int | tirx.IntImm):
        return int(extent)
    used = [var for var in tirx.analysis.undefined_vars(extent) if var.name in values]
    for var in used:
        whole_number(f"The value of {var.name}", values[var.name], 0, ScheduleError, (1 << 31) - 1)
    known = [(var, tvm.ir.Range.from_min_extent(values[var.name], 1)) for var in used]
    result = analyzer_of(known).simplify(extent)
    if not isinstance(result, tirx.IntImm):
        raise ScheduleError(
            f"Buffer {buffer} has the symbolic size {extent}; give values for its variables."
        )
    return int(result)
