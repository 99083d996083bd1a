"""Find the sums of products that can start at what is added to them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.script import tirx as T

from ...ir.annotations import ANNOTATION_PREFIX, FRAGMENT, TENSOR_CORE
from ...ir.conditions import is_zero
from ...ir.queries import is_load_of, loads_in, substitute, uses

__all__ = ["Fusion", "Unfused", "match_function"]


@dataclass(frozen=True)
class Fusion:
    """A sum of products and the addition that it can start at.

    Attributes
    ----------
    sums : Buffer
        The sums.
    clear, add : SBlock
        The block that clears them, and the one that adds to them afterwards.
    start : Expr
        What they start at, in the iterators of ``clear``.
    addend : TensorLoad
        The element that ``start`` loads.
    addition : Add
        The expression of ``add`` that goes away.
    load : TensorLoad
        The load of the sums that stays in its place.
    tile : SBlock or None
        The block of a tensor-core instruction whose ``init`` holds ``clear``.
    """

    sums: Any
    clear: Any
    add: Any
    start: Any
    addend: Any
    addition: Any
    load: Any
    tile: Any = None


@dataclass(frozen=True)
class Unfused:
    """Sums to which a block adds, and why they do not start at what it adds.

    Attributes
    ----------
    sums : Buffer
        The sums.
    why : str
        A sentence's end.
    """

    sums: Any
    why: str


class _KeptError(Exception):
    """Why sums are left as they are."""


class _Function:
    """What is known of a function's blocks and buffers."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.leaves: list[Any] = []
        self.tiles: list[Any] = []
        self.threads: list[Any] = []
        self.stores: list[Any] = []
        self.pointers: list[Any] = []
        self.loads = loads_in(func.body)
        rules = [
            (SBlockRealize, self._realize),
            (tirx.For, self._loop),
            (tirx.BufferStore, lambda store: self.stores.append(store.buffer)),
            (tvm.ir.Call, lambda call: self.pointers.extend(_variables(call))),
        ]
        tvm_ffi.structural_walk(func.body, rules)

    def _realize(self, realize: Any) -> None:
        self.pointers.extend(match.buffer for match in realize.block.match_buffers)
        self.pointers.extend(match.source.source for match in realize.block.match_buffers)
        if isinstance(realize.block.body, tirx.BufferStore):
            self.leaves.append(realize)
        if TENSOR_CORE in realize.block.annotations:
            self.tiles.append(realize)

    def _loop(self, loop: Any) -> None:
        if loop.thread_binding is not None:
            self.threads.append(loop.loop_var)

    def match(self, update: Any) -> Fusion | Unfused | None:
        """Look who adds to the sums of a block; nothing if nobody does."""
        sums = update.block.body.buffer
        readers = [r for r in self.leaves if r is not update and _reads(r.block, sums)]
        adds = [(r.block, found) for r in readers for found in _additions(r.block, sums)]
        if not adds:
            return None
        try:
            self._check_uses(sums, update)
            return self._matched(sums, update, *adds[0])
        except _KeptError as why:
            return Unfused(sums, f"does not start at what block {adds[0][0].name_hint} adds: {why}")

    def _check_uses(self, sums: Any, update: Any) -> None:
        """One block sums, by itself in each thread; one clears; one other reads."""
        if _among(sums, self.pointers):
            raise _KeptError("its address is used")
        if sum(load.source.same_as(sums) for load in self.loads) != 2:
            raise _KeptError("it is read elsewhere, too")
        if sum(buffer.same_as(sums) for buffer in self.stores) != 2:
            raise _KeptError("it is not only cleared once and summed once")
        owner = self._tile_of(update.block) or update
        summed = [
            value
            for realize in (owner, update)
            for one, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
            if one.iter_type == tirx.IterVar.CommReduce
        ]
        if any(uses(value, thread) for value in summed for thread in self.threads):
            raise _KeptError("several threads sum together")
        names = {str(key) for one in (owner, update) for key in one.block.annotations}
        asked = sorted(name for name in names if name.startswith(ANNOTATION_PREFIX))
        for name in asked:
            if name not in (FRAGMENT, TENSOR_CORE):
                raise _KeptError(f"block {update.block.name_hint} asks for {name}")

    def _tile_of(self, block: Any) -> Any | None:
        """The tile of a tensor-core instruction that a block is the inside of."""
        return next((tile for tile in self.tiles if _holds(tile.block.body, block)), None)

    def _matched(self, sums: Any, update: Any, add: Any, addition: Any) -> Fusion:
        own, load = (addition.a, addition.b)
        if not is_load_of(own, sums):
            own, load = load, own
        self._check_addend(sums, load)
        tile = self._tile_of(update.block)
        clear = self._clear(sums, update, tile)
        init = clear.body if clear.init is None else clear.init
        after = _walk(add, own.indices)
        whole = after is not None and _covers(add, after, sums.shape)
        if tile is None:
            before = _walk(clear, init.indices)
            whole = whole and before is not None and _covers(clear, before, sums.shape)
        if after is None or not (whole or tile is not None):
            raise _KeptError("the sums are not cleared and read element by element, whole")
        foreign = [one.var for one in add.iter_vars if not _among(one.var, after)]
        if any(uses(index, var) for index in load.indices for var in foreign):
            raise _KeptError("one sum has several addends")
        at = dict(zip(after, init.indices, strict=True))
        addend = tirx.BufferLoad(load.source, [substitute(index, at) for index in load.indices])
        if tile is None:
            return Fusion(sums, clear, add, addend, addend, addition, own)
        start = _guarded(addend, [tile.block, clear])
        return Fusion(sums, clear, add, start, addend, addition, own, tile.block)

    def _check_addend(self, sums: Any, load: Any) -> None:
        if not isinstance(load, tvm.ir.TensorLoad):
            raise _KeptError("that is not one element of a buffer")
        if load.source.dtype != sums.dtype:
            raise _KeptError(
                f"{load.source.name} is {load.source.dtype}, the sums are {sums.dtype}"
            )
        if _among(load.source, self.stores) or _among(load.source, self.pointers):
            raise _KeptError(
                f"{load.source.name} is written in this function, maybe after the sum starts"
            )

    def _clear(self, sums: Any, update: Any, tile: Any) -> Any:
        """The block that sets sums to zero: inside a tile's ``init``, or the sum itself."""
        if update.block.init is not None:
            return update.block
        clears = [r.block for r in self.leaves if _stores(r.block, sums) and r is not update]
        zero = [block for block in clears if is_zero(block.body.value)]
        if len(zero) != 1:
            raise _KeptError("it does not start at zero")
        if tile is not None and (tile.block.init is None or not _holds(tile.block.init, zero[0])):
            raise _KeptError(f"block {zero[0].name_hint} clears it apart from its product")
        if tile is None and sums.scope() == "warp":
            raise _KeptError("it lies in the registers of a warp, and no tensor core sums there")
        return zero[0]


