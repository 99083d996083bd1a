"""Run products on a GPU: check against float64, and time in turns with cuBLAS."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cubin import Cubin, compiled
from benchmarks.gemm_kernels import ARCH, Case

__all__ = ["Product", "medians", "operands", "peak", "torch_product"]

#: Milliseconds of one measurement; shorter calls are repeated in a CUDA graph.
GRAPH_MS = 1.0
_MAX_DYNAMIC_SHARED = 8
#: What ``mma_peak.cu`` does: threads of a block, and products of a warp in an iteration.
_PEAK_THREADS, _PEAK_PRODUCTS = 256, 8


class Product(Cubin):
    """Machine code of a case, ready to run.

    Parameters
    ----------
    case : Case
    image : bytes
        Its machine code.
    facts : mapping
        What :func:`benchmarks.gemm_kernels.compile_one` found.
    """

    def __init__(self, case: Case, image: bytes, facts: Mapping[str, Any]) -> None:
        import torch

        torch.zeros(1, device="cuda")  # the driver loads into the context that torch makes
        super().__init__(image)
        self.case, self.facts = case, facts
        self.kernel = self.function("main_kernel")
        self._call("cuFuncSetAttribute", self.kernel, _MAX_DYNAMIC_SHARED, facts["shared_bytes"])

    def blocks_per_sm(self) -> int:
        """Blocks that a multiprocessor holds at a time."""
        found = ctypes.c_int()
        x, y, z = self.facts["block"]
        self._call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(found), self.kernel,
            x * y * z, ctypes.c_size_t(self.facts["shared_bytes"]),
        )  # fmt: skip
        return found.value

    def run(self, a: Any, b: Any, c: Any) -> None:
        """Launch on torch's current stream."""
        import torch

        given = {"A": a, "B": b, "C": c}
        values = [ctypes.c_uint64(given[name].data_ptr()) for name in self.facts["arguments"]]
        pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._call(
            "cuLaunchKernel", self.kernel, *self.facts["grid"], *self.facts["block"],
            self.facts["shared_bytes"], stream, pointers, None,
        )  # fmt: skip

    def error(self) -> str:
        """Say how the result differs from float64 on inputs drawn now, or nothing."""
        import torch

        a, b = operands(self.case)
        m, n, k = self.case.shape
        kind = getattr(torch, self.case.result)
        poison = 77 if self.case.result == "int32" else float("nan")
        c = torch.full((m, n), poison, dtype=kind, device="cuda")
        self.run(a, b, c)
        torch.cuda.synchronize()
        a, b = a.float().double(), b.float().double()
        want = a @ (b.t() if self.case.layout == "nt" else b)
        # Sums in float32, which tensor cores cut off and do not round, then one rounding.
        relative = 0.0 if self.case.result == "int32" else 2 * torch.finfo(kind).eps
        # Tensor cores add products of fp8 with 13 bits after the point of the largest; those of
        # tf32 they add up 8 at a time, so that sums are cut off twice as often as those of f16.
        steps = {"float8_e4m3fn": 2.0**-12, "int8": 0.0, "float32": 2.0**-19}
        step = steps.get(self.case.operand, 2.0**-20)
        bound = relative * want.abs() + step * k
        off = (c.double() - want).abs()
        bad = ~(off <= bound)
        if not bool(bad.any()):
            return ""
        worst = float(off.nan_to_num(float("inf")).max())
        return f"{int(bad.sum())} of {m * n} elements differ, by up to {worst:.4g}"


def peak(iterations: int = 4096) -> float:
    """TFLOPS of ``mma.sync`` of f16 on registers alone."""
    import torch

    torch.zeros(1, device="cuda")
    code = Cubin(compiled(Path(__file__).with_name("mma_peak.cu"), ARCH))
    kernel = code.function("mma_peak")
    out = torch.zeros(1, device="cuda")
    blocks = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    flops = blocks * _PEAK_THREADS // 32 * iterations * _PEAK_PRODUCTS * 16 * 8 * 16 * 2

    def call() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        code.launch(kernel, blocks, _PEAK_THREADS, out.data_ptr(), iterations, stream=stream)

    seconds, _ = medians({"peak": call}, 10)["peak"]
    return flops / seconds / 1e12


def operands(case: Case) -> tuple[Any, Any]:
    """Draw A and B as they are stored; values that the type and tf32 hold exactly."""
    import torch

    m, n, k = case.shape
    sizes = ((m, k), (n, k) if case.layout == "nt" else (k, n))
    kind = getattr(torch, case.operand)
    if case.operand == "int8":
        first, second = (torch.randint(-128, 128, s, dtype=kind, device="cuda") for s in sizes)
    else:
        first, second = (torch.randn(s, device="cuda").half().to(kind) for s in sizes)
    return first, second


def torch_product(case: Case, a: Any, b: Any) -> Callable[[], Any] | None:
    """The same product by cuBLAS, into memory of its own; None where torch has none."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    right = b.t() if case.layout == "nt" else b
    if case.operand == "float8_e4m3fn":
        if case.layout != "nt":
            return None
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, right, one, one, out_dtype=torch.float16)
    if case.operand == "int8":
        return lambda: torch._int_mm(a, right)
    m, n, _ = case.shape
    out = torch.empty((m, n), dtype=a.dtype, device="cuda")
    return lambda: torch.matmul(a, right, out=out)


def _graph(call: Callable[[], Any]) -> tuple[Any, int]:
    """Capture a call as often as fills the time of a measurement."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    begin.record()
    call()
    end.record()
    end.synchronize()
    number = max(1, min(50, round(GRAPH_MS / begin.elapsed_time(end))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(number):
            call()
    return graph, number


def medians(
    calls: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, tuple[float, Sequence[float]]]:
    """Seconds of each call, median and all rounds; the calls take turns."""
    import torch

    graphs = {name: _graph(call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        for name, (graph, number) in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn >= 2:
                seconds[name].append(begin.elapsed_time(end) / 1e3 / number)
    return {name: (statistics.median(all_), all_) for name, all_ in seconds.items()}
