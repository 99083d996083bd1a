"""What the schedules of rows share: ``fuse_rows`` makes one kernel of an operator's stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import s_tir, tirx

from tvm_layout_ext import te
from tvm_layout_ext.coalesce.rows.chain import read_chain
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.gpu.hardware import CLUSTERS_SINCE, Architecture
from tvm_layout_ext.ir.queries import blocks_in
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

__all__ = ["KNOBS", "check", "fuse_all", "is_chain", "rows_operator"]

#: 0 leaves a number to ``fuse_rows``.
KNOBS = (
    knob("threads", (0, 64, 128, 256, 512, 1024), default=0),
    knob("lanes", (0, 4, 8, 16, 32, 64, 128, 256, 512, 1024), default=0),
    knob("vector_bytes", (4, 8, 16), default=16),
    knob("keep", ("auto", "registers", "shared", "none"), default="auto"),
    knob("cluster", (0, 1, 2, 4, 8), default=0),
)


def _fused(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """All stages in one kernel, as the knobs say."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    fuse_all(sch, config)
    return sch


def fuse_all(sch: s_tir.Schedule, config: Config) -> None:
    """Put all blocks of a function into one kernel."""
    sch.fuse_rows(
        sch.get_child_blocks(sch.get_sblock("root")),
        lanes=int(config["lanes"]),
        num_threads=int(config["threads"]),
        vector_bytes=int(config["vector_bytes"]),
        keep=str(config["keep"]),
        cluster=int(config["cluster"]),
    )


def is_chain(func: tirx.PrimFunc) -> bool:
    """Whether a function computes elements from sums of their rows, so that one kernel is best."""
    names = [str(block.name_hint) for block in blocks_in(func.body.block.body)]
    try:
        chain = read_chain(func, names)
    except ScheduleError:
        return False
    return any(block.kind == "elements" and block.level for block in chain.blocks)


def check(config: Config, architecture: Architecture) -> Refusal | None:
    """Why a configuration is not legal before it is scheduled, or None."""
    threads, lanes = int(config["threads"]), int(config["lanes"])
    if threads and lanes > threads:
        return Refusal(
            "threads too few", f"{threads} threads of a block do not hold {lanes} lanes."
        )
    if int(config["cluster"]) > 1 and architecture.capability < CLUSTERS_SINCE:
        return Refusal("no clusters", f"{architecture.name} launches no clusters of blocks.")
    return None


def rows_operator(
    name: str,
    compute: Callable[[tuple[int, ...], str], list[Any]],
    reference: Callable[..., np.ndarray],
    operations: int,
) -> Operator:
    """Make an operator that turns each row of a matrix into another one, with weights of a row.

    Parameters
    ----------
    name, compute, reference : see Operator
    operations : int
        Arithmetic operations for each element.
    """
    return Operator(
        name=name,
        dims=("M", "N"),
        parallel=("M",),
        dtypes=("float16", "float32"),
        knobs=KNOBS,
        compute=compute,
        schedule=_fused,
        check=lambda shape, dtype, config, architecture: check(config, architecture),
        reference=reference,
        flops=lambda shape: operations * shape[0] * shape[1],
        tolerance=_tolerance,
        judged_late=True,
    )


def _tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """Results are rounded to the type once; sums in 32 bits differ in their last bits."""
    return Tolerance(2e-3, 1e-3) if dtype == "float16" else Tolerance(1e-4, 1e-5)
