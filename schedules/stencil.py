"""A step of heat flow, the five-point stencil, marching down the rows of a matrix.

``B[i, j] = A[i, j] / 2 + (A[i-1, j] + A[i+1, j] + A[i, j-1] + A[i, j+1]) / 8``, where A is zero
outside. A block owns a strip of ``tile_x`` columns and marches down ``steps`` tiles of ``tile_y``
rows. The tiles come with their halo, a row above and below and a sector left and right, into shared
memory ``stages - 1`` steps ahead; the instruction that copies fills up with zeros what lies outside
of A, so that neither an edge nor a ragged size is a special case to what computes. Half a sector of
halo would move as many sectors, and let the requests of a warp begin amid one.

Rows of the halo are read twice, by one block one step apart, so the second time from the L2 cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import MAX_ACCESS_BYTES, SECTOR_BYTES, Architecture
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

KNOBS = (
    knob("tile_y", (4, 8, 16, 32), default=8),
    knob("tile_x", (32, 64, 128, 256), default=128),
    knob("steps", (4, 8, 16, 32, 64), default=16),
    knob("threads", (64, 128, 256), default=128),
    knob("stages", range(1, 7), default=3),
    knob("asynchronous", (0, 1), default=1),
)
CENTRE, NEIGHBOUR = 0.5, 0.125


def run_of(columns: int, dtype: str) -> int:
    """Elements of a sector, or as many of them as rows of so many columns keep aligned."""
    return gcd(columns, SECTOR_BYTES // np.dtype(dtype).itemsize)


def compute(shape: tuple[int, ...], dtype: str, multiples: tuple[int, int] = (1, 1)) -> list[Any]:
    """What is computed: flow into as many rows and columns as fill tiles, of which B takes its own.

    ``halo`` is A with a border of zeros; its columns are cut into runs of a sector.
    """
    M, N = shape
    rows, columns = (-(-n // tile) * tile for n, tile in zip(shape, multiples, strict=True))
    run = run_of(N, dtype)
    A = te.placeholder((M, N), dtype, name="A")

    def inside(i: Any, j: Any, lane: Any) -> Any:
        row, column = i - 1, (j - 1) * run + lane
        held = tirx.all(row >= 0, row < M, j >= 1, j <= N // run)
        return te.if_then_else(held, A[row, column], tirx.const(0, dtype))

    halo = te.compute((rows + 2, columns // run + 2, run), inside, name="halo")

    def at(i: Any, j: Any) -> Any:
        return halo[i + 1, (j + run) // run, (j + run) % run].astype("float32")

    def step(i: Any, j: Any) -> Any:
        around = at(i - 1, j) + at(i + 1, j) + at(i, j - 1) + at(i, j + 1)
        return (at(i, j) * CENTRE + around * NEIGHBOUR).astype(dtype)

    flow = te.compute((rows, columns), step, name="flow")
    return [A, te.compute((M, N), lambda i, j: flow[i, j], name="B")]


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: a strip of columns a block, tile after tile through shared memory."""
    dtype = str(tensors[0].dtype)
    tile_y, tile_x, steps, threads = (int(config[k.name]) for k in KNOBS[:4])
    shape = tuple(map(int, tensors[0].shape))
    tensors = compute(shape, dtype, (steps * tile_y, tile_x))
    sch = s_tir.Schedule(te.create_prim_func(tensors).with_attr("global_symbol", "main"))
    halo, flow, out = map(sch.get_sblock, ("halo", "flow", "B"))

    down = threads // tile_x
    i, j = sch.get_loops(flow)
    strip, step, y, row = sch.split(i, [None, steps, down, tile_y // down])
    column, x = sch.split(j, [None, tile_x])
    sch.reorder(strip, column, step, y, x, row)
    sch.bind(strip, "blockIdx.y")
    sch.bind(column, "blockIdx.x")
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.unroll(row)
    sch.set_scope(flow, 0, "local")
    sch.reverse_compute_at(out, row)

    sch.set_scope(halo, 0, "shared.dyn")
    sch.compute_at(halo, step, preserve_unit_loops=True)
    *where, run = sch.get_loops(halo)[3:]
    vector = min(int(sch.get(run).extent), MAX_ACCESS_BYTES // np.dtype(dtype).itemsize)
    half, lanes = sch.split(run, [None, vector])
    rest, y, x = sch.split(sch.fuse(*where, half), [None, down, tile_x])
    sch.unroll(rest)
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)
    async_copy = "auto" if config["asynchronous"] else False
    sch.pipeline(step, int(config["stages"]), async_copy=async_copy)
    return sch


def reference(a: np.ndarray) -> np.ndarray:
    """Add up five shifted matrices."""
    p = np.pad(a.astype(np.float32), 1)
    around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
    return (p[1:-1, 1:-1] * CENTRE + around * NEIGHBOUR).astype(a.dtype)


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    tile_y, tile_x, steps, threads, stages, _ = (int(config[k.name]) for k in KNOBS)
    if threads % tile_x or tile_y % (threads // tile_x):
        return Refusal("threads idle", f"{threads} threads do not share out {tile_y}x{tile_x}.")
    for name, value, least, length in (
        ("steps of tile_y", steps * tile_y, 32, shape[0]), ("tile_x", tile_x, 64, shape[1]),
    ):  # fmt: skip
        if value > max(least, 2 * length):
            return Refusal(
                "tile too large", f"{name}, {value}, is over twice the {length} there are."
            )
    halo = 2 * run_of(shape[1], dtype)
    needed = stages * (tile_y + 2) * (tile_x + halo) * np.dtype(dtype).itemsize
    if needed > architecture.shared_per_block:
        return Refusal(
            "shared memory",
            f"The tiles need {needed:,} bytes of {architecture.shared_per_block:,}.",
        )
    return None


OPERATOR = Operator(
    name="stencil",
    dims=("M", "N"),
    parallel=("M", "N"),
    dtypes=("float16", "float32"),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=reference,
    flops=lambda shape: 6 * shape[0] * shape[1],
    # Four additions of numbers near 1 in float32, and one rounding to the type of the result.
    tolerance=lambda shape, dtype: Tolerance(rtol=float(np.finfo(dtype).eps), atol=2.0**-20),
)
