"""A closed-form model of how long a candidate takes; it ranks, and is never called a time.

A block is bound by whichever of its parts takes longest: its bytes through the L2 cache, its
wavefronts through shared memory, its products through the tensor cores, its instructions through
the schedulers, or the latency of its steps along the reduction, which copies ahead (stages), loads
ahead (prefetch) and other resident blocks hide. Blocks run in waves; all of them together also
share the bandwidth of device memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ...analysis.kernel_facts import KernelFacts
from ...gpu.hardware import BANK_BYTES, MULTIPROCESSORS, SECTOR_BYTES
from ...gpu.measured import H200, GpuSpeeds
from ..space.task import Task
from .cost import CostTerms
from .features import traffic

#: Share of what is not the longest term that does not hide behind it.
EXPOSED = 0.2
#: Of what keeps the multiprocessors busy while the memory is the limit.
BEHIND_MEMORY = 0.1


def terms(kernel: KernelFacts, flops: float, blocks: int) -> CostTerms:
    """Cycles of a multiprocessor; ``flops`` are a block's that are no products."""
    shared = sum(use.total for use in kernel.uses if use.site.scope != "global")
    requests = sum(use.requests for use in kernel.uses)
    lines = sum(use.total for use in kernel.uses if use.site.scope == "global") / 4
    memory = traffic(kernel) / H200.l2
    pipe = (shared + lines) / H200.wavefronts
    tensor = kernel.half_flops / H200.tensor
    issue = flops / H200.fma + requests / 4
    # Without a second version of its tiles, a block copies and computes in turns.
    alone = memory + pipe + tensor + issue if kernel.stages == 1 else 0.0
    return CostTerms(
        memory=blocks * memory,
        pipe=blocks * pipe,
        arithmetic=blocks * tensor,
        latency=alone + chain(kernel),
        issue=blocks * issue,
        exposed=EXPOSED,
    )


def chain(kernel: KernelFacts, gpu: GpuSpeeds = H200) -> float:
    """Cycles of a block that is alone: what each step waits for, one after the other."""
    steps = kernel.steps
    inner = kernel.inner_steps
    load = gpu.shared_latency * (0.3 if kernel.is_prefetched else 1.0)
    per_warp = kernel.half_flops / max(kernel.warps * steps, 1)
    # A scheduler issues the products of a quarter of the warps.
    issue = per_warp * max(1, kernel.warps / 4) / (gpu.tensor / 4) if per_warp else 0.0
    compute = inner * load + (gpu.product_latency + issue if per_warp else 0.0)
    barriers = gpu.barrier if kernel.shared_bytes and kernel.warps > 1 else 0.0
    if kernel.stages > 1:
        waiting = gpu.memory_latency / (kernel.stages - 1)
        step = max(waiting, compute + barriers)
    else:
        step = gpu.memory_latency + compute + 2 * barriers
    return gpu.memory_latency + steps * step


def latency(task: Task, kernels: Sequence[KernelFacts]) -> float:
    """Modelled seconds of a candidate's kernels on an H200; infinite if there are none."""
    if not kernels:
        return float("inf")
    # What tensor cores do not multiply is shared by the kernels that have none.
    products = sum(kernel.product_flops * kernel.grid for kernel in kernels)
    total = max(0, task.operator.flops(task.shape) - products)
    plain = [not kernel.product_flops for kernel in kernels]
    busy = sum(
        _seconds(kernel, task, total / sum(plain) if own else 0.0)
        for kernel, own in zip(kernels, plain, strict=True)
    )
    memory = least_seconds(task)
    memory *= max(_stretch(kernel, task) for kernel in kernels)
    return max(memory, busy) + BEHIND_MEMORY * min(memory, busy)


def least_seconds(task: Task) -> float:
    """What the bytes of a task take an H200 at the rate of its best copies."""
    return task.operator.traffic(task.shape, task.dtype) / H200.memory


def _stretch(kernel: KernelFacts, task: Task) -> float:
    """How much longer the memory takes than for whole lines in a steady stream."""
    waves = kernel.grid / (MULTIPROCESSORS * kernel.blocks_per_sm(task.architecture))
    sectors = traffic(kernel) / SECTOR_BYTES
    torn = H200.torn * kernel.torn / sectors if sectors else 0.0
    return (1 + torn) * (1 + H200.tail / max(1.0, waves * kernel.steps))


def _seconds(kernel: KernelFacts, task: Task, flops: float) -> float:
    """Seconds of a kernel: full waves, the last one, and the launch."""
    resident = kernel.blocks_per_sm(task.architecture)
    each = flops / max(kernel.grid, 1)
    full, rest = divmod(kernel.grid, MULTIPROCESSORS * resident)
    cycles = full * terms(kernel, each, resident).cycles
    if rest:
        cycles += terms(kernel, each, ceil(rest / MULTIPROCESSORS)).cycles
    # Spilled registers of a block go to the L2 cache and come back in each step.
    spilled = kernel.spilled(task.architecture) * BANK_BYTES * kernel.threads
    cycles += kernel.grid / MULTIPROCESSORS * 2 * spilled * kernel.steps / H200.l2
    return max(cycles / H200.clock, kernel.grid * H200.block) + H200.launch
