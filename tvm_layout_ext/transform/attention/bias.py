"""What is added to scores, in shared memory: a tile of 16 bits for each row and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from ...gpu.hardware import WARP_SIZE
from ...gpu.warpgroups import PANEL_BYTES
from ...ir.queries import loads_in
from ..hopper.pieces import row_of
from ..hopper.read_kernel import BoxedBuffer
from .plan import PANEL


def words_of(arena: Any) -> Any:
    """The arena in words of 32 bits, in which a thread reads its two neighbours in a row."""
    return tirx.decl_buffer(
        (int(arena.shape[0]) // 4,), "uint32", "words", data=arena.data, elem_offset=0,
        scope="shared.dyn", data_alignment=PANEL_BYTES,
    )  # fmt: skip


@dataclass(frozen=True)
class BiasTile:
    """A tile as the 128-byte swizzle of TMA lays it out, in panels of 64 keys.

    ``begin`` is the byte of a warpgroup's first row in the first panel, of so many ``rows``.
    """

    source: BoxedBuffer
    rows: int
    words: Any
    begin: Any
    thread: Any

    def is_all_of(self, bias: Any) -> bool:
        """Whether an expression loads nothing else from memory."""
        return all(one.source.same_as(self.words) for one in loads_in(self.put_into(bias, 0)))

    def put_into(self, bias: Any, number: int) -> Any:
        """Read the element of a register of scores where an expression loads it from memory."""
        given = tirx.BufferLoad(self.source.buffer, self.source.indices)

        def load(one: Any) -> Any:
            return self._element(number) if tvm_ffi.structural_equal(one, given) else one

        return tvm_ffi.structural_map(bias, [(tvm.ir.TensorLoad, load)], order="post")

    def _element(self, number: int) -> Any:
        """Half of the word that the thread shares with its register's neighbour."""
        panel, inside = divmod(number // 4 * 8, PANEL)
        lane = self.thread % WARP_SIZE
        row = row_of(self.thread, number // 2 % 2)
        vector = T.bitwise_xor(inside // 8, lane // 4)
        at = self.begin + (panel * self.rows + row) * PANEL_BYTES + vector * 16 + lane % 4 * 4
        half = T.shift_right(self.words[at // 4], T.Cast("uint32", number % 2 * 16))
        return T.reinterpret(str(self.source.buffer.dtype), T.Cast("uint16", half))
