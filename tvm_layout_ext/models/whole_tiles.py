"""Products with symbolic sizes: scheduled as if these were whole tiles, and guarded at the ends."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import SBlockRealize

from ..errors import ScheduleError
from ..ir import ops
from ..ir.conditions import conjuncts
from ..ir.queries import (
    depends_on,
    is_among,
    loads_in,
    nodes_in,
    substitute,
    uses,
    variables,
)
from ..ir.rebuild import block_with, realize_with, sequence
from ..tune.space.functions import blocks_of
from ..tune.space.off_tensor_cores import is_product
from .merged_rows import MergedRows, merge_rows

#: Rows, columns and terms of a tile.
TILE = 64
#: The largest index, less the rows that fill a tile up.
_MOST = (1 << 31) - (1 << 24)


@dataclass(frozen=True)
class WholeTiles:
    """A function all of whose symbolic sizes are tiles, and the way back.

    Attributes
    ----------
    original : PrimFunc
    func : PrimFunc
        The same with ``TILE * tiles`` in the place of each variable of ``counts``.
    counts : tuple of pairs of Var
        Symbolic sizes, each with the variable that counts its tiles.
    merged : MergedRows, optional
        How rows of several dims became one.
    """

    original: tirx.PrimFunc
    func: tirx.PrimFunc
    counts: tuple[tuple[Any, Any], ...]
    merged: MergedRows | None = None

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
        ends = {count: (n + TILE - 1) // TILE for n, count in self.counts}
        body = tvm_ffi.structural_map(
            scheduled.body, [(SBlockRealize, self._without_ends)], order="post"
        )
        whole = substitute(scheduled.with_body(body), ends)
        params = self.original.params
        own = dict(zip((p.__chandle__() for p in whole.params), params, strict=True))
        rules = _Guards(own, [size for size, _ in self.counts])
        body = tvm_ffi.structural_map(whole.body, rules.table(), order="post")
        few = (tirx.call_intrin("bool", ops.ASSUME, one) for one in _few(params))
        root = block_with(body.block, body=sequence([*map(tirx.Evaluate, few), body.block.body]))
        return tirx.PrimFunc(
            params, realize_with(body, root), scheduled.ret_type, attrs=self.original.attrs
        )

    def _without_ends(self, node: Any) -> Any:
        """A block without conditions on how many tiles there are, which loops have already."""
        counts = [count for _, count in self.counts]
        kept = [
            one
            for one in conjuncts(node.predicate)
            if not any(is_among(count, variables(one)) for count in counts)
        ]
        condition = tirx.all(*kept) if kept else tirx.const(True, "bool")
        return SBlockRealize(node.iter_values, condition, node.block)


@dataclass(frozen=True)
class _Guards:
    """Accesses of parameters with their own sizes, by the handles of those of whole tiles."""

    own: dict[int, Any]
    sizes: list[Any]

    def table(self) -> list[tuple[type, Any]]:
        return [
            (tvm.ir.TensorLoad, self.load),
            (tirx.BufferStore, self.store),
            (tvm.ir.TensorRegion, self.region),
        ]

    def load(self, node: Any) -> Any:
        param = self.own.get(node.source.__chandle__())
        if param is None:
            return node
        found = tirx.BufferLoad(param, list(node.indices))
        inside = self._inside(param, node.indices)
        if inside is None:
            return found
        return tirx.if_then_else(inside, found, tirx.const(0, str(param.dtype)))

    def store(self, node: Any) -> Any:
        param = self.own.get(node.buffer.__chandle__())
        if param is None:
            return node
        found = tirx.BufferStore(param, node.value, list(node.indices))
        inside = self._inside(param, node.indices)
        return found if inside is None else tirx.IfThenElse(inside, found, None)

    def _inside(self, param: Any, indices: Any) -> Any:
        """Whether indices lie inside of a parameter, along dims whose ends tiles may cross."""
        pairs = zip(indices, param.shape, strict=True)
        found = [at < end for at, end in pairs if any(uses(end, one) for one in self.sizes)]
        return tirx.all(*found) if found else None

    def region(self, node: Any) -> Any:
        param = self.own.get(node.source.__chandle__())
        return node if param is None else tirx.BufferRegion(param, list(node.region))


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
    for part in _computed(func):
        for size in sizes:
            if depends_on(part, size):
                raise ScheduleError(f"{part} is computed from {size}, which whole tiles change.")
    counts = tuple((n, tirx.Var(f"{n.name}_tiles", str(n.ty.dtype))) for n in sizes)
    tiled = substitute(func, {n: count * TILE for n, count in counts})
    return WholeTiles(func, tiled, counts, merged)


def _computed(func: tirx.PrimFunc) -> list[Any]:
    """Values, places and conditions of a function."""
    found = [
        part for one in nodes_in(func.body, tirx.BufferStore) for part in (one.value, *one.indices)
    ]
    for one in nodes_in(func.body, SBlockRealize):
        found += [one.predicate, *one.iter_values]
    return [*found, *(one.condition for one in nodes_in(func.body, tirx.IfThenElse))]


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
    # Tiles cut rows of a known number, if there are any beside: of images those of each.
    beside = [readers(one) for one in known if int(one.dom.extent) > 1]
    cut = [one for one in symbolic if not all(readers(one)) and readers(one) not in beside]
    return [one.dom.extent for one in cut]


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
