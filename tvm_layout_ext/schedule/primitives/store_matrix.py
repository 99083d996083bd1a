"""``sch.store_matrix``: store results of 16 bits to shared memory by ``stmatrix``."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...errors import ScheduleError
from ...gpu.hardware import architecture
from ...intrin import store_name
from ...intrin.instructions import TILE
from ...intrin.registry import STMATRIX
from ...ir.annotations import TENSOR_CORE
from ...ir.block_bindings import guard
from ..handles import blockize_tiles, find_block, own_arch


def store_matrix(sch: Any, block: Any, *, arch: str | None = None) -> Any:
    """Let a warp store the results that it holds as 8 x 8 matrices, 16 bytes a row.

    The store of a tile is returned; ``stmatrix`` needs sm_90 and elements of 16 bits.

    ::

        # tc = sch.use_tensor_core(...)
        out = sch.cache_write(tc.result, 0, "shared.dyn")   # shared to global
        store = sch.cache_write(tc.result, 0, "warp")       # registers to shared
        sch.reverse_compute_at(tc.result, warp)
        sch.reverse_compute_at(store, warp)
        sch.distribute_epilogue(tc.result)
        sch.store_matrix(store)

    Parameters
    ----------
    block : SBlockRV or str
        A copy from ``warp`` to shared memory, its last two loops over whole tiles of 16 x 16.
    arch : str, optional
        Architecture that must have the instruction; by default that of the target.
    """
    block = find_block(sch, block, "store_matrix")
    name = str(sch.get(block).name_hint)
    facts = architecture(own_arch(sch) if arch is None else arch)
    if facts.capability < STMATRIX:
        raise ScheduleError(
            f"stmatrix needs compute capability 9.0; {facts.name}, for which block {name} is "
            "scheduled, is older."
        )
    target, row_major = _copy(sch.get(block), name)
    loops = sch.get_loops(block)
    for loop in loops[-2:]:
        if int(sch.get(loop).extent) % TILE:
            raise ScheduleError(
                f"Loop {sch.get(loop).loop_var.name} over block {name} has "
                f"{sch.get(loop).extent} iterations; stmatrix needs multiples of {TILE}."
            )
    if not isinstance(guard(sch, block), tirx.IntImm):
        raise ScheduleError(
            f"Block {name} runs only where {guard(sch, block)}; stmatrix stores whole tiles, so "
            "results that do not fill theirs need plain stores."
        )
    _, tile = blockize_tiles(sch, loops[-2:], (TILE, TILE))
    intrinsic = store_name(str(target.dtype), str(target.scope()), row_major=row_major)
    sch.annotate(tile, TENSOR_CORE, [intrinsic])
    return tile


def _copy(block: Any, name: str) -> tuple[Any, bool]:
    """Buffer that a copy fills, and whether its rows are those of the sums."""
    body = block.body
    if not isinstance(body, tirx.BufferStore) or not isinstance(body.value, tvm.ir.TensorLoad):
        raise ScheduleError(f"Block {name} is no copy; store_matrix copies registers to shared.")
    source, target = body.value.source, body.buffer
    if source.scope() != "warp" or not target.scope().startswith("shared"):
        raise ScheduleError(
            f"Block {name} copies {source.scope()} to {target.scope()} memory; store_matrix "
            "copies warp to shared."
        )
    if str(target.dtype) not in ("float16", "bfloat16"):
        raise ScheduleError(
            f"Block {name} copies {target.dtype}; stmatrix stores float16 and bfloat16."
        )
    stored, held = list(body.indices)[-2:], list(body.value.indices)[-2:]
    return target, bool(stored[-1].same_as(held[-1]))
