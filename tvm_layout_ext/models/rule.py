"""What a rule of :mod:`.rules` is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from ..errors import LayoutExtError
from ..ir.ops import ASSUME
from ..ir.queries import is_call_of, substitute
from ..ir.rebuild import block_with, realize_with, sequence
from ..ir.walk import top_statements

#: What primitives, and TVM below them, raise on a program that they do not take.
REFUSALS = (LayoutExtError, RuntimeError, ValueError)


@dataclass(frozen=True)
class Scheduled:
    """A function that a rule has scheduled, and how, in one clause."""

    schedule: s_tir.Schedule
    text: str

    @classmethod
    def of(cls, func: tirx.PrimFunc, text: str) -> Scheduled:
        """A function that has its kernels."""
        return cls(s_tir.Schedule(tvm.IRModule({"main": func}), debug_mask="none"), text)

    @property
    def function(self) -> tirx.PrimFunc:
        """The function with its schedule."""
        return self.schedule.mod["main"]


#: ``rule(func, target)`` gives None for a function that is no case for it: the next one is asked,
#: and nothing is told. Where it is one and cannot be scheduled, it raises with the reason.
Apply = Callable[[tirx.PrimFunc, Target], Scheduled | None]


def either(condition: Any, one: Scheduled, other: Scheduled, text: str) -> Scheduled:
    """Two schedules of a function in one: the host chooses at each call.

    What either assumes is assumed in both. Blocks of the second have names of their own.
    """
    first, second = one.function, _with_params_of(one.function, other.function)
    root, more = first.body.block, second.body.block
    heads = [stmt for func in (first, second) for stmt in top_statements(func) if _assumes(stmt)]
    cases = [
        sequence(stmt for stmt in top_statements(func) if not _assumes(stmt))
        for func in (first, second)
    ]
    cases[1] = tvm_ffi.structural_map(cases[1], [(s_tir.SBlock, _renamed)], order="post")
    body = sequence([*heads, tirx.IfThenElse(condition, *cases)])
    made = block_with(root, body=body, alloc_buffers=[*root.alloc_buffers, *more.alloc_buffers])
    func = first.with_body(realize_with(first.body, made))
    return Scheduled.of(func, text)


def few_or_many(
    rows: Any, most: int, few: Scheduled, many: Scheduled, what: str = "rows"
) -> Scheduled:
    """A schedule for up to ``most`` rows and one for more, chosen by the host at each call.

    One for all where both are the same, and of sequences of 197 tokens, of which any batch has
    many: TVM would divide by a batch of none.
    """
    if few.text == many.text or int(tvm.sym.Analyzer().modular_set(rows).coeff) > most:
        return many
    text = f"of up to {most} {what} {few.text}; of more {many.text}"
    return either(rows <= most, few, many, text)


def _with_params_of(one: tirx.PrimFunc, other: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function with the parameters of another one, and all else of its own."""
    apart = s_tir.renew_defs(other)
    values = {}
    for fresh, param in zip(apart.params, one.params, strict=True):
        values[fresh] = param
        if hasattr(param, "shape"):
            parts = zip(_parts(fresh), _parts(param), strict=True)
            values |= {mine: own for mine, own in parts if isinstance(mine, tirx.Var)}
    return apart.with_body(substitute(apart.body, values))


def _parts(buffer: Any) -> list[Any]:
    return [*buffer.shape, *buffer.ty.strides, buffer.ty.elem_offset]


def _assumes(stmt: Any) -> bool:
    return isinstance(stmt, tirx.Evaluate) and is_call_of(stmt.value, ASSUME)


def _renamed(block: Any) -> Any:
    return block_with(block, name_hint=f"{block.name_hint}_otherwise")
