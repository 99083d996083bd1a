"""How the blocks of a cluster tell each other what their warps found of a row.

Each block has a board with a place for every warp of the cluster. A warp stores what it found on
all boards of the cluster, through distributed shared memory, and an mbarrier of each block counts
the bytes that come. So all blocks combine the same numbers in the same order. A block ends after
it has what the others sent, and no earlier: nothing is stored in a block that has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from ...gpu.hardware import WARP_SIZE
from ...intrin import asynchronous
from ...ir.rebuild import sequence
from .chain import RowBlock, RowChain
from .plan import RowPlan
from .traffic import result_words, words_of

_WORD_BITS = 32
#: Words that a thread stores at a time, at most.
_WIDE = 4


class Exchange:
    """Writes how warps of a cluster exchange the results of a row, a round for each level."""

    def __init__(self, chain: RowChain, plan: RowPlan, lane: Any, grid: Any) -> None:
        self._plan, self._lane = plan, lane
        self._rank = tirx.floormod(grid, plan.cluster)
        self.lane_of_row = self._rank * plan.lanes + lane
        #: Warps of a row.
        self.warps = plan.cluster * plan.lanes // WARP_SIZE
        sums = [block for block in chain.blocks if block.kind == "sum"]
        levels = sorted({block.level for block in sums})
        self._rounds = {level: i for i, level in enumerate(levels)}
        self._places: dict[str, int] = {}
        self._bytes = [0] * len(levels)
        words = 0
        for block in sums:
            width = result_words(block)
            self._places[block.label] = -(-words // _WIDE) * _WIDE
            words = self._places[block.label] + self.warps * width
            self._bytes[self._rounds[block.level]] += self.warps * width * _WORD_BITS // 8
        self._board = tirx.decl_buffer(
            (words,), "uint32", "board", scope="shared", data_alignment=4 * _WIDE
        )
        self._arrived = tirx.decl_buffer(
            (len(levels),), "uint64", "arrived", scope="shared", data_alignment=8
        )
        self._address = tirx.decl_buffer((2,), "uint32", "address", scope="local")
        self.buffers = [self._board, self._arrived, self._address]

    def begin(self) -> Iterator[Any]:
        """Initialise the mbarriers, and tell the cluster that this block has begun."""
        made = []
        for i, count in enumerate(self._bytes):
            made.append(asynchronous.init_barrier(self._arrived, i, 1))
            made.append(asynchronous.expect_bytes(self._arrived, i, count))
        yield tirx.IfThenElse(tirx.EQ(self._lane, 0), sequence(made), None)
        yield from asynchronous.begin_cluster()

    def send(self, level: int, found: Sequence[tuple[RowBlock, Sequence[Any]]]) -> Iterator[Any]:
        """Store what each warp found of some reductions on the boards of all blocks.

        A lane of the warp stores on the board of each.
        """
        if self._rounds[level] == 0:
            yield asynchronous.wait_cluster()
        peer = tirx.floormod(self._lane, WARP_SIZE)
        target, barrier = (self._address[i] for i in range(2))
        bars = self._arrived.access_ptr("rw", offset=self._rounds[level])
        done = [asynchronous.map_address(barrier, bars, peer)]
        warp = tirx.floordiv(self.lane_of_row, WARP_SIZE)
        for block, values in found:
            words = [word for value in values for word in _words(value)]
            words += words[-1:] * (result_words(block) - len(words))
            place = self._places[block.label] + warp * len(words)
            for i in range(0, len(words), _WIDE):
                pointer = self._board.access_ptr("w", offset=place + i)
                done.append(asynchronous.map_address(target, pointer, peer))
                part = words[i : i + _WIDE]
                done.append(asynchronous.send_to(target, part, barrier))
        yield tirx.IfThenElse(peer < self._plan.cluster, sequence(done), None)

    def wait(self, level: int) -> Any:
        """Wait for all warps of the row."""
        return asynchronous.wait_barrier(self._arrived, self._rounds[level], 0)

    def of_warp(self, block: RowBlock, warp: Any) -> list[Any]:
        """What a warp of the row found of a reduction."""
        place = self._places[block.label] + warp * result_words(block)
        values = []
        for store in block.stores:
            count = words_of(store.buffer.dtype)
            words = [tirx.BufferLoad(self._board, [place + i]) for i in range(count)]
            values.append(_value(words, str(store.buffer.dtype)))
            place = place + count
        return values


def _words(value: Any) -> list[Any]:
    """The bits of a value in words of 32."""
    kind = tvm.DataType(str(value.ty.dtype))
    whole = tirx.reinterpret(f"uint{kind.bits}", value)
    if kind.bits <= _WORD_BITS:
        return [whole if kind.bits == _WORD_BITS else T.Cast("uint32", whole)]
    return [T.Cast("uint32", whole), T.Cast("uint32", T.shift_right(whole, T.uint64(_WORD_BITS)))]


def _value(words: list[Any], dtype: str) -> Any:
    """The value that words have the bits of."""
    bits = tvm.DataType(dtype).bits
    if bits < _WORD_BITS:
        return tirx.reinterpret(dtype, T.Cast(f"uint{bits}", words[0]))
    if bits == _WORD_BITS:
        return tirx.reinterpret(dtype, words[0])
    low, high = (T.Cast("uint64", word) for word in words)
    whole = T.bitwise_or(low, T.shift_left(high, T.uint64(_WORD_BITS)))
    return tirx.reinterpret(dtype, whole)
