"""A matrix in half precision, turned round: ``B[j, i] = half(A[i, j])``, in registers all the way.

Training in low precision needs each operand in both orders. A block loads a tile of A in vectors
along its rows, casts it, changes the layout of the register tile, and stores vectors along the rows
of B. The exchange between threads is the compiler's: ``set_fragment_layout`` names the two layouts,
and lowering moves the tile through as much shared memory as it needs, without a bank conflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import s_tir

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import MAX_ACCESS_BYTES, WARP_SIZE, Architecture
from tvm_layout_ext.layout import BlockedLayout
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator

KNOBS = (
    knob("tile_i", (32, 64, 128), default=64),
    knob("tile_j", (32, 64, 128), default=64),
    knob("warps", (2, 4, 8), default=4),
)
#: Elements of a thread, all of them in registers and unrolled.
MOST_ELEMENTS = 64


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed; the cast is a stage of its own, so that halves are exchanged."""
    M, N = shape
    A = te.placeholder((M, N), dtype, name="A")
    cast = te.compute((M, N), lambda i, j: A[i, j].astype("float16"), name="cast")
    B = te.compute((N, M), lambda j, i: cast[i, j], name="B")
    return [A, B]


def layouts(dtype: str, config: Config) -> tuple[BlockedLayout, BlockedLayout]:
    """The tile as it is loaded, in vectors along j, and as it is stored, in vectors along i."""
    tile_i, tile_j, warps = (int(config[k.name]) for k in KNOBS)
    read = MAX_ACCESS_BYTES // np.dtype(dtype).itemsize
    write = MAX_ACCESS_BYTES // 2
    along_j, along_i = min(WARP_SIZE, tile_j // read), min(WARP_SIZE, tile_i // write)
    loaded = BlockedLayout([1, read], [WARP_SIZE // along_j, along_j], [warps, 1], [1, 0])
    stored = BlockedLayout([write, 1], [along_i, WARP_SIZE // along_i], [1, warps], [0, 1])
    return loaded, stored


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: a tile a block, cast in one layout and stored in the other."""
    loaded, stored = layouts(str(tensors[0].dtype), config)
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    cast, out = sch.get_sblock("cast"), sch.get_sblock("B")
    j, i = sch.get_loops(out)
    jo, ji = sch.split(j, [None, int(config["tile_j"])])
    io, ii = sch.split(i, [None, int(config["tile_i"])])
    sch.reorder(io, jo, ji, ii)
    sch.bind(io, "blockIdx.y")
    sch.bind(jo, "blockIdx.x")
    turned = sch.cache_read(out, 0, "local")
    sch.set_scope(cast, 0, "local")
    for block, layout in ((turned, stored), (cast, loaded)):
        sch.compute_at(block, jo)
        sch.set_fragment_layout(block, 0, layout)
    return sch


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    tile_i, tile_j, warps = (int(config[k.name]) for k in KNOBS)
    for length, tile in zip(shape, (tile_i, tile_j), strict=True):
        # Loops over a tile end with the tensor; a register tile has whole powers of two.
        if tile > length:
            return Refusal("tile too large", f"Tile {tile} is larger than the {length} it cuts.")
    work = tile_i * tile_j // (warps * WARP_SIZE)
    if work > MOST_ELEMENTS:
        return Refusal("registers", f"A thread would hold {work} elements; {MOST_ELEMENTS} fit.")
    if work * 2 < MAX_ACCESS_BYTES:
        return Refusal("threads idle", f"A thread would store {work * 2} bytes, no vector of 16.")
    return None


OPERATOR = Operator(
    name="cast_transpose",
    dims=("M", "N"),
    parallel=("M", "N"),
    dtypes=("float32",),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=lambda a: np.ascontiguousarray(a.T.astype(np.float16)),
)
