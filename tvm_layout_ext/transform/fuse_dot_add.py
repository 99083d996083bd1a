"""Let a sum of products start at what is added to it afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from .. import decisions
from .conversion_graph import loads_in
from .fragment import FRAGMENT
from .fragment_nest import substitute, uses
from .mark_annotated import ANNOTATION_PREFIX, MARK
from .rebuild import block_with

__all__ = ["FuseDotAdd"]

_NAME = "FuseDotAdd"


@dataclass(frozen=True)
class _Fusion:
    """A block that clears sums, the one that adds to them afterwards, and the addend."""

    sums: Any
    clear: Any
    add: Any
    addend: Any
    load: Any


class _Function:
    """What is known of a function's blocks and buffers."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.leaves: list[Any] = []
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

    def _loop(self, loop: Any) -> None:
        if loop.thread_binding is not None:
            self.threads.append(loop.loop_var)

    def fusions(self) -> list[_Fusion]:
        """List the sums that can start at something else."""
        sums = [realize.block.body.buffer for realize in self.leaves if _product(realize.block)]
        found = [self._fusion(buffer) for buffer in sums]
        return [one for one in found if one is not None]

    def _fusion(self, sums: Any) -> _Fusion | None:
        if sums.scope() == "warp" or _among(sums, self.pointers):
            return None
        update = [r for r in self.leaves if _product(r.block) and _stores(r.block, sums)]
        zeros = [r for r in self.leaves if _stores(r.block, sums) and _is_zero(r.block.body.value)]
        if len(update) != 1 or not self._is_alone(update[0]):
            return None
        clears = update if update[0].block.init is not None else zeros
        adds = [r for r in self.leaves if _reads(r.block, sums) and r is not update[0]]
        stores = sum(buffer.same_as(sums) for buffer in self.stores)
        loads = sum(load.source.same_as(sums) for load in self.loads)
        if (len(clears), len(adds), stores, loads) != (1, 1, 2, 2):
            return None
        return self._matched(sums, clears[0], adds[0])

    def _is_alone(self, update: Any) -> bool:
        """Whether each thread sums by itself, and no other pass is to rewrite the sum."""
        summed = [
            value
            for one, value in zip(update.block.iter_vars, update.iter_values, strict=True)
            if one.iter_type == tirx.IterVar.CommReduce
        ]
        crossed = any(uses(value, thread) for value in summed for thread in self.threads)
        asked = [key for key in update.block.annotations if str(key).startswith(ANNOTATION_PREFIX)]
        return not crossed and all(key == FRAGMENT for key in asked)

    def _matched(self, sums: Any, clear: Any, add: Any) -> _Fusion | None:
        store = add.block.body
        sides = [store.value.a, store.value.b] if isinstance(store.value, tirx.Add) else []
        own = [one for one in sides if _loads(one, sums)]
        rest = [one for one in sides if not _loads(one, sums)]
        if len(own) != 1 or len(rest) != 1 or add.block.init is not None:
            return None
        load = rest[0]
        if not isinstance(load, tvm.ir.TensorLoad) or load.source.dtype != sums.dtype:
            return None
        if _among(load.source, self.stores) or _among(load.source, self.pointers):
            return None
        init = clear.block.body if clear.block.init is None else clear.block.init
        before = _whole_walk(clear.block, init.indices, sums)
        after = _whole_walk(add.block, own[0].indices, sums)
        if before is None or after is None:
            return None
        at = dict(zip(after, before, strict=True))
        indices = [substitute(index, at) for index in load.indices]
        foreign = [one.var for one in add.block.iter_vars if not _among(one.var, after)]
        if any(uses(index, var) for index in load.indices for var in foreign):
            return None
        return _Fusion(sums, clear.block, add.block, tirx.BufferLoad(load.source, indices), own[0])


def _variables(call: Any) -> list[Any]:
    return [argument for argument in call.args if isinstance(argument, tirx.Var)]


def _among(one: Any, others: Any) -> bool:
    return any(one.same_as(other) for other in others)


def _stores(block: Any, buffer: Any) -> bool:
    return bool(block.body.buffer.same_as(buffer))


def _reads(block: Any, buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for load in loads_in(block.body.value))


def _loads(value: Any, buffer: Any) -> bool:
    return isinstance(value, tvm.ir.TensorLoad) and bool(value.source.same_as(buffer))


