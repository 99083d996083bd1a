"""Spread register tiles over threads, and convert them from one layout to another."""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...errors import ScheduleError
from ...ir.annotations import FRAGMENT
from ...ir.pointers import OPAQUE
from ...ir.queries import is_call_of, nodes_in, thread_tag, uses
from ...ir.rebuild import accessed, block_with, loop_with, whole_region, without_annotations
from ...ir.thread_conditions import ThreadConditions
from ...ir.walk import THREADS
from ...layout import Movement, movement
from ..base import function_pass, simplified
from .convert import conversion_source, lower_conversion
from .elementwise import lower_elementwise
from .fragment import Fragment, Fragments, collect_fragments
from .nest import FragmentNest, read_nest, tile_of


class _Kernel(ThreadConditions):
    def __init__(self, fragments: Fragments) -> None:
        super().__init__()
        self._fragments = fragments
        #: Whether we bind the threads, so that no statement but ours may count on them.
        self._is_ours = False
        self.rules.append((tirx.BufferStore, self._store))

    def lower(self, loop: Any) -> Any:
        """Rewrite a kernel, given from its outermost bound loop, or whole if nothing is bound."""
        touched = self._fragments.touched(loop)
        if not touched:
            return loop
        if not any(thread_tag(one) in THREADS for one in nodes_in(loop, tirx.For)):
            self._is_ours = True
            loop = _bind_threads(loop, _common_threads(touched))
        return tvm_ffi.structural_mutate(loop, self.rules)

    def loop(self, loop: Any, mutator: Any) -> Any:
        lowered = self._nest(loop)
        return super().loop(loop, mutator) if lowered is None else lowered

    def realize(self, realize: Any, mutator: Any) -> Any:
        lowered = self._nest(realize)
        return super().realize(realize, mutator) if lowered is None else lowered

    def _store(self, store: Any, _mutator: Any) -> Any:
        lowered = self._nest(store)
        if lowered is None and self._is_ours and store.buffer.scope() != "local":
            raise ScheduleError(
                f"Every thread of the kernel would write {store.buffer.name}; bind the loops of "
                "its block to threadIdx.x, or give it a fragment."
            )
        return store if lowered is None else lowered

    def _nest(self, stmt: Any) -> Any | None:
        """Lower a nest over a tile; None if the statement is none."""
        nest = read_nest(stmt)
        if nest is None:
            return None
        touched = self._fragments.touched(nest.store)
        if not touched:
            return None
        thread = self._thread(nest, touched)
        return _as_block(self._distributed(nest, thread), nest)

    def _distributed(self, nest: FragmentNest, thread: Any) -> Any:
        tile = tile_of(nest, self._fragments)
        copied = conversion_source(tile, self._fragments)
        if copied is None:
            body = lower_elementwise(tile, self._fragments, nest.name, thread)
        else:
            source, layout = copied
            if movement(layout, tile.fragment.layout) not in (Movement.NONE, Movement.REGISTERS):
                self._check_convergent(nest.name, [loop.extent for loop in tile.loops])
            body = lower_conversion(source, layout, tile.fragment, thread)
        return reduce(_around, reversed(tile.loops), body)

    def _thread(self, nest: FragmentNest, touched: list[Fragment]) -> Any:
        number: Any = 0
        threads = 1
        bound = self.threads
        for loop in (bound[tag] for tag in THREADS if tag in bound):
            number = loop.loop_var * threads + number
            threads *= int(loop.extent)
        for fragment in touched:
            if fragment.threads != threads:
                raise ScheduleError(
                    f"Fragment {fragment.name} is laid out over {fragment.threads // 32} warps "
                    f"({fragment.threads} threads), but block {nest.name} runs on {threads}."
                )
        return number

    def _check_convergent(self, block: str, extents: list[Any]) -> None:
        threads = self.threads.values()
        for condition in [*self.conditions, *extents]:
            if any(uses(condition, thread.loop_var) for thread in threads):
                raise ScheduleError(
                    f"Block {block} converts a fragment under {condition}, which differs "
                    "between threads; all threads of a block must convert it together."
                )


def _around(body: Any, loop: Any) -> Any:
    kind = tirx.ForKind.SERIAL if loop.kind == tirx.ForKind.VECTORIZED else loop.kind
    return loop_with(loop, kind=kind, body=body)


def _as_block(body: Any, nest: FragmentNest) -> Any:
    """Wrap what a nest became, with the regions that TVM's software pipeline looks at."""
    reads, writes = (list(map(whole_region, side)) for side in accessed(body))
    annotations = {} if nest.block is None else dict(nest.block.annotations.items())
    block = SBlock([], reads, writes, nest.name, body, None, [], [], annotations)
    return SBlockRealize([], True, block)


