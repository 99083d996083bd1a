"""Asynchronous copies into a buffer of one version: waited for in the body that copies.

::

    # before                     # after
    for k in range(n):           for k in range(n):
        S = A[tile k]                copy tile k into S asynchronously; commit
        use(S)                       wait until nothing is under way
                                     use(S)

Nothing is copied while a body computes, but copies of one body are under way together and pass no
registers. It is what Triton's pipeliner makes of two stages and ``mma.sync``. Barriers are left to
pass ``PlanSync``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.script import tirx as T

from ...errors import ScheduleError
from ...ir.annotations import ASYNC_SCOPE
from ...ir.rebuild import block_with, loop_with, realize_with, stripped
from .parts import REQUEST, Part


def single_copies(parts: Sequence[Part], loop: Any) -> list[int]:
    """Copies of a loop that shall be asynchronous with one version: no statement reads its own."""
    found = []
    for i, part in enumerate(parts):
        if part.num_stages != 1 or not part.async_copy:
            continue
        read = any(part.feeds(other) for other in parts if other is not part)
        if read and part.feeds(part):
            raise ScheduleError(
                f"Block {part.name} asks for asynchronous copies, and the statement of loop "
                f"{loop.loop_var.name} that it is in reads what it copies, too, so that no wait "
                "can stand between; compute it at the loop around its readers."
            )
        found += [i] if read else []
    return found


def with_waits(parts: Sequence[Part], stmts: Sequence[Any], single: Collection[Part]) -> list[Any]:
    """Make copies asynchronous, with a wait before the first statement that meets one."""
    found: list[Any] = []
    flying: list[Part] = []
    for part, stmt in zip(parts, stmts, strict=True):
        if any(_meets(part, copy) for copy in flying):
            found += _landed()
            flying = []
        if any(part is copy for copy in single):
            flying.append(part)
            stmt = tirx.AttrStmt(0, ASYNC_SCOPE, 1, stripped(stmt, *REQUEST))
        found.append(stmt)
    return [*found, *_landed()] if flying else found


def _meets(part: Part, copy: Part) -> bool:
    return copy.feeds(part) or any(part.writes_of(written.buffer) for written in copy.writes)


def _landed() -> list[Any]:
    calls = (T.ptx["cp.async.commit_group"](), T.ptx["cp.async.wait_group"](0))
    return [tirx.Evaluate(call) for call in calls]


def in_one_version(loop: Any, parts: Sequence[Part], single: Sequence[int]) -> Any:
    """Rewrite a loop in which nothing runs ahead, and of whose parts some are such copies."""
    stmts = with_waits(parts, [part.stmt for part in parts], [parts[i] for i in single])
    body: Any = tirx.SeqStmt(stmts)
    if isinstance(loop.body, SBlockRealize):
        body = realize_with(loop.body, block_with(loop.body.block, body=body))
    return loop_with(loop, body=body)
