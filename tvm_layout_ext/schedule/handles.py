"""Blocks and loops as a schedule's user names them, and TVM's refusals in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import s_tir, tirx

from ..errors import ScheduleError
from ..ir.diagnostics import reason
from ..target import target_arch

#: What TVM raises for a handle of another type, of another schedule, or of nothing any more.
_WRONG_HANDLE = (RuntimeError, TypeError, IndexError, AttributeError)


def find_block(sch: Any, block: Any, call: str) -> Any:
    """Handle of a block that is given by handle or by name, for the primitive ``call``."""
    try:
        found = sch.get_sblock(block) if isinstance(block, str) else block
        is_block = isinstance(sch.get(found), s_tir.SBlock)
    except _WRONG_HANDLE as error:
        raise ScheduleError(f"{call} finds no single block named {block!r}.") from error
    if not is_block:
        raise ScheduleError(f"{call} needs a block or its name, not {block!r}.")
    return found


def find_loop(sch: Any, loop: Any, call: str) -> Any:
    """The loop (``For``) that a handle stands for, for the primitive ``call``."""
    try:
        found = sch.get(loop)
    except _WRONG_HANDLE as error:
        raise ScheduleError(f"{call} needs a loop, as get_loops gives, not {loop!r}.") from error
    if not isinstance(found, tirx.For):
        raise ScheduleError(f"{call} needs a loop, as get_loops gives, not {loop!r}.")
    return found


def written_buffer(site: Any, buffer_index: Any) -> Any:
    """The buffer that a block (the node) writes in that place."""
    if not isinstance(buffer_index, int) or isinstance(buffer_index, bool):
        raise ScheduleError(f"buffer_index is {buffer_index!r}; it must be an int.")
    if not 0 <= buffer_index < len(site.writes):
        raise ScheduleError(
            f"Block {site.name_hint} writes {len(site.writes)} buffers, so buffer_index "
            f"{buffer_index} names none."
        )
    return site.writes[buffer_index].source


def annotate(sch: Any, block: Any, key: str, value: Any) -> None:
    """Replace an annotation, which TVM's own ``annotate`` would keep as it is; None removes it."""
    if key in sch.get(block).annotations:
        sch.unannotate(block, key)
    if value is not None:
        sch.annotate(block, key, value)


def written_places(block: Any) -> str:
    """What a block (the node) writes and where, in words."""
    buffers = [region.source for region in block.writes]
    return ", ".join(f"{b.name} in {b.scope()}" for b in buffers) or "nothing"


def blockize_tiles(sch: Any, loops: Sequence[Any], tile: Sequence[int]) -> tuple[list[Any], Any]:
    """Split off the innermost tile of some loops as a block; the loops left, and the block."""
    outer, inner = zip(
        *(sch.split(loop, [None, size]) for loop, size in zip(loops, tile, strict=True)),
        strict=True,
    )
    sch.reorder(*outer, *inner)
    return list(outer), sch.blockize(inner[0])


def own_arch(sch: Any) -> str:
    """Architecture that a schedule is for: :func:`.target_arch` of the function it works on."""
    own = sch.func_working_on
    return target_arch(None if own is None else sch.mod[own])


@contextmanager
def legal(request: str) -> Iterator[None]:
    """Turn TVM's refusal of a request into one sentence."""
    try:
        yield
    except ScheduleError:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ScheduleError(f"TensorIR refuses {request}: {reason(error)}") from error
