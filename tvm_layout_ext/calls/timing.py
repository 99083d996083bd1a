"""How long a kernel takes on the GPU of this machine, with nothing in its caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import s_tir

from .. import te
from .._compat import has_gpu
from ..build import build
from ..errors import ScheduleError, TargetError
from ..tune.measure.backend import quartile_distance
from ..tune.measure.environment import cuda_device
from ..tune.search.tune import Result
from .arrays import on_gpu, read
from .fixed import FixedKernel

#: Twice the largest L2 cache of a GPU.
_FLUSHED = 256 << 20
_REPEATS = 50


@dataclass(frozen=True)
class Benchmark:
    """Times of a kernel in seconds, each from memory alone, on ``device``.

    ``bytes`` are those of its arguments, ``copy`` is the median time of a copy of as many, and
    ``flops`` are its arithmetic operations, 0 if unknown.
    """

    device: str
    times: tuple[float, ...]
    bytes: int
    copy: float
    flops: int = 0

    @property
    def median(self) -> float:
        """Median of the times."""
        return median(self.times)

    @property
    def spread(self) -> float:
        """Distance between the quartiles."""
        return quartile_distance(self.times) or 0.0

    @property
    def share(self) -> float:
        """Of the limit that memory sets, 1 at it: a copy's time over the kernel's."""
        return self.copy / self.median

    def __str__(self) -> str:
        rate = f"{self.flops / self.median / 1e12:.1f} TFLOPS, " if self.flops else ""
        return (
            f"{self.median * 1e6:.1f} us (quartiles {self.spread * 1e6:.1f} us apart, "
            f"{len(self.times)} runs, L2 cache flushed) on {self.device}; {rate}"
            f"{self.bytes / self.median / 1e12:.2f} TB/s; a copy of its {self.bytes:,} bytes takes "
            f"{self.share:.2f} of that time."
        )


def benchmark(kernel: Any, *tensors: Any) -> Benchmark:
    """Time a kernel on the GPU of this machine; the L2 cache is flushed before each run.

    Parameters
    ----------
    kernel : Executable, Operation or FixedKernel
        What :func:`tvm_layout_ext.build`, :func:`op` or ``@kernel`` gave.
    *tensors
        Arrays of any library: all arguments of an Executable; the inputs of the others.

    Raises
    ------
    TargetError
        If there is no GPU.
    ScheduleError
        If ``kernel`` is nothing that can be timed.

    Examples
    --------
    >>> print(benchmark(op("transpose"), a))                     # doctest: +SKIP
    """
    if not has_gpu():
        raise TargetError(
            "There is no CUDA GPU here to time a kernel on; tlx.simulate counts what it does."
        )
    device = tvm.cuda(0)
    arguments = [read(f"Argument {at}", one) for at, one in enumerate(tensors)]
    given = [on_gpu(one, device) for one in arguments]
    if hasattr(kernel, "kernel"):
        kernel = kernel.kernel(*tensors)
    flops = getattr(kernel, "flops", 0)
    if isinstance(kernel, FixedKernel):
        given += [tvm.runtime.empty(p.shape, p.dtype, device) for p in kernel.results]
        kernel = kernel.executable
    if not isinstance(kernel, tvm.runtime.Executable):
        raise ScheduleError(
            f"Cannot time a {type(kernel).__name__}; give what tlx.build or tlx.op made."
        )
    size = sum(int(np.prod(one.shape)) * np.dtype(str(one.dtype)).itemsize for one in given)
    copied = [tvm.runtime.empty((max(8, size // 8),), "float32", device) for _ in range(2)]
    copy = median(_times(_copy(copied[0].shape[0]), copied, device))
    return Benchmark(cuda_device(), tuple(_times(kernel, given, device)), size, copy, flops)


def bench(result: Result) -> Benchmark:
    """Time a tuner's winner here, on random inputs: :func:`benchmark`."""
    task = result.task
    output = task.operator.compute(task.shape, task.dtype)[-1]
    room = np.zeros([int(n) for n in output.shape], str(output.dtype))
    return benchmark(result.build(), *task.draw(0), room)


def _times(executable: Any, given: Sequence[Any], device: Any) -> list[float]:
    timer = executable.jit().time_evaluator(
        "main", device, number=1, repeat=_REPEATS, cache_flush_bytes=_FLUSHED
    )
    return [float(seconds) for seconds in timer(*given).results]


@lru_cache(maxsize=16)
def _copy(count: int) -> Any:
    """A kernel that copies so many numbers of 4 bytes."""
    source = te.placeholder((count,), "float32", name="A")
    target = te.compute((count,), lambda i: source[i], name="B")
    sch = s_tir.Schedule(te.create_prim_func([source, target]))
    sch.auto_coalesce("B")
    return build(sch)
