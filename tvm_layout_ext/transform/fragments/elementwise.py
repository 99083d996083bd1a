"""Let each thread run an elementwise statement over the registers that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...ir.queries import substitute
from ...layout import LinearLayout
from ...layout.conversion.per_thread import same_thread, split_input
from .fragment import Fragment, Fragments
from .index import coordinates
from .nest import FragmentTile
from .vectors import vector_bits


@dataclass(frozen=True)
class _Loops:
    """A thread's loops over its registers: those of a vector inside the others."""

    bits: tuple[int, ...]
    vector: Any
    rest: Any
    thread: Any

    def apply(self, layout: LinearLayout) -> dict[str, Any]:
        """Apply a layout that takes a register, and perhaps the thread."""
        others = [i for i in range(len(layout.basis("register"))) if i not in self.bits]
        parts = split_input(layout, "register", {"vector": self.bits, "rest": others})
        values = {"vector": self.vector, "rest": self.rest, "thread": self.thread}
        return coordinates(parts, {name: values[name] for name in parts.in_dims})


def registers_of(tile: FragmentTile, fragment: Fragment, load: Any) -> LinearLayout | None:
    """From a tile's registers to those in which each thread itself holds what it loads, or None."""
    dims = tile.dims(load.indices)
    return None if dims is None else registers_held(tile.fragment.own, dims, fragment.own)


def registers_held(
    own: LinearLayout, dims: Sequence[int | None], held: LinearLayout
) -> LinearLayout | None:
    """From registers of one layout to those of another in which a thread has what it wants."""
    sizes = list(own.out_sizes.values())
    pairs = zip(dims, held.out_sizes.values(), strict=True)
    if any(dim is not None and sizes[dim] > size for dim, size in pairs):
        return None
    wanted = LinearLayout.from_bases(picked(own, dims), held.out_sizes, surjective=False)
    return same_thread(wanted, held)


def picked(layout: LinearLayout, dims: Sequence[int | None]) -> dict[str, list[tuple[int, ...]]]:
    """Basis vectors of a layout with some of their dims, 0 where there is none."""
    return {
        name: [tuple(0 if d is None else v[d] for d in dims) for v in vectors]
        for name, vectors in layout.bases
    }


def lower_elementwise(tile: FragmentTile, fragments: Fragments, block: str, thread: Any) -> Any:
    """Make the statement that each thread runs; it must need no other threads' elements."""
    everything = [tile.store.value, *tile.store.indices, *tile.predicates]
    loads = [pair for expr in everything for pair in fragments.loaded(expr)]
    maps = [_held(tile, fragment, load, block) for fragment, load in loads]
    bits = vector_bits(tile, fragments, maps)
    size = tile.fragment.layout.in_sizes["register"]
    vector, rest = (
        tirx.Var(name, "int32") if extent > 1 else 0
        for name, extent in (("v", 1 << len(bits)), ("r", size >> len(bits)))
    )
    loops = _Loops(bits, vector, rest, thread)
    body = _statement(tile, fragments, loops)
    for predicate in tile.predicates:
        body = tirx.IfThenElse(_placed(predicate, tile, fragments, loops), body, None)
    body = _loop(vector, 1 << len(bits), tirx.ForKind.VECTORIZED, body)
    body = _loop(rest, size >> len(bits), tirx.ForKind.UNROLLED, body)
    if fragments.of(tile.store.buffer) is None:
        body = only_one_copy(tile.fragment.own, thread, body)
    return body


def _held(tile: FragmentTile, fragment: Fragment, load: Any, block: str) -> LinearLayout:
    registers = registers_of(tile, fragment, load)
    if registers is None:
        raise ScheduleError(
            f"Block {block} combines fragment {tile.fragment.name} with elements of "
            f"{fragment.name} at {list(load.indices)} that other threads hold; copy "
            f"{fragment.name} to a fragment of the same layout first."
        )
    return registers


def _statement(tile: FragmentTile, fragments: Fragments, loops: _Loops) -> Any:
    value = _placed(tile.store.value, tile, fragments, loops)
    target = fragments.of(tile.store.buffer)
    if target is None:
        indices = [_placed(index, tile, fragments, loops) for index in tile.store.indices]
        return tirx.BufferStore(tile.store.buffer, value, indices)
    size = target.layout.in_sizes["register"]
    number = LinearLayout.identity(size, "register", "register")
    return tirx.BufferStore(target.registers, value, [loops.apply(number)["register"]])


def _placed(expr: Any, tile: FragmentTile, fragments: Fragments, loops: _Loops) -> Any:
    """Replace fragments by registers, and coordinates by what they are in this thread."""

    def load(node: Any) -> Any:
        fragment = fragments.of(node.source)
        registers = None if fragment is None else registers_of(tile, fragment, node)
        if fragment is None or registers is None:
            return node
        return tirx.BufferLoad(fragment.registers, [loops.apply(registers)["register"]])

    values = zip(tile.coordinates, loops.apply(tile.fragment.own).values(), strict=True)
    return substitute(
        tvm_ffi.structural_map(expr, [(tvm.ir.TensorLoad, load)], order="post"),
        {var: _typed(value, var) for var, value in values},
    )


def _typed(value: Any, var: Any) -> Any:
    dtype = str(var.ty)
    return tirx.const(value, dtype) if isinstance(value, int) else value.astype(dtype)


def only_one_copy(layout: LinearLayout, thread: Any, body: Any) -> Any:
    """Run a statement in one of the threads that hold copies of the same elements."""
    copies = layout.free_variable_masks()["thread"]
    if not copies:
        return body
    return tirx.IfThenElse(tirx.bitwise_and(thread, copies) == 0, body, None)


def _loop(var: Any, extent: int, kind: Any, body: Any) -> Any:
    return tirx.For(var, 0, extent, kind, body) if extent > 1 else body