# Threads


def _common_threads(fragments: list[Fragment]) -> int:
    first = fragments[0]
    for other in fragments:
        if other.threads != first.threads:
            raise ScheduleError(
                f"Fragments {first.name} and {other.name} are laid out over {first.threads // 32} "
                f"and {other.threads // 32} warps; a kernel has one number of threads."
            )
    return first.threads


def _bind_threads(stmt: Any, threads: int) -> Any:
    """Put a loop over the threads inside the loops over the blocks."""
    if isinstance(stmt, tirx.For) and stmt.thread_binding is not None:
        return loop_with(stmt, body=_bind_threads(stmt.body, threads))
    var = tirx.Var("threadIdx_x", "int32")
    binding = tirx.IterVar(None, tirx.Var("", "int32"), tirx.IterVar.ThreadIndex, THREADS[0])
    return tirx.For(var, 0, threads, tirx.ForKind.THREAD_BINDING, stmt, binding)


# The function


def _lower_kernels(func: tirx.PrimFunc, fragments: Fragments) -> Any:
    bound = False

    def kernel(loop: Any, mutator: Any) -> Any:
        nonlocal bound
        if loop.thread_binding is None:
            return mutator.default_mutate(loop)
        bound = True
        return _Kernel(fragments).lower(loop)

    body = tvm_ffi.structural_mutate(func.body, [(tirx.For, kernel)])
    return body if bound else _Kernel(fragments).lower(func.body)


def _refuse_opaque(func: tirx.PrimFunc, fragments: Fragments) -> None:
    """Refuse accesses that do not go through indices."""
    calls = [one for one in nodes_in(func.body, tvm.ir.Call) if is_call_of(one, *OPAQUE)]
    for call, fragment in product(calls, fragments):
        if uses(call, fragment.buffer):
            raise ScheduleError(
                f"Fragment {fragment.name} is accessed through {call.op.name}; only loads and "
                "stores by index can be spread over threads."
            )


def _refuse_left(body: Any, fragments: Fragments) -> None:
    left = fragments.touched(body)
    if left:
        raise ScheduleError(
            f"Fragment {left[0].name} is accessed outside of a kernel, or in a statement that is "
            "no store; only stores inside of loops over the tile can be spread over threads."
        )


def _with_registers(block: SBlock, fragments: Fragments) -> SBlock:
    """Allocate registers instead of tiles, and take the annotation off."""

    def regions(listed: Any) -> list[Any]:
        tiles = [(region, fragments.of(region.source)) for region in listed]
        return [r if f is None else whole_region(f.registers) for r, f in tiles]

    buffers = [b if (f := fragments.of(b)) is None else f.registers for b in block.alloc_buffers]
    changed = block_with(
        block,
        reads=regions(block.reads),
        writes=regions(block.writes),
        alloc_buffers=buffers,
    )
    return without_annotations(changed, FRAGMENT)


@function_pass()
def LowerFragment(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that spreads register tiles over the threads of a block.

    A register tile is a ``local`` buffer of a block's shape. Annotation ``layout_ext.fragment``, on
    a block or the function, names it and gives a distributed layout. Each thread then keeps the
    registers that the layout gives it, and a nest of loops over the tile becomes a loop over them::

        # before                                 # after, Blocked([1, 4], [4, 8], [4, 1], [1, 0])
        for i, j in T.grid(64, 64):              for r in T.unroll(8):
            F[i, j] = A[i, j]                        for v in T.vectorized(4):
                                                         F[r * 4 + v] = A[...]

    Accesses to memory are as wide as the registers that neighbouring elements lie in. A block that
    copies a fragment to another layout becomes register moves, warp shuffles, or a round trip
    through shared memory, the first that suffices. A kernel that binds no thread gets as many as
    the layouts need.

    Does not handle, and refuses by name: layouts of another shape or number of warps, layouts over
    several blocks of a cluster, accesses through a pointer, nests that do not visit each element
    once, statements that combine elements of different threads, conversions in a branch that only
    some threads take.
    """
    fragments = collect_fragments(func)
    if not list(fragments):
        return func
    _refuse_opaque(func, fragments)
    body = _lower_kernels(func, fragments)
    _refuse_left(body, fragments)
    rule = (SBlock, lambda block: _with_registers(block, fragments))
    body = tvm_ffi.structural_map(body, [rule], order="post")
    return simplified(func.with_body(body).without_attr(FRAGMENT))
