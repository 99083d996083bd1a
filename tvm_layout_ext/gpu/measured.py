"""What was measured of GPUs: one table for each, which the tuner's models read.

:mod:`.hardware` has what vendors document. Measurements lie in ``benchmarks/results``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .hardware import MULTIPROCESSORS, SECTOR_BYTES


@dataclass(frozen=True)
class GpuSpeeds:
    """Speeds of a GPU, each a multiprocessor and clock cycle unless said otherwise.

    The defaults are those of an H200. Latencies are from Luo et al., "Benchmarking and Dissecting
    the Nvidia Hopper GPU Architecture via Microbenchmarking" (2024).
    """

    clock: float = 1.7e9  #: Hz under load
    memory: float = (
        4.2e12  #: Bytes a second of device memory, all together, as the best copies reach
    )
    memory_sectors: float = (
        82  #: Sectors a cycle of device memory, all together: 4.8 TB/s at 1.83 GHz
    )
    l2: float = 40.0  #: Bytes from the L2 cache where all multiprocessors load
    own: float = 64.0  #: Where one does alone
    wavefronts: float = 1.0  #: Of shared memory, 128 bytes each
    #: Arithmetic operations of tensor cores by ``mma.sync`` in half precision; other types are by
    #: :func:`.hardware.mma_sync_rate` faster or slower. ``h200_gemm.json`` has 630 TFLOPS on
    #: registers alone.
    tensor: float = 2800.0
    fma: float = 256.0  #: Arithmetic operations of float32
    memory_latency: float = 900.0  #: Cycles until a load from device memory is done
    shared_latency: float = 33.0
    product_latency: float = 33.0  #: Of a tensor-core product
    barrier: float = 30.0  #: Of ``__syncthreads``
    launch: float = 2e-6  #: Seconds to launch a kernel
    #: The same behind one of the same function, before whose end it starts (from ``sm_90`` on).
    #: Sums of groups of channels by two kernels take 0.6 to 0.9 us longer than their parts
    #: (``h200_thread_maps_groups.json``).
    next_launch: float = 0.6e-6
    #: Seconds, and cycles, to hand out a block: 262,144 blocks of 16 x 16 elements take 162 us,
    #: whatever their threads do.
    block: float = 0.62e-9
    block_cycles: float = 1.13
    #: What a loaded sector costs more in a line of which a request takes only a part.
    #: ``h200_sweep_transpose_8192.jsonl`` has 1.15 times the time where rows of a tile are half a
    #: line, that is 1.3 times for the loads; a quarter of a line costs no more.
    torn: float = 0.3
    #: Sectors that one costs more which two blocks store a part of: 1.5 to 5 in the permutations of
    #: ``h100_turned_units.json``, whose rows are cut at sectors, at vectors, and anywhere.
    partial: float = 3.0
    #: Of a wave of blocks, the part in which they all load or all store, and the memory idles in
    #: one direction.
    tail: float = 0.5
    store_cost: float = 1.64  #: Sectors of loads that one of a store costs the L2 cache
    line_cycles: float = 0.81  #: Of the load-store unit for each line of a request
    #: Operations of warps, as they are written, that a multiprocessor does in a cycle: it starts 4
    #: instructions, and nvcc makes one of two operations.
    issue: float = 8.0
    combine_cycles: float = 0.5  #: Instructions that a shuffle of a warp counts as
    #: Cycles that a block's loads add to its time where others run beside it, less than the latency
    #: of one alone.
    load_latency: float = 580.0
    block_latency: float = 960.0  #: Cycles of a block beside its loads: it starts, stores and ends
    #: Exponent of the norm that joins the parts of a kernel; the larger, the better they overlap.
    overlap: float = 3.9

    @property
    def l2_sectors(self) -> float:
        """Sectors a cycle that the L2 cache gives to all multiprocessors together."""
        return self.l2 * MULTIPROCESSORS / SECTOR_BYTES


H200 = GpuSpeeds()
