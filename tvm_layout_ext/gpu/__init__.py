"""What GPUs are and what a warp's memory requests cost them, as pure functions of addresses.

:mod:`.hardware` has the facts by architecture. A request is one instruction of one warp, a row of
32 byte addresses: :mod:`.requests` counts what it moves of global memory, :mod:`.banks` the
wavefronts that it takes in shared memory, :mod:`.copies` those of ``cp.async``, and :mod:`.counts`
sums them up. Nothing here knows of TVM, of layouts or of programs.
"""

from __future__ import annotations

from .banks import request_wavefronts
from .copies import copy_wavefronts, fewest_wavefronts
from .counts import Count, count_copies, count_global, count_shared, instructions
from .hardware import Architecture, architecture, blocks_per_sm
from .requests import request_sectors

__all__ = [
    "Architecture",
    "Count",
    "architecture",
    "blocks_per_sm",
    "copy_wavefronts",
    "count_copies",
    "count_global",
    "count_shared",
    "fewest_wavefronts",
    "instructions",
    "request_sectors",
    "request_wavefronts",
]
