"""Take apart a loop that stands behind several iterators of a block, as ``fuse`` leaves one.

Staging wants each iterator of a block to be a loop. TVM 0.27's ``split`` takes a fused loop apart,
but leaves ``(i * 128 + j) // 128`` in the bindings, and no traced primitive simplifies that. So the
block is mapped in a program in which it has these loops, when the function is lowered.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..analysis.nest import Nest
from ..ir.queries import depends_on, is_number, substitute
from .canonical import iterator_values
from .privatize import PrivateBuffers, function_of, schedule_of


def is_linearized(sch: Any, block: Any, nest: Nest) -> str | None:
    """Name a loop that several iterators of a block are bound to, if there is one."""
    values = iterator_values(sch, block)
    for loop in nest.loops:
        if sum(depends_on(value, loop.var) for value in values) > 1:
            return str(loop.var.name)
    return None


def why_not_linearized(sch: Any, nest: Nest, loop: str) -> str:
    """Say why a loop that several iterators are bound to is not taken apart."""
    name = nest.block.name_hint
    behind = f"loop {loop} stands behind several iterators of {name}"
    if nest.is_guarded:
        return f"{behind}, which runs only where {nest.predicate} holds"
    if any(loop.size is None for loop in nest.loops):
        return f"{behind}, and its digits are known of known extents alone"
    if function_of(sch, nest.block) is None:
        return f"{behind}, and other blocks have the name by which the program's lowering finds it"
    return f"{behind} in another way than as a number of their digits"


def delinearize_loop(sch: Any, block: Any, nest: Nest) -> PrivateBuffers | None:
    """Give a block one loop for each iterator, where fused loops have these as their digits.

    ::

        for f in range(96 * 128):             for i, j in T.grid(96, 128):
            vi, vj = f // 128, f % 128            vi, vj = i, j

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Left as it is.
    block : SBlockRV
        A block of data axes, of known extents, in no kernel.
    nest : Nest
        The block.

    Returns
    -------
    PrivateBuffers or None
        A program in which the block has these loops; None where the iterators are other functions
        of the loops, or the block's name is not its own.
    """
    place = function_of(sch, nest.block)
    axes = list(nest.block.iter_vars)
    fresh = [tirx.Var(f"{axis.var.name}_loop", axis.var.ty) for axis in axes]
    if place is None or not _are_digits(nest, iterator_values(sch, block), fresh):
        return None
    name, func = place
    body: Any = s_tir.SBlockRealize(fresh, tirx.const(True, "bool"), nest.block)
    for var, axis in zip(reversed(fresh), reversed(axes), strict=True):
        body = tirx.For(var, axis.dom.extent * 0, axis.dom.extent, tirx.ForKind.SERIAL, body)
    outermost = nest.loops[0].var
    swap = (tirx.For, lambda loop: body if loop.loop_var.same_as(outermost) else loop)
    func = func.with_body(tvm_ffi.structural_map(func.body, [swap], order="post"))
    functions = {gv: func if gv.name_hint == name else f for gv, f in sch.mod.functions.items()}
    mod = tvm.IRModule(functions, attrs=sch.mod.attrs)
    return PrivateBuffers(*schedule_of(mod, name, str(nest.block.name_hint)), name)


def _are_digits(nest: Nest, values: Sequence[Any], fresh: Sequence[Any]) -> bool:
    """Whether each loop counts through some iterators, and each iterator is of one loop."""
    sizes = [int(axis.dom.extent) for axis in nest.block.iter_vars]
    analyzer = tvm.sym.Analyzer()
    for var, size in zip(fresh, sizes, strict=True):
        analyzer.bind(var, tvm.ir.Range(0, size))
    loops: dict[Any, Any] = {}
    for loop in nest.loops:
        own = [i for i, value in enumerate(values) if depends_on(value, loop.var)]
        own.sort(key=lambda i: _divisor(values[i]), reverse=True)
        if prod(sizes[i] for i in own) != loop.size:
            return False
        number: Any = loop.var * 0
        for i in own:
            number = number * sizes[i] + fresh[i]
        loops[loop.var] = number
    return all(
        (size == 1 and is_number(value, 0))
        or analyzer.can_prove_equal(substitute(value, loops), var)
        for value, var, size in zip(values, fresh, sizes, strict=True)
    )


def _divisor(value: Any) -> int:
    """Steps of a fused loop after which a digit of it changes."""
    found = [1]

    def look(quotient: Any) -> None:
        if isinstance(quotient.b, tirx.IntImm):
            found.append(int(quotient.b))

    tvm_ffi.structural_walk(value, [(tirx.FloorDiv, look)])
    return prod(found)
