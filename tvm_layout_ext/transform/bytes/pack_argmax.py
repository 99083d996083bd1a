"""Keep the value and the index of an ``argmax`` of bytes as one number.

By itself an element takes three comparisons, two choices and the sign of a byte: nvcc 13.0 has 11.7
instructions, which an H200 has no time for. As one number of 32 bits, the value above the index,
it takes a permutation of bytes and half a maximum of three: 1.8.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ...analysis.argmax import (
    VALUE_BITS,
    BestPair,
    Start,
    Update,
    comes_from,
    named,
    packed_pairs,
    split_up,
)
from ...ir.contents import contents
from ...ir.queries import are_equal, is_load_of, substitute
from ...ir.rebuild import block_with
from ..base import function_pass
from .keys import Keys


class _Packed:
    """A pair of buffers, and the one of keys that takes their place."""

    def __init__(self, pair: BestPair, keys: Keys) -> None:
        self.pair, self.keys = pair, keys
        self.buffer = tirx.decl_buffer(
            pair.at.shape, keys.kind, f"{pair.at.name}_key", scope="local"
        )

    def has(self, one: Any) -> bool:
        """Whether an update or a start is its own."""
        return bool(one.best.same_as(self.pair.best) and one.at.same_as(self.pair.at))

    def store(self, one: Update | Start, names: dict[int, Any]) -> Any:
        """What becomes of it; ``names`` are values that the statements before give to variables."""
        if isinstance(one, Start):
            numbers = isinstance(one.value, tirx.IntImm) and isinstance(one.index, tirx.IntImm)
            made = self.keys.constant if numbers else self.keys.key
            key = made(one.value, one.index)
        else:
            better = tirx.Max if one.is_max else tirx.Min
            held = tirx.BufferLoad(self.buffer, one.indices)
            value, index = (named(value, names) for value in (one.value, one.index))
            given = self._shuffled(value, index)
            key = better(held, self.keys.key(value, index) if given is None else given)
        return tirx.BufferStore(self.buffer, key, one.indices)

    def _shuffled(self, value: Any, index: Any) -> Any:
        """The key that another lane has, if value and index are its own; None if they are not."""
        pairs = ((value, self.pair.best), (index, self.pair.at))
        if not all(comes_from(one, buffer) for one, buffer in pairs):
            return None
        rest = [[*one.args[:1], *one.args[2:]] for one in (value, index)]
        held = value.args[1].indices, index.args[1].indices
        if not are_equal(*rest) or not are_equal(*held) or not value.op.same_as(index.op):
            return None
        mask, _, *others = value.args
        own = tirx.BufferLoad(self.buffer, held[0])
        return tirx.call_intrin(self.keys.kind, value.op.name, mask, own, *others)

    def load(self, load: Any) -> Any:
        """What a load of either buffer becomes."""
        if not any(is_load_of(load, one) for one in (self.pair.best, self.pair.at)):
            return load
        key = tirx.BufferLoad(self.buffer, load.indices)
        return (self.keys.value if is_load_of(load, self.pair.best) else self.keys.index)(key)

    def block(self, block: Any) -> Any:
        """A block without the buffers."""
        own = self.pair.best, self.pair.at
        made = [one for one in block.alloc_buffers if not any(one.same_as(x) for x in own)]
        if len(made) < len(block.alloc_buffers):
            made.append(self.buffer)
        regions = [
            [substitute(region, dict.fromkeys(own, self.buffer)) for region in side]
            for side in (block.reads, block.writes)
        ]
        return block_with(block, alloc_buffers=made, reads=regions[0], writes=regions[1])


def _packed(pair: BestPair, least: int) -> _Packed:
    """The keys of a pair whose indices are not below a number."""
    first = pair.updates[0]
    descends = first.is_max == first.is_first
    return _Packed(pair, Keys(str(pair.best.dtype), least, descends, str(pair.at.dtype)))


def _rewritten(body: Any, packed: list[_Packed]) -> Any:
    def statements(seq: Any) -> Any:
        every, place = list(seq.seq), 0
        made: list[Any] = []
        names: dict[int, Any] = {}
        for one, taken in split_up(every):
            own = next((p for p in packed if taken > 1 and p.has(one)), None)
            made += [own.store(one, names)] if own else every[place : place + taken]
            place += taken
            # Nothing but names is between what is named and the update.
            names = names | {one.var.__chandle__(): one.value} if isinstance(one, tirx.Bind) else {}
        return tirx.SeqStmt(made) if len(made) > 1 else made[0]

    body = tvm_ffi.structural_map(body, [(tirx.SeqStmt, statements)], order="post")
    for one in packed:
        rules = [(tvm.ir.TensorLoad, one.load), (SBlock, one.block)]
        body = tvm_ffi.structural_map(body, rules, order="post")
    return body


@function_pass()
def PackArgmax(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that keeps value and index of an ``argmax`` of bytes as one number."""
    made = [one for block in contents(func.body).nodes(SBlock) for one in block.alloc_buffers]
    if not any(one.scope() == "local" and str(one.dtype) in VALUE_BITS for one in made):
        return func
    packed = [_packed(pair, least) for pair, (least, _) in packed_pairs(func.body)]
    return func.with_body(_rewritten(func.body, packed)) if packed else func
