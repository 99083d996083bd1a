"""Give moves whose rows lie askew whole vectors on both sides, by shuffles and shifts."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from ... import decisions
from ...coalesce.shifted.move import Move, read_move, why_not
from ...errors import ScheduleError
from ...gpu.hardware import WARP_SIZE
from ...ir.annotations import SHIFTED
from ...ir.conditions import conjuncts, step_of
from ...ir.queries import is_number, nodes_in, substitute, uses
from ...ir.thread_conditions import ThreadConditions
from ..base import function_pass
from .shifted_nest import ShiftedNest

_NAME = "ShiftVectors"


class _ShiftedBlocks(ThreadConditions):
    def __init__(self, params: Any) -> None:
        super().__init__()
        self._params = params

    def loop(self, loop: Any, mutator: Any) -> Any:
        realize = loop.body
        if isinstance(realize, SBlockRealize) and SHIFTED in realize.block.annotations:
            return self._nest(loop, realize).lowered()
        return super().loop(loop, mutator)

    def realize(self, realize: Any, mutator: Any) -> Any:
        if SHIFTED in realize.block.annotations:
            raise _refused(realize.block, "it is not alone in a vector loop")
        return super().realize(realize, mutator)

    def _nest(self, loop: Any, realize: Any) -> ShiftedNest:
        block = realize.block
        vector = int(block.annotations[SHIFTED])
        try:
            move = read_move(block)
        except ScheduleError as error:
            raise _refused(block, str(error)) from error
        reason = "it moves no elements" if move is None else why_not(move, vector)
        reason = reason or self._problem(loop, vector)
        if reason or move is None:
            raise _refused(block, reason)
        for buffer in (move.source, move.target):
            if not any(buffer.same_as(param) for param in self._params):
                raise _refused(block, f"{buffer.name} is no parameter of the function")
        thread = self.threads["threadIdx.x"].loop_var
        element = _element(loop, realize, move, thread)
        decisions.note(_NAME, str(block.name_hint), f"vectors of {vector} by shuffles and shifts")
        return ShiftedNest(loop, realize, move, thread, element)

    def _problem(self, loop: Any, vector: int) -> str:
        """Say why the lanes of a warp do not all come here together, or nothing."""
        if loop.kind != tirx.ForKind.VECTORIZED or not is_number(loop.extent, vector):
            return f"its innermost loop is not a vector of {vector}"
        threads = self.threads
        if list(threads) != ["threadIdx.x"] or int(threads["threadIdx.x"].extent) % WARP_SIZE:
            return "its threads are not threadIdx.x alone, in whole warps"
        thread = threads["threadIdx.x"].loop_var
        for condition in self.conditions:
            if uses(condition, thread):
                return f"not all lanes of a warp come to it, by {condition}"
        return ""


def _element(loop: Any, realize: Any, move: Move, thread: Any) -> Any:
    """Element of the result at which the vector begins; lanes must take vectors in turn."""
    own = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    values = {it.var.__chandle__(): value for it, value in own}
    found: Any = 0
    for var, size in zip(move.iterators, move.shape, strict=True):
        found = found * size + values[var.__chandle__()]
    vector, first = int(loop.extent), {loop.loop_var: loop.loop_var * 0}
    analyzer = tvm.sym.Analyzer()
    element = analyzer.simplify(substitute(_number(found), first))
    run = analyzer.modular_set(element)
    if run.coeff % vector or run.base % vector:
        raise _refused(realize.block, f"its vectors begin at {element}, no multiple of {vector}")
    if step_of(element, thread) != vector:
        raise _refused(realize.block, f"lanes that begin at {element} do not follow each other")
    for part in conjuncts(realize.predicate):
        if not _is_end(substitute(part, first), element, move.total, thread):
            raise _refused(realize.block, f"{part} is not the end of {move.target.name}")
    return element


def _number(expr: Any) -> Any:
    """Put digits together to the number that they are of: ``n // 8 * 8 + n % 8`` is ``n``.

    It is opaque meanwhile: TVM takes factors common with the divisors out of some of the digits.
    """
    for number in (node.a for node in nodes_in(expr, tirx.FloorDiv, tirx.FloorMod)):
        whole = tirx.Var("number", number.ty)

        def hide(node: Any, number: Any = number, whole: Any = whole) -> Any:
            return whole if tvm_ffi.structural_equal(node, number) else node

        hidden = tvm_ffi.structural_map(expr, [(type(number), hide)], order="post")
        if tvm.sym.Analyzer().simplify(hidden).same_as(whole):
            return number
    return expr


def _is_end(condition: Any, element: Any, total: int, thread: Any) -> bool:
    """Whether a condition says that an element is one of the result, perhaps in larger units."""
    if is_number(condition, 1):
        return True
    if not isinstance(condition, tirx.LT):
        return False
    left = condition.b - condition.a
    down, step = step_of(left, thread), step_of(element, thread)
    if down is None or step is None or down >= 0 or step % down:
        return False
    unit = step // -down
    end = tvm.sym.Analyzer().simplify(left * unit + element)
    return isinstance(end, tirx.IntImm) and total <= int(end) < total + unit


def _refused(block: Any, reason: str) -> ScheduleError:
    return ScheduleError(
        f"Block {block.name_hint} is marked {SHIFTED}, but {reason}; leave its loops as "
        "auto_coalesce made them."
    )


@function_pass(asks=SHIFTED)
def ShiftVectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that moves rows which lie askew by aligned vectors on both sides.

    A block annotated ``layout_ext.shifted`` = elements of a vector copies, casts, pads or slices,
    its innermost loop is that vector, and stores begin at multiples of it. Loads do not::

        # before                                # after
        for v in T.vectorized(4):               own = A[start // 4 * 4 : ... + 4]
            B[e + v] = A[start + v]             next = shuffle_down(own, 1)
                                                if lane == 31: next = A[start // 4 * 4 + 4 : ...]
                                                B[e : e + 4] = [*own, *next][start % 4 :][:4]

    A vector in which a row ends takes its other elements from a second pair of vectors, or, where
    rows of a pad follow each other in the source, from the same pair moved up. What is
    left at the end of a buffer that holds no whole number of vectors goes in halves and quarters.

    Does not handle, and refuses by name: blocks that do more than move elements, loops that were
    changed after ``auto_coalesce``, threads that are not whole warps of ``threadIdx.x``.
    """
    rules = _ShiftedBlocks(list(func.params)).rules
    return func.with_body(tvm_ffi.structural_mutate(func.body, rules))
