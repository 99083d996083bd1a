"""What the memory-bound schedules share: all of them leave the mapping to ``auto_coalesce``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

__all__ = ["DTYPES", "KNOBS", "coalesced", "draw", "memory_bound"]

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


def draw(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Random bits, so that a lost or doubled element shows; floats stay finite."""
    # NumPy takes bfloat16 for neither floats nor integers.
    if np.dtype(dtype).kind in "fV":
        return rng.standard_normal(shape, np.float32).astype(dtype)
    return rng.integers(-128, 128, shape, dtype)


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
    *,
    inputs: Callable[[tuple[int, ...], str, np.random.Generator], list[np.ndarray]] | None = None,
    parallel: tuple[str, ...] | None = None,
    dtypes: tuple[str, ...] = DTYPES,
    flops: Callable[[tuple[int, ...]], int] = lambda shape: 0,
    tolerance: Tolerance | None = None,
) -> Operator:
    """Make an operator that is nothing but memory traffic, each array moved once.

    Parameters
    ----------
    name, dims, compute, reference, inputs, parallel, dtypes, flops : see Operator
        By default there is one input of shape ``dims``, and all dims are parallel.
    tolerance : Tolerance, optional
        By default the result must be exact.
    """

    def traffic(shape: tuple[int, ...], dtype: str) -> int:
        tensors = compute(shape, dtype)
        sizes = (prod(map(int, t.shape)) * np.dtype(str(t.dtype)).itemsize for t in tensors)
        return sum(sizes)

    return Operator(
        name=name,
        dims=dims,
        parallel=dims if parallel is None else parallel,
        dtypes=dtypes,
        knobs=KNOBS,
        compute=compute,
        schedule=coalesced,
        check=_legal,
        inputs=inputs or (lambda shape, dtype, rng: [draw(shape, dtype, rng)]),
        reference=reference,
        flops=flops,
        traffic=traffic,
        tolerance=lambda shape, dtype: tolerance or Tolerance(),
    )
