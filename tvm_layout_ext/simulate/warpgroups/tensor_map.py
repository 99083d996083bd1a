"""Tensor maps: boxes of a matrix in global memory, and where they lie in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import NotModelled, SimulationError
from ...gpu.warpgroups import BOX_ELEMENTS, MAP_PITCH_BYTES, MOST_STEP, PANEL_BYTES
from ..memory.memory import Memory

#: Bytes of a row by the mode of the swizzle in ``cuTensorMapEncodeTiled``.
_ROW_BYTES = {2: 64, 3: 128}


def swizzled(address: Any, row_bytes: int) -> Any:
    """Where a byte lies that rows of 128 or 64 bytes would put at an address.

    The piece of 16 bytes, bits 4 to 6 or 4 to 5, is combined with as many bits from 7 on: the row,
    or two rows; as ``NVMMASharedLayout(128, 8)`` and ``NVMMASharedLayout(64, 8)`` say.
    """
    return address ^ (address >> 7 & row_bytes // 16 - 1) << 4


@dataclass(frozen=True)
class TensorMap:
    """What ``cuTensorMapEncodeTiled`` was told; dims are innermost first.

    ``box`` counts the elements that are copied, of which neighbours are ``steps`` apart, and which
    lie in rows of ``row_bytes`` in shared memory.
    """

    memory: Memory
    itemsize: int
    shape: tuple[int, ...]
    pitches: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    row_bytes: int = PANEL_BYTES

    @classmethod
    def encode(cls, memory: Memory, itemsize: int, rank: int, numbers: Sequence[int]) -> TensorMap:
        """Read the numbers behind the base address, as the driver's function does.

        Raises
        ------
        SimulationError
            Where the driver would return an error.
        NotModelled
            For other modes than the swizzles of 128 and 64 bytes with zeros outside.
        """
        shape, rest = tuple(numbers[:rank]), numbers[rank:]
        pitches, rest = tuple(rest[: rank - 1]), rest[rank - 1 :]
        spans, steps, modes = rest[:rank], tuple(rest[rank : 2 * rank]), rest[2 * rank :]
        if modes[0] or modes[1] not in _ROW_BYTES or modes[3]:
            raise NotModelled(
                "The simulated GPU models tensor maps with the swizzles of 128 and 64 bytes, and "
                "zeros outside."
            )
        row_bytes = _ROW_BYTES[modes[1]]
        if any(pitch % MAP_PITCH_BYTES for pitch in pitches):
            raise SimulationError(
                f"A tensor map has rows {pitches} bytes apart; it needs multiples of "
                f"{MAP_PITCH_BYTES}."
            )
        if min(steps) < 1 or max(steps) > MOST_STEP:
            raise SimulationError(
                f"A tensor map takes every {max(steps)}th element; steps of 1 to {MOST_STEP} are "
                "legal."
            )
        box = tuple(-(-span // step) for span, step in zip(spans, steps, strict=True))
        if max(spans) > BOX_ELEMENTS or box[0] * itemsize > row_bytes:
            raise SimulationError(
                f"A tensor map has boxes of {tuple(spans)}; {BOX_ELEMENTS} elements a dim are "
                f"legal, and {row_bytes} bytes of the first under the {row_bytes}-byte swizzle."
            )
        return cls(memory, itemsize, shape, pitches, box, steps, row_bytes)

    @property
    def box_bytes(self) -> int:
        """Bytes of a box, inside of the tensor or not."""
        return int(np.prod(self.box)) * self.itemsize

    def places(self, at: Sequence[int], target: int) -> tuple[Any, Any, Any]:
        """Bytes of a box: in global memory, whether they are inside, and in shared memory."""
        offsets, source, within = self._bytes
        begin, inside = 0, np.ones(len(source) // self.itemsize, bool)
        for i, (first, extent) in enumerate(zip(at, self.shape, strict=True)):
            begin += first * (self.itemsize if i == 0 else self.pitches[i - 1])
            if first < 0 or first + (self.box[i] - 1) * self.steps[i] >= extent:
                index = first + offsets[i]
                inside &= (index >= 0) & (index < extent)
        there = swizzled(target + within, self.row_bytes)
        return begin + source, np.repeat(inside, self.itemsize), there

    @cached_property
    def _bytes(self) -> tuple[Any, Any, Any]:
        """Of the first box, dims of its elements, and its bytes in global memory and a panel."""
        counts = self.box[::-1]
        grid = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"))[::-1]
        offsets = grid.reshape(len(counts), -1) * np.array(self.steps)[:, None]
        byte = np.arange(self.itemsize)
        source = np.array((self.itemsize, *self.pitches)) @ offsets
        linear = np.arange(source.size * self.itemsize)
        rows, column = np.divmod(linear, self.box[0] * self.itemsize)
        return offsets, (source[:, None] + byte).ravel(), rows * self.row_bytes + column
