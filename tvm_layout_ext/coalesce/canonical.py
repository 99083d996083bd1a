"""Give a block one loop for each of its dims, where its loops or indices are cut otherwise.

Staging takes a nest apart by its block iterators, and TVM's ``transform_block_layout`` wants these
to be the loops themselves, in their order. A nest may go through its dims in another order, have a
dim's loop split, or go through several dims by one iterator (``A[v % 128, v // 128]``, as a reshape
leaves them): that is mended by traced primitives. One loop behind several iterators
(``vi, vj = i // 96, i % 96``) is not, as no primitive of TVM 0.27 simplifies these once the loop is
split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx

from ..analysis.nest import Nest
from ..ir.block_bindings import iter_values
from ..ir.queries import depends_on


def canonicalize(sch: Any, block: Any, nest: Nest) -> None:
    """Reorder and fuse the loops of a block, and split its iterators, so that each is one dim.

    ::

        for j, i0, i1 in T.grid(96, 4, 32):      for i, j in T.grid(128, 96):
            vi, vj = i0 * 32 + i1, j                 vi, vj = i, j

    The block has data axes, and is in no kernel. One with a guard or a symbolic extent stays as it
    is, and so does one of which TensorIR refuses it.
    """
    if nest.is_guarded or any(loop.size is None for loop in nest.loops):
        return
    for one in (sch.copy(), sch):
        try:
            one_loop_each(one, block)
            _take_indices_apart(one, block)
        except RuntimeError:
            return


def is_straight(sch: Any, block: Any) -> bool:
    """Whether the loops of a block are its iterators, in their order."""
    loops = [sch.get(loop).loop_var for loop in sch.get_loops(block)]
    values = iter_values(sch, block)
    return len(loops) == len(values) and all(
        value.same_as(loop) for value, loop in zip(values, loops, strict=True)
    )


def one_loop_each(sch: Any, block: Any) -> None:
    """Bind each iterator of a block to one loop, in their order."""
    if is_straight(sch, block):
        return
    groups = [
        [loop for loop in sch.get_loops(block) if depends_on(value, sch.get(loop).loop_var)]
        for value in iter_values(sch, block)
    ]
    order = [loop for group in groups for loop in group]
    if len(order) > 1:
        sch.reorder(*order)
    for group in groups:
        if len(group) > 1:
            sch.fuse(*group)


def _take_indices_apart(sch: Any, block: Any) -> None:
    """Make several iterators of one whose quotients and remainders are the indices."""
    stmt = sch.get(block)
    parts = [_factors(stmt, axis) for axis in stmt.iter_vars]
    if all(len(sizes) == 1 for sizes in parts) or not is_straight(sch, block):
        return

    def index_map(*iters: Any) -> list[Any]:
        found: list[Any] = []
        for value, sizes in zip(iters, parts, strict=True):
            found += [
                value // prod(sizes[i + 1 :]) % size if i else value // prod(sizes[1:])
                for i, size in enumerate(sizes)
            ]
        return found

    transform_iterators(sch, block, index_map)


def transform_iterators(sch: Any, block: Any, index_map: Callable[..., list[Any]]) -> None:
    """Put other iterators, and their loops, in the place of a block's, by an index map of these."""
    sch.transform_block_layout(block, map_of_iterators(sch, block, index_map))


def map_of_iterators(sch: Any, block: Any, index_map: Callable[..., list[Any]]) -> Any:
    """Make an index map of a block's iterators, in their own type.

    Of another, TVM 0.27 cannot simplify conditions on them, nor see through casts of symbols.
    """
    axes = sch.get(block).iter_vars
    wide = any(str(axis.var.ty) == "int64" for axis in axes)
    dtype = "int64" if wide else "int32"
    return tirx.IndexMap.from_func(index_map, ndim=len(axes), index_dtype=dtype)


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