def _variables(call: Any) -> list[Any]:
    return [argument for argument in call.args if isinstance(argument, tirx.Var)]


def _among(one: Any, others: Any) -> bool:
    return any(one.same_as(other) for other in others)


def _holds(stmt: Any, block: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(stmt, [(SBlock, found.append)])
    return _among(block, found)


def _stores(block: Any, buffer: Any) -> bool:
    return bool(block.body.buffer.same_as(buffer))


def _reads(block: Any, buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for load in loads_in(block.body.value))


def _additions(block: Any, sums: Any) -> list[Any]:
    """Additions of a block to an element of some sums."""
    found: list[Any] = []

    def look(one: Any) -> None:
        if is_load_of(one.a, sums) != is_load_of(one.b, sums):
            found.append(one)

    tvm_ffi.structural_walk(block.body.value, [(tirx.Add, look)])
    return found


def _is_product(block: Any) -> bool:
    """Whether a block adds products to sums, which begin at zero if it sets them itself."""
    store, init = block.body, block.init
    if not isinstance(store.value, tirx.Add):
        return False
    sides = [store.value.a, store.value.b]
    rest = [one for one in sides if not is_load_of(one, store.buffer)]
    clear = init is None or (isinstance(init, tirx.BufferStore) and is_zero(init.value))
    summed = any(one.iter_type == tirx.IterVar.CommReduce for one in block.iter_vars)
    return len(rest) == 1 and isinstance(rest[0], tirx.Mul) and clear and summed


def _walk(block: Any, indices: Any) -> list[Any] | None:
    """The iterators that index a buffer, if there is another one for each dim."""
    found: list[Any] = []
    for index in indices:
        own = [one.var for one in block.iter_vars if one.var.same_as(index)]
        if not own or _among(own[0], found):
            return None
        found += own
    return found


def _covers(block: Any, walk: Sequence[Any], shape: Any) -> bool:
    """Whether iterators take every index of a buffer."""
    domains = {one.var.__chandle__(): one.dom for one in block.iter_vars}
    found = [domains[var.__chandle__()] for var in walk]
    return all(
        is_zero(domain.min) and tvm_ffi.structural_equal(domain.extent, size)
        for domain, size in zip(found, shape, strict=True)
    )


def _guarded(addend: Any, blocks: Sequence[Any]) -> Any:
    """An element, or zero where sums beyond the edge have none to start at."""
    analyzer = tvm.sym.Analyzer()
    for block in blocks:
        for one in block.iter_vars:
            analyzer.bind(one.var, one.dom)
    inside = [
        test
        for index, size in zip(addend.indices, addend.source.shape, strict=True)
        for test in (index >= 0, index < size)
        if not analyzer.can_prove(test)
    ]
    if not inside:
        return addend
    every = inside[0]
    for test in inside[1:]:
        every = tirx.And(every, test)
    return T.if_then_else(every, addend, tirx.const(0, addend.source.dtype))


def match_function(func: tirx.PrimFunc) -> list[Fusion | Unfused]:
    """Look for sums of products to which something is added afterwards.

    Parameters
    ----------
    func : PrimFunc
        The function.

    Returns
    -------
    list of Fusion or Unfused
        One for each such sum; no block takes part in two fusions.
    """
    known = _Function(func)
    updates = [realize for realize in known.leaves if _is_product(realize.block)]
    found = [one for one in map(known.match, updates) if one is not None]
    return _without_clash(found)


def _without_clash(found: Sequence[Fusion | Unfused]) -> list[Fusion | Unfused]:
    """Leave sums alone whose blocks take part in an earlier fusion, which would change them."""
    kept: list[Fusion | Unfused] = []
    for one in found:
        if isinstance(one, Fusion):
            fusions = [other for other in kept if isinstance(other, Fusion)]
            taken = [block for other in fusions for block in (other.clear, other.add)]
            if _among(one.clear, taken) or _among(one.add, taken):
                text = f"block {one.add.name_hint} adds to other sums, which start there"
                one = Unfused(one.sums, f"does not start at {one.addend.source.name}: {text}")
        kept.append(one)
    return kept
