"""Whether the iterations of a block that updates a buffer in place each have elements of their own.

TensorIR takes no block for parallel that reads a buffer which it writes, whatever its indices are.
The iterations of ``A[i] = A[i] * 2`` may run in any order, though, and on any threads: none touches
an element of another. That takes two facts: all accesses of the buffer in one iteration are of one
element, and no two iterations are at the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym.iter_affine_map import IterMapLevel

from ..analysis.nest import Access, Loop, Nest, steps_of
from ..errors import ScheduleError
from ..ir.evaluate import placeholder_extent
from ..ir.queries import is_among, substitute
from .request import NAME

_ADVICE = "give the result a buffer of its own"


def updated_in_place(nest: Nest) -> list[Any]:
    """List the buffers that a block stores and loads, or stores twice; none of a reduction's.

    Examples
    --------
    >>> updated_in_place(read_nest(sch, "B"))    # doctest: +SKIP
    [A]
    """
    if any(loop.is_reduction for loop in nest.loops) or nest.block.init is not None:
        return []
    found: list[Any] = []
    for access in nest.accesses:
        known = any(access.buffer.same_as(buffer) for buffer in found)
        if access.kind != "store" or known:
            continue
        uses = [a for a in nest.accesses if a.buffer.same_as(access.buffer) and a.kind != "atomic"]
        if len(uses) > 1 and not _is_one_store(uses) and not _are_apart(uses):
            found.append(access.buffer)
    return found


def check_updates(nest: Nest) -> None:
    """Refuse a block that updates buffers in place if its iterations depend on each other."""
    for buffer in updated_in_place(nest):
        reason = _why_dependent(nest, buffer)
        if reason is not None:
            raise ScheduleError(
                f"{NAME} finds no legal mapping of block {nest.block.name_hint}: {reason}."
            )


def _is_one_store(uses: Sequence[Access]) -> bool:
    """Whether branches of ``if`` statements store to one element, and nothing loads of the buffer.

    TensorIR sees one write then, as of a block with one store.
    """
    return all(a.kind == "store" and bool(a.conditions) and _same_element(a, uses[0]) for a in uses)


def _are_apart(uses: Sequence[Access]) -> bool:
    """Whether accesses are stores alone, no two of which meet: a number tells each pair apart."""
    return all(a.kind == "store" for a in uses) and all(
        any(_differ(*pair) for pair in zip(a.indices, b.indices, strict=True))
        for a, b in combinations(uses, 2)
    )


def _why_dependent(nest: Nest, buffer: Any) -> str | None:
    """Say why the iterations of a block that updates a buffer in place depend on each other.

    The end of a sentence; None where each iteration has an element of its own.
    """
    accesses = [access for access in nest.accesses if access.buffer.same_as(buffer)]
    store = next(access for access in accesses if access.kind == "store")
    other = next((access for access in accesses if not _same_element(access, store)), None)
    if other is not None:
        does = "stores" if other.kind == "store" else "reads"
        return (
            f"it {does} {buffer.name} at {_text(other)} and writes it at {_text(store)}, which are "
            f"elements of two iterations; {_ADVICE}"
        )
    steps = list(zip(*_steps(store, nest), strict=True))
    again = [
        str(loop.var.name)
        for loop, step in zip(nest.loops, steps, strict=True)
        if loop.size != 1 and all(_is_zero(part) for part in step)
    ]
    if again:
        return (
            f"each iteration of {' and '.join(again)} updates {buffer.name} at {_text(store)} once "
            "more; make that a reduction, with an axis of its kind and an init"
        )
    if _is_injective(store, nest):
        return None
    return (
        f"several iterations may update one element of {buffer.name}, which it writes at "
        f"{_text(store)}; {_ADVICE}"
    )


def _text(access: Access) -> str:
    return f"[{', '.join(map(str, access.indices))}]"


def _same_element(a: Access, b: Access) -> bool:
    return all(_equal(x, y) for x, y in zip(a.indices, b.indices, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if tvm_ffi.structural_equal(a, b):
        return True
    return bool(tvm.sym.Analyzer().can_prove(tirx.EQ(a, b)))


def _differ(a: Any, b: Any) -> bool:
    return isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm) and int(a) != int(b)


def _steps(access: Access, nest: Nest) -> list[tuple[Any, ...]]:
    """Steps of each index along each loop."""
    variables = [loop.var for loop in nest.loops]
    return [steps_of(index, variables) for index in access.indices]


def _is_injective(access: Access, nest: Nest) -> bool:
    """Whether no two iterations are at one element.

    Either the offset tells them apart, or the indices put the loops together in another way, as
    ``[f // 4, f % 4 + 1]`` does with a fused one, or each dim tells those of the loops apart that
    move in it alone. The strides of a buffer are taken to keep its elements apart, as TVM takes
    them.
    """
    if _apart(access.steps, nest.loops) or _is_bijective(access, nest.loops):
        return True
    each = _steps(access, nest)
    movers = [[i for i, step in enumerate(steps) if not _is_zero(step)] for steps in each]
    moved = [i for dim in movers for i in dim]
    if len(moved) != len(set(moved)):
        return False
    if any(loop.size != 1 and i not in moved for i, loop in enumerate(nest.loops)):
        return False
    return all(
        _apart([steps[i] for i in dim], [nest.loops[i] for i in dim])
        for steps, dim in zip(each, movers, strict=True)
    )


def _is_bijective(access: Access, loops: Sequence[Loop]) -> bool:
    """Whether TVM sees the loops, of known extents, as parts of the indices that lose nothing.

    No index may move by a symbol: TVM takes that for a number other than zero.
    """
    if any(loop.size is None for loop in loops):
        return False
    analyzer = tvm.sym.Analyzer()
    starts = {loop.var: loop.var * 0 for loop in loops}
    moves = [analyzer.simplify(index - substitute(index, starts)) for index in access.indices]
    ranges = {loop.var: tvm.ir.Range.from_min_extent(0, loop.extent) for loop in loops}
    if not all(is_among(v, starts) for move in moves for v in tirx.analysis.undefined_vars(move)):
        return False
    found = tvm.sym.detect_iter_map(moves, ranges, True, IterMapLevel.Bijective)
    return len(found.indices) > 0


def _is_zero(step: Any) -> bool:
    return isinstance(step, int) and step == 0


def _apart(steps: Sequence[Any], loops: Sequence[Loop]) -> bool:
    """Whether a sum of steps differs for any two iterations: each step is past all smaller ones."""
    pairs = [(s, loop) for s, loop in zip(steps, loops, strict=True) if loop.size != 1]
    if any(step is None or _is_zero(step) for step, _ in pairs):
        return False
    pairs.sort(
        key=lambda pair: (abs(placeholder_extent(pair[0])), placeholder_extent(pair[1].extent))
    )
    analyzer = tvm.sym.Analyzer()
    reach: Any = 0
    for step, loop in pairs:
        size = -step if placeholder_extent(step) < 0 else step
        if not _proves(analyzer, size - reach, loops):
            return False
        reach = reach + size * (loop.extent - 1)
    return True


def _proves(analyzer: Any, value: Any, loops: Sequence[Loop]) -> bool:
    """Whether a number is positive wherever all loops run at all."""
    if isinstance(value, int):
        return value > 0
    runs = [loop.extent >= 1 for loop in loops if loop.size is None]
    scopes = [analyzer.constraint_scope(condition) for condition in runs]
    for scope in scopes:
        scope.__enter__()
    try:
        return bool(analyzer.can_prove(analyzer.simplify(value) >= 1))
    finally:
        for scope in reversed(scopes):
            scope.__exit__(None, None, None)
