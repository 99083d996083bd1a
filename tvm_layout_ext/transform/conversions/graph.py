"""The register tiles of a function as values: what defines each, who reads it, in which order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import DataType, tirx

from ...ir.annotations import FRAGMENT
from ...ir.queries import is_among, is_load_of, is_pure, loads_in
from ...layout import DistributedLinearLayout, LinearLayout
from ..fragments.fragment import Fragment
from ..fragments.nest import FragmentNest, FragmentTile, read_nest


@dataclass(frozen=True, eq=False)
class Value(Fragment):
    """A register tile of the program, or one that a rule made."""

    home: Any  #: A buffer of the program as it was, allocated where this one belongs

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dim."""
        return tuple(self.layout.out_sizes.values())

    @property
    def bytes(self) -> int:
        """Bytes of the tile."""
        return prod(self.shape) * int(DataType(str(self.buffer.dtype)).bits) // 8


@dataclass(eq=False)
class Op:
    """A nest of loops around one store."""

    #: The statement of the program in the place of which, or behind which, it stands.
    origin: Any
    #: Around that: the place in each statement that holds the next.
    scope: tuple[int, ...]
    #: The nest.
    stmt: Any
    #: The same, taken apart.
    nest: FragmentNest
    #: How it walks over its leading fragment, None if that is not understood.
    tile: FragmentTile | None
    #: The fragment that is written; None if it is memory.
    target: Value | None
    #: Fragments that it loads, and for each of their dims the dim of the tile that runs along
    #: it, None for one that stands still; None instead of all where that is not understood.
    reads: list[tuple[Value, tuple[int | None, ...] | None]] = field(default_factory=list)

    @property
    def result(self) -> Value:
        """The fragment that is written, of a nest that writes one."""
        assert self.target is not None
        return self.target

    @property
    def walk(self) -> FragmentTile:
        """How it walks over its fragment, of a nest that is understood."""
        assert self.tile is not None
        return self.tile

    @property
    def value(self) -> Any:
        """What is stored, in the coordinates of the tile."""
        return self.walk.store.value


class Graph:
    """All values and nests of a function, the nests in program order."""

    def __init__(self, values: list[Value], ops: list[Op], escaping: list[Any]) -> None:
        self.values = values
        self.ops = ops
        #: Buffers that are touched otherwise than by nests that load and store by index.
        self.escaping = escaping
        #: The fragments and statements of the program.
        self.buffers = [value.buffer for value in values]
        self.origins = [op.origin for op in ops]
        self._names = {value.name for value in values}

    def writers(self, value: Value) -> list[Op]:
        """List the nests that store it."""
        return [op for op in self.ops if op.target is value]

    def users(self, value: Value) -> list[Op]:
        """List the nests that load it, each once."""
        return [op for op in self.ops if any(read is value for read, _ in op.reads)]

    def definition(self, value: Value) -> Op | None:
        """The one nest that makes a value before all of its uses; None if there is none."""
        writers = self.writers(value)
        if len(writers) != 1 or not is_definition(writers[0]) or self.escapes(value):
            return None
        one = writers[0]
        return one if all(self.dominates(one, op) for op in self.users(value)) else None

    def dominates(self, first: Op, other: Op) -> bool:
        """Whether each run of the other nest finds the result of the first, made since."""
        is_around = first.scope == other.scope[: len(first.scope)]
        return is_around and self.ops.index(first) < self.ops.index(other)

    def escapes(self, value: Value) -> bool:
        """Whether something other than a load or store by index touches it."""
        return is_among(value.buffer, self.escaping)

    def copies(self) -> list[Op]:
        """List the nests that copy one fragment to another, in program order."""
        return [op for op in self.ops if copied(op) is not None]

    # Changes

    def new_value(self, like: Value, layout: LinearLayout) -> Value:
        """Add a fragment of another layout, allocated beside the one it is like."""
        texts = (value.text for value in self.values if value.layout == layout)
        text = next(texts, None) or repr(DistributedLinearLayout.from_linear(layout))
        names = (f"{like.name}_{number}" for number in count(1))
        name = next(name for name in names if name not in self._names)
        self._names.add(name)
        shape = list(layout.out_sizes.values())
        buffer = tirx.decl_buffer(shape, like.buffer.dtype, name, scope="local")
        value = Value(buffer, text, layout, None, like.home)
        self.values.append(value)
        return value

    def insert(self, op: Op, after: Op) -> None:
        """Put a nest right behind another."""
        self.ops.insert(self.ops.index(after) + 1, op)

    def swap(self, op: Op, old: Value, new: Value) -> None:
        """Let a nest read another fragment in the place of one."""
        op.stmt = buffer_swapped(op.stmt, old.buffer, new.buffer)
        nest = read_nest(op.stmt)
        assert nest is not None  # only a buffer has changed
        op.nest = nest
        if op.tile is not None:
            store = buffer_swapped(op.tile.store, old.buffer, new.buffer)
            op.tile = replace(op.tile, store=store)
        op.reads = [(new if read is old else read, dims) for read, dims in op.reads]

    def replace_uses(self, old: Value, new: Value) -> None:
        """Let all readers of one fragment read another."""
        for op in self.users(old):
            self.swap(op, old, new)

    def sweep(self) -> None:
        """Take out values that nobody reads, with the nests that made them."""
        while dead := [v for v in self.values if not self.escapes(v) and self._is_dead(v)]:
            for value in dead:
                self.ops = [op for op in self.ops if op.target is not value]
                self.values.remove(value)

    def _is_dead(self, value: Value) -> bool:
        return all(user.target is value for user in self.users(value)) and all(
            is_pure(op.nest.store.value) for op in self.writers(value)
        )


