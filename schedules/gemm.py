"""Matrix product ``C = A @ B`` on tensor cores, by ``mma.sync``, of every type that they take.

Products of ``float32`` are computed as tf32, as Triton's ``tl.dot`` does by default
(``input_precision="tf32"``): operands keep 10 of their 23 bits of mantissa. They are a computation
of their own, marked by annotation :data:`.INPUT_PRECISION`; :mod:`.matmul` is the exact one.
8-bit integers are added up exactly in ``int32``, which is also C's type; C of 8-bit floats is
``float16``, of all others the operands' type. B is stored K x N for every type; ``ldmatrix`` cannot
transpose one of 8 or 32 bits, whose elements are loaded one by one. :mod:`.gemm_nt` is the same
with B stored N x K, by argument ``b_transposed`` of what depends on it.

A block computes a tile of C, in steps along K: its threads copy a tile of A and one of B into
shared memory, each warp loads fragments of both into registers (``ldmatrix``, or plain loads of
operands that it cannot transpose) and multiplies them into its own part of C, which stays in
registers. The results leave through shared memory, in rows of 16 bytes a thread.

Tiles are copied ``stages - 1`` steps ahead, and lie swizzled or padded so that every access is free
of bank conflicts; :mod:`.tile_copies` says what padding asks of the copies. Blocks run in groups
of rows, which share tiles in the L2 cache. :func:`multiply` takes any layout of the operands,
batches, ragged sizes and whatever is computed from the product element by element.

Knob ``split_k`` cuts K into slices, blocks of their own each, whose partial sums take ``split_k * M
* N * 4`` bytes of workspace and are added up by a second kernel, which also computes what follows
(:mod:`._split_k`; its :func:`~._split_k.best_slices` makes the default). Knob ``cluster`` launches
so many neighbours of the grid together (``sm_90``); tiles are not shared within a cluster, so it
only moves blocks that read the same tiles near to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import s_tir

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import BANK_BYTES, WARP_SIZE, Architecture
from tvm_layout_ext.gpu.tile_copies import copy_of
from tvm_layout_ext.schedule.composed.gemm import by_warps
from tvm_layout_ext.schedules import _gemm_hopper
from tvm_layout_ext.schedules._gemm_hopper import NONE, beside
from tvm_layout_ext.schedules._gemm_space import check_grid, fit, prune
from tvm_layout_ext.schedules._gemm_types import (
    DTYPES,
    check_instruction,
    compute,
    inputs,
    numbers,
    reference,
    tolerance,
    traffic,
)
from tvm_layout_ext.schedules._split_k import SLICES, add_up
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator

# The defaults do 434 TFLOPS at 4096^3 in float16 on an H200 (benchmarks/results/
# h200_gemm_sweep_best.json), and the best, 256x128x64 and 128x256x64 by eight warps, 449 and 448.
# These take 192 KB a block, more than other GPUs have, and are 128 blocks of a result of 2048x2048,
# fewer than there are multiprocessors. The defaults take 66 KB, so that two blocks share one.
KNOBS = (
    knob("tile_m", (64, 128, 256), default=128),
    knob("tile_n", (64, 128, 256), default=128),
    knob("tile_k", (16, 32, 64, 128), default=32),
    knob("warps_m", (1, 2, 4), default=2),
    knob("warps_n", (1, 2, 4), default=2),
    knob("stages", range(1, 7), default=4),
    knob("group", (1, 4, 8, 16), default=8),
    knob("swizzle", ("auto", "xor", "pad", "none")),
    knob("prefetch", (0, 1), default=1),
    knob("split_k", SLICES, before=1),
    knob("cluster", (1, 2, 4), before=1),
    knob("wgmma", (NONE, *_gemm_hopper.TILES, *_gemm_hopper.SWAPPED), before=NONE, apart=True),
)
#: Registers that a thread can have, and those that addresses and counters take of them: nvcc
#: compiles 192 sums, 40 of fragments and 20 of these into 253 without a spill.
REGISTERS, ADDRESSES = 255, 20
#: Types whose spaces stay as they are, for sweeps of them are recorded by index: blocks of 16 warps
#: are not held to the 128 registers that a thread of them can have.
SWEPT = ("float16", "bfloat16")
#: Bytes along K of a row of a fragment: two rows of a matrix of ``ldmatrix``, of any type.
STEP_BYTES = 32


def multiply(sch: s_tir.Schedule, block: str, config: Config, instruction: str = "auto") -> None:
    """Schedule a product, and what is computed from it element by element, for tensor cores."""
    if config.get("wgmma", NONE) != NONE:
        _gemm_hopper.multiply(sch, block, config)
        return
    tile = [int(config[f"tile_{dim}"]) for dim in "mnk"]
    warps = [int(config[f"warps_{dim}"]) for dim in "mn"]
    slices = int(config.get("split_k", 1))
    cut = sch.split_k(block, slices, multiple=tile[2]) if slices > 1 else None
    tc = sch.use_tensor_core(cut.partial if cut else block, instruction, multiples=tile)
    if cut:
        for copy in cut.copies:
            sch.compute_inline(copy)
        add_up(sch, cut.sum)
    by_warps(
        sch,
        tc,
        tile,
        warps,
        stages=int(config["stages"]),
        group=int(config["group"]),
        swizzle=str(config["swizzle"]),
        prefetch=bool(int(config["prefetch"])),
        cluster=int(config.get("cluster", 1)),
    )


def _warp_tile(config: Config) -> tuple[int, int]:
    m, n = (int(config[f"tile_{dim}"]) // int(config[f"warps_{dim}"]) for dim in "mn")
    return m, n


def registers(config: Config, widened: bool = False) -> int:
    """Estimate the registers of a thread: sums, fragments of a step, addresses.

    Prefetched fragments are there twice; those that ptxas widens to halves four times, as nvcc
    then takes 181 registers for a warp's tile of 64x32, and spills some of 64x64.
    """
    m, n = _warp_tile(config)
    depth = STEP_BYTES // BANK_BYTES
    fragments = (m + n) * depth // WARP_SIZE * (4 if widened else 1 + int(config["prefetch"]))
    return m * n // WARP_SIZE + fragments + ADDRESSES


def _check_registers(dtype: str, config: Config, architecture: Architecture) -> Refusal | None:
    # Hopper's mma.sync has no fp8; ptxas makes products of halves of it.
    wanted = registers(config, "float8" in dtype and architecture.capability == (9, 0))
    most = REGISTERS
    if dtype not in SWEPT:
        threads = WARP_SIZE * int(config["warps_m"]) * int(config["warps_n"])
        most = min(most, architecture.registers_per_sm // threads)
    if wanted <= most:
        return None
    sums = prod(_warp_tile(config)) // WARP_SIZE
    return Refusal(
        "registers",
        f"A thread would need about {wanted} registers, {sums} of them for sums; {most} are there.",
    )


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: :func:`multiply`."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    multiply(sch, "product", config, numbers(str(tensors[0].dtype)).instruction)
    return sch


def shared_bytes(
    dtype: str, config: Config, b_transposed: bool = False, a_transposed: bool = False
) -> int:
    """Bytes of all versions of the tiles of A (M x K, or K x M), B (K x N, or N x K), and of C.

    TVM gives C, or the partial sums of a slice, the place of the larger of the other two, or as
    much more as it needs, where they have one type; else that of both.
    """
    m, n, k = (int(config[f"tile_{dim}"]) for dim in "mnk")
    of, size = numbers(dtype), np.dtype(dtype).itemsize
    mode = str(config["swizzle"])
    operands = []
    a = (k, m, False) if a_transposed else (m, k, True)
    b = (n, k, True) if b_transposed else (k, n, False)
    for rows, row, k_major in (a, b):
        pad = copy_of(8 * size, k_major, m * n * k, mode).pad
        operands.append(int(config["stages"]) * rows * (row + pad) * size)
    kept = of.sums if int(config.get("split_k", 1)) > 1 else of.result
    wide = np.dtype(kept).itemsize
    sums = m * (n * wide + (16 if wide == 2 else 32))
    if kept != dtype:
        return max(sum(operands), sums)
    return sum(operands) + max(0, sums - max(operands))


def check(
    shape: tuple[int, ...],
    dtype: str,
    config: Config,
    architecture: Architecture,
    b_transposed: bool = False,
    a_transposed: bool = False,
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    if config.get("wgmma", NONE) != NONE:
        return _gemm_hopper.check(shape, dtype, architecture, b_transposed, a_transposed, config)
    v = {name: int(config[name]) for name in config if name not in ("swizzle", "wgmma")}
    if found := _check_registers(dtype, config, architecture):
        return found
    for name, length in zip(("tile_m", "tile_n", "tile_k"), shape, strict=True):
        if v[name] > max(64, 2 * length):
            return Refusal(
                "tile too large", f"{name} {v[name]} is over twice the {length} there are."
            )
    of = numbers(dtype)
    if found := check_instruction(of.instruction, dtype, of.sums, v["tile_k"], architecture):
        return found
    size = shared_bytes(dtype, config, b_transposed, a_transposed)
    if size > architecture.shared_per_block:
        return Refusal(
            "shared memory", f"The tiles need {size:,} bytes of {architecture.shared_per_block:,}."
        )
    return check_grid(shape, v, architecture)


def operator(name: str, b_transposed: bool) -> Operator:
    """Make the operator of a layout: B is stored N x K, or K x N."""
    return Operator(
        name=name,
        dims=("M", "N", "K"),
        parallel=("M", "N"),
        dtypes=DTYPES,
        knobs=KNOBS,
        compute=partial(compute, b_transposed=b_transposed),
        schedule=schedule,
        check=partial(check, b_transposed=b_transposed),
        inputs=partial(inputs, b_transposed=b_transposed),
        reference=partial(reference, b_transposed=b_transposed),
        flops=lambda shape: 2 * shape[0] * shape[1] * shape[2],
        traffic=traffic,
        tolerance=tolerance,
        prune=partial(prune, b_transposed=b_transposed),
        beside=beside,
        fit=partial(fit, b_transposed=b_transposed),
    )


OPERATOR = operator("gemm", b_transposed=False)