def _is_zero(value: Any) -> bool:
    return isinstance(value, (tirx.IntImm, tirx.FloatImm)) and value.value == 0


def _product(block: Any) -> bool:
    """Whether a block adds products to sums, which begin at zero if it sets them itself."""
    store, init = block.body, block.init
    if not isinstance(store.value, tirx.Add):
        return False
    sides = [store.value.a, store.value.b]
    rest = [one for one in sides if not _loads(one, store.buffer)]
    clear = init is None or (isinstance(init, tirx.BufferStore) and _is_zero(init.value))
    summed = any(one.iter_type == tirx.IterVar.CommReduce for one in block.iter_vars)
    return len(rest) == 1 and isinstance(rest[0], tirx.Mul) and clear and summed


def _whole_walk(block: Any, indices: Any, buffer: Any) -> list[Any] | None:
    """The iterators that index a buffer, if they walk over all of it, one a dim."""
    found: list[Any] = []
    for index, size in zip(indices, buffer.shape, strict=True):
        own = [one for one in block.iter_vars if one.var.same_as(index)]
        if not own or _among(own[0].var, found):
            return None
        domain = own[0].dom
        if not _is_zero(domain.min) or not tvm_ffi.structural_equal(domain.extent, size):
            return None
        found.append(own[0].var)
    return found


def _fused(block: Any, one: _Fusion) -> Any:
    """Write the block that clears, or the one that adds, anew."""
    if block.same_as(one.clear):
        addend = one.addend
        point = [tvm.ir.Range.from_min_extent(index, 1) for index in addend.indices]
        reads = [*block.reads, tirx.BufferRegion(addend.source, point)]
        if block.init is None:
            store = tirx.BufferStore(block.body.buffer, addend, block.body.indices)
            return block_with(block, reads=reads, body=store)
        init = tirx.BufferStore(block.init.buffer, addend, block.init.indices)
        return block_with(block, reads=reads, init=init)
    if block.same_as(one.add):
        store = tirx.BufferStore(block.body.buffer, one.load, block.body.indices)
        reads = [r for r in block.reads if r.source.same_as(one.sums)]
        return block_with(block, reads=reads, body=store)
    return block


def _without_clash(fusions: list[_Fusion]) -> list[_Fusion]:
    """Those whose blocks take no part in an earlier one, which would change them."""
    kept: list[_Fusion] = []
    for one in fusions:
        taken = [block for other in kept for block in (other.clear, other.add)]
        if not _among(one.clear, taken) and not _among(one.add, taken):
            kept.append(one)
    return kept


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_layout_ext.FuseDotAdd")
def _fuse_dot_add(func: tirx.PrimFunc, _mod: Any, _ctx: Any) -> tirx.PrimFunc:
    if func.attrs.get(MARK, None) is None:
        return func
    fusions = _without_clash(_Function(func).fusions())
    if not fusions:
        return func

    def rewrite(block: Any, mutator: Any) -> Any:
        for one in fusions:
            if block.same_as(one.clear) or block.same_as(one.add):
                return _fused(block, one)
        return mutator.default_mutate(block)

    for one in fusions:
        text = f"starts at {one.addend.source.name}, which block {one.add.name_hint} added"
        decisions.note(_NAME, str(one.sums.name), text)
    return func.with_body(tvm_ffi.structural_mutate(func.body, [(SBlock, rewrite)]))


def FuseDotAdd() -> Any:
    """Create the pass that adds to a sum of products by letting the sum start there.

    Triton's combine pass makes ``dot(a, b, d)`` of ``dot(a, b, 0) + d``, so that the addition costs
    nothing and its operand is loaded while the first tiles are::

        # before                                   # after
        with T.init(): P[i, j] = 0                 with T.init(): P[i, j] = C[i, j]
        P[i, j] = P[i, j] + A[i, k] * B[k, j]      P[i, j] = P[i, j] + A[i, k] * B[k, j]
        D[i, j] = P[i, j] + C[i, j]                D[i, j] = P[i, j]

    Floating-point sums are rounded in another order by this, as they are in Triton. Runs before
    any pass that maps or tensorizes sums.

    Does not handle, and leaves alone: sums that are read anywhere else, addends that the function
    itself writes or of another type, sums by several threads, sums of tensor cores (their registers
    are cleared by the instruction), and those that ``auto_coalesce`` maps.
    """
    return _fuse_dot_add
