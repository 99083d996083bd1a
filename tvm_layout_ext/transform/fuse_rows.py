"""Write the kernels of chains of rows that ``sch.fuse_rows`` asked for."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from .. import decisions
from ..coalesce.rows.chain import NAME, RowChain, read_chain, top_statements
from ..coalesce.rows.emit import write_kernel
from ..coalesce.rows.plan import RowPlan
from ..errors import ScheduleError
from ..ir.annotations import FUSE_ROWS
from ..ir.queries import uses
from ..ir.rebuild import block_with, realize_with, sequence
from .base import function_pass

_NUMBERS = 6


def _asking(func: tirx.PrimFunc) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []

    def look(block: Any) -> None:
        if FUSE_ROWS in block.annotations:
            found.append((str(block.name_hint), list(block.annotations[FUSE_ROWS])))

    tvm_ffi.structural_walk(func.body, [(SBlock, look)])
    return found


@function_pass("FuseRows", asks=FUSE_ROWS)
def _fuse_rows(func: tirx.PrimFunc) -> tirx.PrimFunc:
    for name, wanted in _asking(func):
        names = [str(one) for one in wanted[_NUMBERS:]]
        chain = read_chain(func, names)
        plan = _plan(chain, name, wanted[:_NUMBERS])
        decisions.note(NAME, name, plan.text())
        func = _with_kernel(func, chain, write_kernel(chain, plan, name))
    return func


def _plan(chain: RowChain, name: str, numbers: list[Any]) -> RowPlan:
    try:
        lanes, rows, each, vector, registers, shared = (int(n) for n in numbers)
        steps = -(-chain.length // (lanes * vector))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ScheduleError(
            f"Block {name} asks {NAME} by {numbers}; it takes lanes, rows, rows of a thread, "
            "elements of a vector, and steps in registers and in shared memory."
        ) from error
    return RowPlan(lanes, rows, each, vector, registers, shared, steps)


def _with_kernel(func: tirx.PrimFunc, chain: RowChain, kernel: Any) -> tirx.PrimFunc:
    """Put the kernel in the place of the chain's last statement, and drop the others."""
    last = max(chain.places)
    left = [
        kernel if place == last else stmt
        for place, stmt in enumerate(top_statements(func))
        if place == last or place not in chain.places
    ]
    root = func.body.block
    kept = [b for b in root.alloc_buffers if any(uses(stmt, b) for stmt in left)]
    block = block_with(root, body=sequence(left), alloc_buffers=kept)
    return func.with_body(realize_with(func.body, block))


def FuseRows() -> Any:
    """Create the pass that puts chains of blocks over the same rows into one kernel each.

    A block annotated ``layout_ext.fuse_rows`` = ``[lanes, rows, rows of a thread, elements of a
    vector, steps in registers, steps in shared memory, block, block, ...]`` is the last of a chain.
    A thread reads its part of a row once, and keeps it in registers, or in shared memory where it
    has a place for itself. Steps that are kept in neither are read again.

    Does not handle, and refuses by name: what :func:`.chain.read_chain` refuses.

    Raises
    ------
    ScheduleError
        In these cases.
    """
    return _fuse_rows
