"""Map the iterations of a block to threads so that its memory requests are full and wide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .. import decisions
from ..analysis.access import Access, Loop, Nest, loop_kind, read_nest
from ..analysis.mapping import Mapping, choose_mapping, store_mapping
from ..analysis.sectors import Traffic, count_traffic
from ..errors import ScheduleError
from ..hardware import MAX_ACCESS_BYTES, WARP_SIZE
from .coalesce_direct import schedule_copy, schedule_direct
from .coalesce_reduction import schedule_reduction
from .coalesce_staged import schedule_staged
from .mark_annotated import ANNOTATION_PREFIX

__all__ = ["COALESCE", "AutoCoalesce", "Outcome", "Request", "coalesce"]

#: Block annotation that asks the pass: ``[num_threads or 0, vector_bytes, stage]``.
COALESCE = ANNOTATION_PREFIX + "auto_coalesce"
#: Block annotation that tells what was done.
DONE = ANNOTATION_PREFIX + "coalesced"
STAGES = ("auto", "shared", "none")
_NAME = "auto_coalesce"
_MAX_THREADS = 1024
#: Ratio of sectors that sampling cannot tell from equality.
_SAME = 1.02


@dataclass(frozen=True)
class Request:
    """What a user asks for.

    Attributes
    ----------
    num_threads : int, optional
        Threads of a block.
    vector_bytes : int
        Bytes of the widest access of a thread.
    stage : str
        ``auto``, ``shared`` (stage every load) or ``none`` (use no shared memory).
    """

    num_threads: int | None = None
    vector_bytes: int = MAX_ACCESS_BYTES
    stage: str = "auto"

    def __post_init__(self) -> None:
        threads, width = self.num_threads, self.vector_bytes
        if threads is not None and not _is_int(threads):
            raise ScheduleError(f"{_NAME} needs an int num_threads, not {threads!r}.")
        if threads is not None and (
            threads % WARP_SIZE or not WARP_SIZE <= threads <= _MAX_THREADS
        ):
            raise ScheduleError(
                f"{_NAME} needs num_threads to be a multiple of 32 from 32 to 1,024, not {threads}."
            )
        if not _is_int(width) or width not in (1, 2, 4, 8, 16):
            raise ScheduleError(
                f"{_NAME} needs vector_bytes to be 1, 2, 4, 8 or 16, not {width!r}."
            )
        if self.stage not in STAGES:
            raise ScheduleError(
                f"{_NAME} needs stage to be one of {', '.join(STAGES)}, not {self.stage!r}."
            )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Outcome:
    """What was done with a block.

    Attributes
    ----------
    path : str
        ``direct``, ``staged``, ``copy``, ``reduction``, or ``alone`` if nothing was changed.
    text : str
        One sentence: what, or why not.
    before, after : tuple of Traffic
        Sectors of each global access; ``before`` with one element a lane in the order of the loops,
        where the block was not bound yet.
    """

    path: str
    text: str
    before: tuple[Traffic, ...]
    after: tuple[Traffic, ...]


def coalesce(sch: Any, block: Any, request: Request) -> Outcome:
    """Re-map a block of a schedule; everything done to it is traced.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
    block : SBlockRV
    request : Request

    Raises
    ------
    ScheduleError
        If the block cannot be re-mapped; the schedule is then as it was.
    """
    nest = read_nest(sch, block)
    _check(nest)
    kernel = _enclosing_threads(sch, block, nest)
    free = _free_loops(nest, inside=kernel is not None)
    mapping = choose_mapping(nest, free, request.vector_bytes)
    ways = _ways(nest, free, mapping, kernel, request)
    before = _count_before(sch, block, nest, free, request)
    outcome, way = _best(sch, block, before, ways)
    decisions.note(_NAME, str(nest.block.name_hint), outcome.text, refused=way is None)
    if way is not None:
        way.apply(sch, block)
        sch.annotate(block, DONE, way.path)
    return outcome


@dataclass(frozen=True)
class _Way:
    """One way to map a block: what it is called, and what applies it.

    ``apply`` returns a text for the report and the blocks that then access global memory.
    """

    path: str
    apply: Callable[[Any, Any], tuple[str, list[Any]]]


def _ways(
    nest: Nest,
    free: Sequence[Loop],
    mapping: Mapping,
    kernel: dict[str, int] | None,
    request: Request,
) -> list[_Way]:
    """List the ways to try, of equally good ones the first is taken."""
    if kernel is not None:
        threads = _threads_of(nest, kernel, request)

        def copy(sch: Any, block: Any) -> tuple[str, list[Any]]:
            schedule_copy(sch, block, nest, mapping, threads)
            return f"spread over the kernel's threads, vectors of {mapping.vector}", [block]

        return [_Way("copy", copy)]

    if any(loop.is_reduction for loop in nest.loops):

        def reduction(sch: Any, block: Any) -> tuple[str, list[Any]]:
            return schedule_reduction(sch, block, nest, request.num_threads, request.vector_bytes)

        return [_Way("reduction", reduction)]

    def direct(sch: Any, block: Any) -> tuple[str, list[Any]]:
        schedule_direct(sch, block, nest, mapping, request.num_threads)
        return f"direct, vectors of {mapping.vector}", [block]

    stores_way = store_mapping(nest, free, request.vector_bytes)
    if request.stage == "shared":
        loads = [access for access in nest.of_scope("global") if access.kind == "load"]
        stores_way = replace(stores_way, disagreeing=tuple(a for a in loads if a.is_affine()))

    def staged(sch: Any, block: Any) -> tuple[str, list[Any]]:
        return schedule_staged(
            sch, block, nest, stores_way, request.num_threads, request.vector_bytes
        )

    def plain(sch: Any, block: Any) -> tuple[str, list[Any]]:
        as_is = Mapping(tuple(free), 1, 1, ())
        schedule_direct(sch, block, nest, as_is, request.num_threads)
        return "direct, in the order of the loops", [block]

    if request.stage == "shared" and stores_way.disagreeing:
        return [_Way("staged", staged)]
    ways = [_Way("direct", direct), _Way("direct", plain)]
    if request.stage != "none" and stores_way.disagreeing:
        ways.append(_Way("staged", staged))
    return ways


def _best(
    sch: Any, block: Any, before: tuple[Traffic, ...], ways: Sequence[_Way]
) -> tuple[Outcome, _Way | None]:
    """Try the ways on copies of the schedule; keep the one that moves the fewest sectors."""
    found: list[tuple[_Way, str, tuple[Traffic, ...]]] = []
    refusals: list[str] = []
    for way in ways:
        trial = sch.copy()
        try:
            text, touching = way.apply(trial, block)
        except (RuntimeError, IndexError, ScheduleError) as error:
            refusals.append(f"{way.path} is not possible: {_first_line(error)}")
            continue
        after = tuple(t for part in touching for t in count_traffic(read_nest(trial, part)))
        found.append((way, text, after))
    if not found:
        raise ScheduleError(
            f"{_NAME} finds no legal mapping of block {sch.get(block).name_hint}: {refusals[0]}."
        )
    best = found[0]
    for other in found[1:]:
        if _sectors_per_item(other[2]) * _SAME < _sectors_per_item(best[2]):
            best = other
    way, text, after = best
    sentence = _sentence("; ".join([text, *refusals]), before, after)
    if before and _sectors_per_item(after) > _SAME * _sectors_per_item(before):
        return Outcome("alone", f"left as it was: {sentence}", before, before), None
    return Outcome(way.path, sentence, before, after), way


def _sectors_per_item(traffic: Sequence[Traffic]) -> float:
    """Sectors that one iteration costs, over all accesses; requests carry different numbers."""
    return sum(t.sectors / t.iterations for t in traffic)


def _first_line(error: Exception) -> str:
    text = str(error)
    if "Error message:" in text:
        text = text.rpartition("Error message:")[2].strip().removeprefix("ScheduleError: ")
        text = "TensorIR refuses it, " + text
    return (text.strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".:")


def _threads_of(nest: Nest, kernel: dict[str, int], request: Request) -> dict[str, int]:
    """Thread axes to spread a block in a kernel over."""
    threads = kernel or {"threadIdx.x": request.num_threads or 4 * WARP_SIZE}
    total = prod(threads.values())
    if request.num_threads not in (None, total):
        raise ScheduleError(
            f"The kernel around block {nest.block.name_hint} has {total} threads; "
            f"{_NAME} cannot give the block {request.num_threads}."
        )
    return threads


def _check(nest: Nest) -> None:
    name = nest.block.name_hint
    if not nest.block.iter_vars or not _is_plain(nest.block.body):
        raise ScheduleError(
            f"Block {name} is opaque; {_NAME} re-maps only blocks whose body is one store."
        )
    empty = [loop for loop in nest.loops if loop.size == 0]
    if empty:
        raise ScheduleError(
            f"Loop {empty[0].var.name} of block {name} has extent 0, so there is nothing to map."
        )
    for access in nest.accesses:
        _check_size(access, name)
        call = _unknown_call(access)
        if call is not None:
            raise ScheduleError(
                f"Block {name} indexes {access.name} by {call}, whose values are not known; "
                f"indices may use arithmetic and loads."
            )


def _check_size(access: Access, block: str) -> None:
    """Refuse arrays that 32-bit indices cannot reach over; TVM would wrap them silently."""
    extents = [int(n) for n in access.buffer.shape if isinstance(n, tirx.IntImm)]
    size = prod(extents)
    narrow = all(str(n.ty) == "int32" for n in access.buffer.shape)
    if narrow and len(extents) == len(access.buffer.shape) and size >= 1 << 31:
        raise ScheduleError(
            f"Buffer {access.name} of block {block} has {size:,} elements, too many for the 32-bit "
            'indices that its shape has; declare the shape as "int64".'
        )


def _is_plain(body: Any) -> bool:
    return isinstance(body, tirx.BufferStore)


_KNOWN_CALLS = (
    "tirx.if_then_else",
    "tirx.bitwise_and",
    "tirx.bitwise_or",
    "tirx.bitwise_xor",
    "tirx.bitwise_not",
    "tirx.shift_left",
    "tirx.shift_right",
    "tirx.likely",
)


def _unknown_call(access: Access) -> str | None:
    calls: list[str] = []
    look = (tvm.ir.Call, lambda call: calls.append(str(getattr(call.op, "name", call.op))))
    tvm_ffi.structural_walk(access.offset, [look])
    return next((call for call in calls if call not in _KNOWN_CALLS), None)


def _enclosing_threads(sch: Any, block: Any, nest: Nest) -> dict[str, int] | None:
    """Thread axes of the kernel around a block that has no threads of its own, or None."""
    bound = [loop for loop in nest.loops if "Idx" in loop.kind]
    if not bound:
        return None
    name = nest.block.name_hint
    mine = [loop for loop in bound if loop.kind.startswith("threadIdx") or loop.is_perfect]
    if mine:
        raise ScheduleError(
            f"Loop {mine[0].var.name} of block {name} is already bound to {mine[0].kind}; "
            f"{_NAME} needs loops that are not bound yet."
        )
    found: dict[str, int] = {}

    def look(loop: Any) -> None:
        kind = loop_kind(loop)
        if kind.startswith("threadIdx"):
            found[kind] = int(loop.extent)

    first = next(i for i, loop in enumerate(nest.loops) if "Idx" in loop.kind)
    tvm_ffi.structural_walk(sch.get(sch.get_loops(block)[first]), [(tirx.For, look)])
    return found


def _free_loops(nest: Nest, *, inside: bool) -> list[Loop]:
    loops = [loop for loop in nest.loops if loop.is_perfect] if inside else list(nest.loops)
    name = nest.block.name_hint
    for loop in loops:
        if not loop.is_perfect:
            raise ScheduleError(
                f"Loop {loop.var.name} holds other blocks beside {name}, so {_NAME} cannot bind "
                "it; bind it first, or give the block loops of its own."
            )
        if loop.kind not in ("serial", "unrolled"):
            raise ScheduleError(
                f"Loop {loop.var.name} of block {name} is already {loop.kind}; "
                f"{_NAME} needs serial loops."
            )
    if not loops:
        raise ScheduleError(f"Block {name} has no loop of its own for {_NAME} to map.")
    return loops


def _count_before(
    sch: Any, block: Any, nest: Nest, free: Sequence[Loop], request: Request
) -> tuple[Traffic, ...]:
    """Count an unbound block as its loops would run if they were just fused over the threads."""
    data = [loop for loop in free if not loop.is_reduction]
    if (
        len(free) < len(nest.loops)
        or not data
        or any(loop.is_reduction for loop in free[: len(data)])
    ):
        return ()
    plain = sch.copy()
    schedule_direct(plain, block, nest, Mapping(tuple(data), 1, 1, ()), request.num_threads)
    return tuple(count_traffic(read_nest(plain, block)))


def _sentence(what: str, before: Sequence[Traffic], after: Sequence[Traffic]) -> str:
    old = "; ".join(map(str, before)) or "not counted"
    return f"{what}; {'; '.join(map(str, after))}; before {old}."


def _asks(block: Any) -> bool:
    return COALESCE in block.annotations


def _find_asking(func: Any) -> list[str]:
    names: list[str] = []
    look = (s_tir.SBlock, lambda block: names.append(block.name_hint) if _asks(block) else None)
    tvm_ffi.structural_walk(func.body, [look])
    return names


def _request_of(value: Any) -> Request:
    threads, width, stage = value
    return Request(int(threads) or None, int(width), str(stage))


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.AutoCoalesce")
def _auto_coalesce(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
    asking = {
        gv: names
        for gv, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and (names := _find_asking(func))
    }
    if not asking:
        return mod
    sch = s_tir.Schedule(mod, debug_mask="none")
    for gv, names in asking.items():
        sch.work_on(gv.name_hint)
        for name in names:
            block = sch.get_sblock(name, gv.name_hint)
            request = _request_of(sch.get(block).annotations[COALESCE])
            sch.unannotate(block, COALESCE)
            coalesce(sch, block, request)
    return sch.mod


def AutoCoalesce() -> Any:
    """Create the pass that maps annotated blocks to threads.

    A block annotated ``layout_ext.auto_coalesce`` = ``[num_threads or 0, vector_bytes, stage]`` is
    treated as ``sch.auto_coalesce(block, ...)`` would treat it.

    Does not handle, and refuses by name: opaque blocks, loops that are bound or vectorized already,
    indices with calls of unknown functions.

    Raises
    ------
    ScheduleError
        In these cases.
    """
    return _auto_coalesce
