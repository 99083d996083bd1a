"""Blocks and loops as a schedule's user names them, checked before anything is traced."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from ..errors import ScheduleError
from ..target import target_arch

__all__ = ["find_block", "find_loop", "own_arch"]

#: What TVM raises for a handle of another type, of another schedule, or of nothing any more.
_WRONG_HANDLE = (RuntimeError, TypeError, IndexError, AttributeError)


def find_block(sch: Any, block: Any, call: str) -> Any:
    """Handle of a block that is given by handle or by name.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV or str
        The block.
    call : str
        Name of the primitive, for the refusal.

    Raises
    ------
    ScheduleError
        If it names no single block of the schedule.
    """
    try:
        found = sch.get_sblock(block) if isinstance(block, str) else block
        is_block = isinstance(sch.get(found), s_tir.SBlock)
    except _WRONG_HANDLE as error:
        raise ScheduleError(f"{call} finds no single block named {block!r}.") from error
    if not is_block:
        raise ScheduleError(f"{call} needs a block or its name, not {block!r}.")
    return found


def find_loop(sch: Any, loop: Any, call: str) -> Any:
    """The loop (``For``) that a handle stands for.

    Raises
    ------
    ScheduleError
        If the handle is of no loop of the schedule.
    """
    try:
        found = sch.get(loop)
    except _WRONG_HANDLE as error:
        raise ScheduleError(f"{call} needs a loop, as get_loops gives, not {loop!r}.") from error
    if not isinstance(found, tirx.For):
        raise ScheduleError(f"{call} needs a loop, as get_loops gives, not {loop!r}.")
    return found


def own_arch(sch: Any) -> str:
    """Architecture that a schedule is for: :func:`.target_arch` of the function it works on."""
    own = sch.func_working_on
    return target_arch(None if own is None else sch.mod[own])
