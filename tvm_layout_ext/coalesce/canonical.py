"""Give a block one loop for each of its dims, where its loops or indices are cut otherwise.

Staging takes a nest apart by its block iterators, and TVM's ``transform_block_layout`` wants these
to be the loops themselves, in their order. A nest may go through its dims in another order, have a
dim's loop split, or go through several dims by one iterator (``A[v % 128, v // 128]``, as a reshape
leaves them): that is mended by traced primitives. One loop behind several iterators
(``vi, vj = i // 96, i % 96``) is not, as no primitive of TVM 0.27 simplifies these once the loop is
split; it is rewritten where a block has a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from ..analysis.nest import Nest
from ..ir.block_bindings import iter_values
from ..ir.conditions import analyzer_of
from ..ir.queries import depends_on, is_number, substitute


def canonicalize_loops(sch: Any, block: Any) -> bool:
    """Reorder and fuse the loops of a block, and split its iterators, so that each is one dim.

    ::

        for j, i0, i1 in T.grid(96, 4, 32):      for i, j in T.grid(128, 96):
            vi, vj = i0 * 32 + i1, j                 vi, vj = i, j

    The block has data axes, of known extents, and is in no kernel. Tells whether anything was
    changed, and each loop is a dim now.

    Raises RuntimeError if TensorIR refuses it; the schedule is then to be dropped.
    """
    changed = one_loop_each(sch, block)
    changed |= _take_indices_apart(sch, block)
    return changed and is_straight(sch, block)


def canonicalize_known(sch: Any, block: Any, nest: Nest) -> None:
    """Do so with a block of known extents that has no guard, unless TensorIR refuses it."""
    if nest.is_guarded or any(loop.size is None for loop in nest.loops):
        return
    try:
        canonicalize_loops(sch.copy(), block)
    except RuntimeError:
        return
    canonicalize_loops(sch, block)


def is_straight(sch: Any, block: Any) -> bool:
    """Whether the loops of a block are its iterators, in their order."""
    loops = [sch.get(loop).loop_var for loop in sch.get_loops(block)]
    values = iter_values(sch, block)
    return len(loops) == len(values) and all(
        value.same_as(loop) for value, loop in zip(values, loops, strict=True)
    )


def one_loop_each(sch: Any, block: Any) -> bool:
    """Bind each iterator of a block to one loop, in their order; return whether that is new."""
    if is_straight(sch, block):
        return False
    groups = [
        [loop for loop in sch.get_loops(block) if _uses(value, sch.get(loop).loop_var)]
        for value in iter_values(sch, block)
    ]
    order = [loop for group in groups for loop in group]
    if len(order) > 1:
        sch.reorder(*order)
    for group in groups:
        if len(group) > 1:
            sch.fuse(*group)
    return True


def _uses(value: Any, var: Any) -> bool:
    return any(var.same_as(other) for other in tirx.analysis.undefined_vars(value))


def _take_indices_apart(sch: Any, block: Any) -> bool:
    """Make several iterators of one whose quotients and remainders are the indices."""
    stmt = sch.get(block)
    parts = [_factors(stmt, axis) for axis in stmt.iter_vars]
    if all(len(sizes) == 1 for sizes in parts) or not is_straight(sch, block):
        return False

    def index_map(*iters: Any) -> list[Any]:
        found: list[Any] = []
        for value, sizes in zip(iters, parts, strict=True):
            found += [
                value // prod(sizes[i + 1 :]) % size if i else value // prod(sizes[1:])
                for i, size in enumerate(sizes)
            ]
        return found

    transform_iterators(sch, block, index_map)
    return True


def transform_iterators(sch: Any, block: Any, index_map: Callable[..., list[Any]]) -> None:
    """Put other iterators, and their loops, in the place of a block's, by an index map of these.

    The map is of their own type: of another, TVM 0.27 cannot simplify conditions on them.
    """
    axes = sch.get(block).iter_vars
    wide = any(str(axis.var.ty) == "int64" for axis in axes)
    dtype = "int64" if wide else "int32"
    mapped = tirx.IndexMap.from_func(index_map, ndim=len(axes), index_dtype=dtype)
    sch.transform_block_layout(block, mapped)


def _factors(stmt: Any, axis: Any) -> Sequence[int]:
    """Extents that the quotients and remainders of an iterator part it into, outermost first."""
    extent = int(axis.dom.extent)
    cuts: set[int] = set()

    def look(node: Any) -> None:
        if node.a.same_as(axis.var) and isinstance(node.b, tirx.IntImm):
            cuts.add(int(node.b))

    tvm_ffi.structural_walk(stmt.body, [(tirx.FloorDiv, look), (tirx.FloorMod, look)])
    sizes: list[int] = []
    inner = 1
    for cut in sorted(cuts):
        if cut <= inner or cut % inner or extent % cut or cut == extent:
            continue
        sizes.insert(0, cut // inner)
        inner = cut
    return [extent // inner, *sizes]


def is_linearized(sch: Any, block: Any, nest: Nest) -> str | None:
    """Name a loop that several iterators of a block are bound to, if there is one."""
    values = iter_values(sch, block)
    for loop in nest.loops:
        if sum(depends_on(value, loop.var) for value in values) > 1:
            return str(loop.var.name)
    return None


def loops_of_iterators(stmt: Any, nest: Nest, values: Sequence[Any]) -> Any | None:
    """Put one loop for each iterator in the place of loops of which these are the digits.

    ::

        for f in range(96 * 128):             for i, j in T.grid(96, 128):
            vi, vj = f // 128, f % 128            vi, vj = i, j

    ``stmt`` is the loops around the block, whose buffers may be other ones than those of ``nest``,
    and ``values`` what its iterators are bound to. None where these are other functions of the
    loops, or some extent is symbolic.
    """
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    if nest.is_guarded or any(loop.size is None or loop.is_reduction for loop in nest.loops):
        return None
    axes = list(stmt.block.iter_vars)
    fresh = [tirx.Var(f"{axis.var.name}_loop", axis.var.ty) for axis in axes]
    if not _are_digits(nest, values, fresh):
        return None
    body: Any = s_tir.SBlockRealize(fresh, tirx.const(True, "bool"), stmt.block)
    for var, axis in zip(reversed(fresh), reversed(axes), strict=True):
        body = tirx.For(var, axis.dom.extent * 0, axis.dom.extent, tirx.ForKind.SERIAL, body)
    return body


def _are_digits(nest: Nest, values: Sequence[Any], fresh: Sequence[Any]) -> bool:
    """Whether each loop counts through some iterators, and each iterator is of one loop."""
    sizes = [int(axis.dom.extent) for axis in nest.block.iter_vars]
    analyzer = analyzer_of(zip(fresh, sizes, strict=True))
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
