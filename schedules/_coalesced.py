"""What the memory-bound schedules share: all of them leave the mapping to ``auto_coalesce``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator

__all__ = ["DTYPES", "KNOBS", "coalesced", "memory_bound"]

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32")
KNOBS = (
    knob("threads", (0, 64, 128, 256, 512, 1024), default=0),
    knob("vector_bytes", (4, 8, 16), default=16),
)


def coalesced(tensors: Sequence[Any], config: Config) -> te.Schedule:
    """Let ``auto_coalesce`` map the output; 0 threads leave their number to it, too."""
    s = te.create_schedule(tensors[-1].op)
    threads = int(config["threads"]) or None
    s[tensors[-1]].auto_coalesce(num_threads=threads, vector_bytes=int(config["vector_bytes"]))
    return s


def _legal(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Every configuration is legal: vectors become as narrow as the alignment wants."""
    return None


def memory_bound(
    name: str,
    dims: tuple[str, ...],
    compute: Callable[[tuple[int, ...], str], list[Any]],
    reference: Callable[..., np.ndarray],
    parallel: tuple[str, ...] | None = None,
    dtypes: tuple[str, ...] = DTYPES,
    **more: Any,
) -> Operator:
    """Make an operator that is nothing but memory traffic; by default all dims are parallel."""
    return Operator(
        name=name,
        dims=dims,
        parallel=dims if parallel is None else parallel,
        dtypes=dtypes,
        knobs=KNOBS,
        compute=compute,
        schedule=coalesced,
        check=_legal,
        reference=reference,
        **more,
    )