def is_definition(op: Op) -> bool:
    """Whether a nest computes a whole fragment from other things, and asks for nothing else."""
    tile = op.tile
    if tile is None or op.target is None or tile.loops or None in (d for _, d in op.reads):
        return False
    asked = () if op.nest.block is None else op.nest.block.annotations
    inside = [load for load in loads_in(op.value) if is_load_of(load, op.target.buffer)]
    return not inside and all(key == FRAGMENT for key in asked) and is_pure(op.value)


class TileCopy(NamedTuple):
    """What a copy copies where, and which dim of the target each dim of the source is."""

    source: Value
    target: Value
    dims: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the dims keep their order."""
        return self.dims == tuple(range(len(self.dims)))


def copied(op: Op) -> TileCopy | None:
    """Tell which fragment a nest copies; None if it does anything else."""
    if not is_definition(op) or not isinstance(op.value, tvm.ir.TensorLoad) or len(op.reads) != 1:
        return None
    source, dims = op.reads[0]
    if op.target is None or dims is None:
        return None
    if not op.value.source.same_as(source.buffer) or sorted(
        -1 if d is None else d for d in dims
    ) != list(range(len(op.target.shape))):
        return None
    order = tuple(d for d in dims if d is not None)
    sizes = tuple(op.target.shape[d] for d in order)
    return TileCopy(source, op.target, order) if sizes == source.shape else None


def memory_loads(op: Op) -> list[Any]:
    """List what a nest loads for its value from elsewhere than fragments."""
    own = [value.buffer for value, _ in op.reads]
    return [load for load in loads_in(op.value) if not is_among(load.source, own)]


def buffer_swapped(node: Any, old: Any, new: Any) -> Any:
    """Load one buffer in the place of another, in blocks' regions, too."""

    def load(one: Any) -> Any:
        return tirx.BufferLoad(new, one.indices) if is_load_of(one, old) else one

    def region(one: Any) -> Any:
        return tirx.BufferRegion(new, one.region) if one.source.same_as(old) else one

    rules = [(tvm.ir.TensorLoad, load), (tvm.ir.TensorRegion, region)]
    return tvm_ffi.structural_map(node, rules, order="post")
