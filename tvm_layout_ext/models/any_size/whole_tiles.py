"""Products with symbolic sizes: scheduled as if these were whole tiles, and guarded at the ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import SBlockRealize

from ...errors import ScheduleError
from ...ir import ops
from ...ir.annotations import MARK
from ...ir.conditions import conjuncts
from ...ir.queries import (
    depends_on,
    distinct,
    is_among,
    loads_in,
    nodes_in,
    substitute,
    uses,
    variables,
)
from ...ir.rebuild import block_with, realize_with, sequence
from ...tune.space.functions import blocks_of
from ...tune.space.off_tensor_cores import is_product
from .ends import check_terms, guarded
from .merged_rows import MergedRows, merge_rows

#: Rows, columns and terms of a tile.
TILE = 64
#: The largest index, less the rows that fill a tile up.
_MOST = (1 << 31) - (1 << 24)
#: Numbers of tiles for which a condition on them is asked.
_TRIED = (1, 2, 3, 5, 7)
#: Rows of a known number that make a tile worth its while, so that others beside are a batch.
_ROWS = 16


@dataclass(frozen=True)
class WholeTiles:
    """A function all of whose symbolic sizes are tiles, and the way back.

    Attributes
    ----------
    original : PrimFunc
    func : PrimFunc
        The same with ``tile * tiles`` in the place of each variable of ``counts``.
    counts : tuple of pairs of Var
        Symbolic sizes, each with the variable that counts its tiles.
    merged : MergedRows, optional
        How rows of several dims became one.
    computed : dict
        Variables by which values and places have sizes of ``counts``, which whole tiles do not
        change; each is one more parameter of ``func``.
    tile : int
    """

    original: tirx.PrimFunc
    func: tirx.PrimFunc
    counts: tuple[tuple[Any, Any], ...]
    merged: MergedRows | None = None
    computed: dict[Any, Any] = field(default_factory=dict)
    tile: int = TILE

    @property
    def rows(self) -> Any | None:
        """How many rows a call has, if only one size is symbolic, or those merged to one."""
        if len(self.counts) != 1:
            return None
        return prod(self.merged.dims) if self.merged else self.counts[0][0]

    def schedule(self, scheduled: s_tir.Schedule) -> s_tir.Schedule:
        """The schedule of a function with its own sizes again."""
        func = self._restored(scheduled.mod["main"])
        mod = tvm.IRModule({"main": self.merged.restored(func) if self.merged else func})
        return s_tir.Schedule(mod, debug_mask="none")

    def _restored(self, scheduled: tirx.PrimFunc) -> tirx.PrimFunc:
        """The scheduled function with its own sizes again.

        What lies beyond a parameter's end is read as zero and not stored. Indices have 32 bits, so
        that a call with more elements is refused on the host.
        """
        ends = {count: (n + self.tile - 1) // self.tile for n, count in self.counts}
        loops = {one.loop_var.__chandle__(): one for one in nodes_in(scheduled.body, tirx.For)}
        without_ends = partial(self._without_ends, loops)
        rule = (SBlockRealize, without_ends)
        body = tvm_ffi.structural_map(scheduled.body, [rule], order="post")
        params = self.original.params
        scheduled = tirx.PrimFunc(
            scheduled.params[: len(params)], body, scheduled.ret_type, attrs=scheduled.attrs
        )
        whole = substitute(scheduled, ends | {own: size for size, own in self.computed.items()})
        body = guarded(self.original, whole, [size for size, _ in self.counts])
        few = (tirx.call_intrin("bool", ops.ASSUME, one) for one in _few(params))
        root = block_with(body.block, body=sequence([*map(tirx.Evaluate, few), body.block.body]))
        body, attrs = realize_with(body, root), self.original.attrs
        # Assumptions are checked, and arrays cut, by passes for marked functions.
        return tirx.PrimFunc(params, body, scheduled.ret_type, attrs=attrs).with_attr(MARK, 1)

    def _without_ends(self, loops: dict[int, Any], node: Any) -> Any:
        """A block without conditions on how many tiles there are, which loops have already."""
        kept = [one for one in conjuncts(node.predicate) if not self._always_holds(one, loops)]
        condition = tirx.all(*kept) if kept else tirx.const(True, "bool")
        return SBlockRealize(node.iter_values, condition, node.block)

    def _always_holds(self, condition: Any, loops: dict[int, Any]) -> bool:
        """Whether a condition on how many tiles there are holds for some numbers of them.

        TVM proves it of numbers alone. Vectors of a tile that fill no block do not hold it.
        """
        counts = [count for _, count in self.counts]
        used = distinct(variables(condition))
        if not any(is_among(count, used) for count in counts):
            return False

        def holds(tiles: int) -> bool:
            values = {count: tirx.IntImm(count.ty, tiles) for count in counts}
            analyzer = tvm.sym.Analyzer()
            for loop in (loops[var.__chandle__()] for var in used if var.__chandle__() in loops):
                extent = analyzer.simplify(substitute(loop.extent, values))
                analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, extent))
            return bool(analyzer.can_prove(substitute(condition, values)))

        return all(map(holds, _TRIED))


def whole_tiles(func: tirx.PrimFunc) -> WholeTiles | None:
    """Let symbolic rows, columns and terms be whole tiles; None where nothing is symbolic.

    A batch may have any size, for it is never cut, as images of so many pixels each are. Rows of
    several dims are merged before.

    Raises
    ------
    ScheduleError
        If one of them is more than a variable, or something is computed from it.
    """
    extents = [extent for param in func.params for extent in getattr(param, "shape", ())]
    if all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    merged = merge_rows(func)
    func = func if merged is None else merged.func
    sizes: list[Any] = []
    for extent in (extent for _, block in blocks_of(func) for extent in _cut(block)):
        if not isinstance(extent, tirx.Var):
            raise ScheduleError(
                f"A product has {extent} iterations; a number or a variable can be cut into tiles."
            )
        if not is_among(extent, sizes):
            sizes.append(extent)
    for size in sizes:
        check_terms(func, size)
    return _whole(func, sizes, TILE, merged)


def whole_strips(func: tirx.PrimFunc, sizes: list[Any], length: int) -> WholeTiles:
    """Let symbolic sizes be whole strips of a length; ScheduleError as of :func:`whole_tiles`."""
    return _whole(func, distinct(sizes), length, None)


def _whole(
    func: tirx.PrimFunc, sizes: list[Any], tile: int, merged: MergedRows | None
) -> WholeTiles:
    for part in _placed(func):
        for size in sizes:
            if depends_on(part, size):
                raise ScheduleError(f"{part} is computed from {size}, which whole tiles change.")
    counts = tuple((n, tirx.Var(f"{n.name}_tiles", str(n.ty.dtype))) for n in sizes)
    apart, computed = _with_sizes_apart(func, sizes)
    tiled = resized(apart, {n: count * tile for n, count in counts})
    return WholeTiles(func, tiled, counts, merged, computed, tile)


def resized(func: tirx.PrimFunc, sizes: Mapping[Any, Any]) -> tirx.PrimFunc:
    """A function with other sizes in the place of variables, those among its parameters, too."""
    params = [tirx.Var(p.name, p.ty) if is_among(p, sizes) else p for p in func.params]
    apart = tirx.PrimFunc(params, func.body, func.ret_type, attrs=func.attrs)
    return substitute(apart, sizes)


def _placed(func: tirx.PrimFunc) -> list[Any]:
    """Where blocks of a function are, and under which conditions."""
    blocks = nodes_in(func.body, SBlockRealize)
    found = [part for one in blocks for part in (one.predicate, *one.iter_values)]
    return [*found, *(one.condition for one in nodes_in(func.body, tirx.IfThenElse))]


def _with_sizes_apart(
    func: tirx.PrimFunc, sizes: list[Any]
) -> tuple[tirx.PrimFunc, dict[Any, Any]]:
    """A function whose values and places have sizes by variables of their own, and these."""
    stores = nodes_in(func.body, tirx.BufferStore)
    parts = [part for one in stores for part in (one.value, *one.indices)]
    used = [size for size in sizes if any(depends_on(part, size) for part in parts)]
    if not used:
        return func, {}
    computed = {size: tirx.Var(f"{size.name}_own", str(size.ty.dtype)) for size in used}

    def store(one: Any) -> Any:
        value, *places = (substitute(part, computed) for part in (one.value, *one.indices))
        return tirx.BufferStore(one.buffer, value, places)

    body = tvm_ffi.structural_map(func.body, [(tirx.BufferStore, store)], order="post")
    params = [*func.params, *computed.values()]
    return tirx.PrimFunc(params, body, func.ret_type, attrs=func.attrs), computed


def _cut(block: Any) -> list[Any]:
    """Symbolic extents of a product that are none of its batch's."""
    if not is_product(block):
        return []
    accesses = [one.indices for one in loads_in(block.body.value)]

    def readers(one: Any) -> list[bool]:
        return [any(uses(index, one.var) for index in indices) for indices in accesses]

    known, symbolic = list[Any](), list[Any]()
    for one in block.iter_vars:
        is_known = isinstance(one.dom.extent, tirx.IntImm)
        (known if is_known else symbolic).append(one)
    # Tiles cut rows of a known number, if there are some beside: of images those of each.
    each = [(readers(one), int(one.dom.extent)) for one in known]
    beside = [sides for sides, _ in each if prod(n for s, n in each if s == sides) >= _ROWS]
    cut = [one for one in symbolic if not all(readers(one)) and readers(one) not in beside]
    # Of several dims of rows that are not merged the last one; the others are a batch.
    last = {tuple(readers(one)): one for one in cut}
    return [one.dom.extent for one in cut if last[tuple(readers(one))] is one]


def _few(params: Any) -> list[Any]:
    """Conditions by which no index of a parameter needs more than 32 bits."""
    found = []
    for param in params:
        shape = getattr(param, "shape", ())
        sizes = [extent for extent in shape if not isinstance(extent, tirx.IntImm)]
        if sizes:
            most: Any = _MOST // prod(int(n) for n in shape if isinstance(n, tirx.IntImm))
            for other in sizes[1:]:
                most = most // tirx.max(other, 1)
            found.append(sizes[0] <= most)
    return found
