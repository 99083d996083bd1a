"""Pure facts about NVIDIA GPUs that the rest of the package computes with; imports nothing of TVM.

Sources: CUDA C++ Programming Guide, tables "Technical Specifications per Compute Capability" and
"Shared Memory" of the compute-capability sections; PTX ISA, section "State Spaces".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import TargetError

__all__ = [
    "BANK_BYTES",
    "CLUSTERS_SINCE",
    "CLUSTER_BLOCKS",
    "CP_ASYNC_SINCE",
    "DEFAULT_ARCH",
    "LAUNCH_LIMITS",
    "LINE_BYTES",
    "MATRIX_ROW_BYTES",
    "MAX_ACCESS_BYTES",
    "MULTIPROCESSORS",
    "NUM_BANKS",
    "SECTOR_BYTES",
    "STATIC_SHARED_BYTES",
    "TENSOR_TFLOPS",
    "WARP_SIZE",
    "Architecture",
    "architecture",
    "blocks_per_sm",
    "launch_problem",
    "mma_sync_rate",
    "resident_limits",
]

WARP_SIZE = 32
#: Shared memory has 32 banks, each 4 bytes wide; word w lives in bank w % 32.
NUM_BANKS = 32
BANK_BYTES = 4
#: Global memory moves in 32-byte sectors, four to a 128-byte cache line.
SECTOR_BYTES = 32
#: A line of the L1 cache, and a row of all banks of shared memory.
LINE_BYTES = NUM_BANKS * BANK_BYTES
#: ldmatrix and stmatrix move rows of this many bytes; each lane gives the address of one (PTX ISA,
#: "ldmatrix").
MATRIX_ROW_BYTES = 16
#: The widest access of one thread in one instruction (LDG.128, LDS.128).
MAX_ACCESS_BYTES = 16
#: Statically sized shared memory ends here on every architecture; only the dynamic kind may opt in
#: to more (CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x and later).
STATIC_SHARED_BYTES = 48 * 1024
#: Multiprocessors of an H200 and of an H100 SXM (NVIDIA, "H100 Tensor Core GPU Architecture"). A
#: target does not say how many there are, and GPUs of one compute capability differ.
MULTIPROCESSORS = 132
#: Most threads of a block, and blocks of a grid, in each dimension; the same for all architectures
#: in the table (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
LAUNCH_LIMITS = {
    "threadIdx.x": 1024,
    "threadIdx.y": 1024,
    "threadIdx.z": 64,
    "blockIdx.x": 2**31 - 1,
    "blockIdx.y": 65535,
    "blockIdx.z": 65535,
}
#: Most blocks of a cluster that every GPU with clusters launches, and the first compute capability
#: that has them (CUDA C++ Programming Guide, "Thread Block Clusters").
CLUSTER_BLOCKS = 8
CLUSTERS_SINCE = (9, 0)
#: First compute capability with asynchronous copies to shared memory, ``cp.async``.
CP_ASYNC_SINCE = (8, 0)
#: Dense peaks of an H200's tensor cores by the operands' type, in TFLOPS, of integers in TOPS
#: (NVIDIA H200 data sheet); float32 as tf32.
TENSOR_TFLOPS = {
    "float16": 989,
    "bfloat16": 989,
    "float32": 494,
    "int8": 1979,
    "uint8": 1979,
    "float8_e4m3fn": 1979,
    "float8_e5m2": 1979,
}
#: What ``target="cuda"`` means on a machine without a GPU.
DEFAULT_ARCH = "sm_90a"


@dataclass(frozen=True)
class Architecture:
    """The limits of one compute capability."""

    name: str  #: As ptxas spells it, e.g. ``sm_90a``
    shared_per_block: int  #: Bytes that one block may have after opting in (static limit: 49,152)
    shared_per_sm: int  #: Bytes of shared memory of one multiprocessor
    threads_per_sm: int  #: Resident ones
    threads_per_block: int = 1024  #: Over all dims
    registers_per_sm: int = 65536  #: Of 32 bits
    registers_per_thread: int = 255  #: At most

    @property
    def capability(self) -> tuple[int, int]:
        """Major and minor compute capability."""
        digits = "".join(c for c in self.name[3:] if c.isdigit())
        return int(digits[:-1]), int(digits[-1])

    def runs_on(self, capability: Sequence[int]) -> bool:
        """Whether its machine code runs on a GPU: of its major and at least its minor capability.

        That of ``sm_90a`` runs on 9.0 alone (PTX ISA, "Release Notes"; nvcc, "GPU Feature List").
        """
        (major, minor), (its, also) = self.capability, capability
        return its == major and (also == minor or (also > minor and not self._is_special))

    @property
    def runs_on_text(self) -> str:
        """The compute capabilities of GPUs that its machine code runs on."""
        major, minor = self.capability
        return f"{major}.{minor}" if self._is_special else f"{major}.{minor} to {major}.x"

    @property
    def _is_special(self) -> bool:
        return self.name.endswith("a")  # What ends in f runs on the family, as a major's.


_KIB = 1024
# capability -> (shared a block with opt-in, shared an SM, threads an SM)
_LIMITS: dict[str, tuple[int, int, int]] = {
    "70": (96 * _KIB, 96 * _KIB, 2048),
    "75": (64 * _KIB, 64 * _KIB, 1024),
    "80": (163 * _KIB, 164 * _KIB, 2048),
    "86": (99 * _KIB, 100 * _KIB, 1536),
    "87": (163 * _KIB, 164 * _KIB, 1536),
    "89": (99 * _KIB, 100 * _KIB, 1536),
    "90": (227 * _KIB, 228 * _KIB, 2048),
    "100": (227 * _KIB, 228 * _KIB, 2048),
    "103": (227 * _KIB, 228 * _KIB, 2048),
    "120": (99 * _KIB, 100 * _KIB, 1536),
    "121": (99 * _KIB, 100 * _KIB, 1536),
}


def architecture(name: str) -> Architecture:
    """Look up an architecture by ptxas's name, or raise a TargetError.

    A trailing ``a`` or ``f`` of ``sm_90a`` names the same silicon.
    """
    digits = str(name).removeprefix("sm_").rstrip("af")
    if not str(name).startswith("sm_") or digits not in _LIMITS:
        known = ", ".join(f"sm_{d}" for d in _LIMITS)
        raise TargetError(f"Unknown CUDA architecture {name!r}; known are {known}.")
    block, multiprocessor, threads = _LIMITS[digits]
    return Architecture(name, block, multiprocessor, threads)


def mma_sync_rate(operand: str) -> float:
    """Rate of ``mma.sync`` on an H200, as a multiple of that of half precision.

    It is that of the peaks, :data:`TENSOR_TFLOPS`: the best GEMMs of 16-bit types, int8 and tf32 in
    ``benchmarks/results/h200_gemm.json`` (469, 923 and 237) do 0.74, 0.73 and 0.75 of 630 TFLOPS by
    it. ``sm_90`` has no ``mma.sync`` of 8-bit floats; ptxas widens them to half precision. A type
    that tensor cores do not multiply counts as half precision.

    Examples
    --------
    >>> [round(mma_sync_rate(t), 2) for t in ("bfloat16", "float32", "int8", "float8_e5m2")]
    [1.0, 0.5, 2.0, 1.0]
    """
    half = TENSOR_TFLOPS["float16"]
    return 1.0 if operand.startswith("float8") else TENSOR_TFLOPS.get(operand, half) / half


#: Blocks that a multiprocessor holds at most; registers that a warp's threads are given at a time;
#: and bytes of each block's shared memory that are the system's.
_MOST_BLOCKS, _REGISTER_STEP, _SYSTEM_SHARED = 32, 8, 1024


def blocks_per_sm(facts: Architecture, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that a multiprocessor holds at a time, by a block's threads, registers and memory."""
    return min(resident_limits(facts, threads, registers, shared_bytes).values())


def resident_limits(
    facts: Architecture, threads: int, registers: int, shared_bytes: int
) -> dict[str, int]:
    """Blocks that each resource of a multiprocessor suffices for.

    Source: CUDA C++ Programming Guide, "Multiprocessor Level" and "Technical Specifications per
    Compute Capability". The driver says the same of all kernels in
    ``benchmarks/results/h200_gemm.json``.
    """
    each = -(-max(registers, 1) // _REGISTER_STEP) * _REGISTER_STEP * -(-threads // WARP_SIZE)
    limits = {
        "threads": facts.threads_per_sm // max(threads, 1),
        "registers": facts.registers_per_sm // max(each * WARP_SIZE, 1),
        "slots of blocks": _MOST_BLOCKS,
    }
    if shared_bytes:
        limits["shared memory"] = facts.shared_per_sm // (shared_bytes + _SYSTEM_SHARED)
    return limits


def launch_problem(extents: Mapping[str, int], threads_per_block: int = 1024) -> str | None:
    """Say why a launch of these extents, by thread tag, is not legal, or None if it is."""
    for tag, extent in extents.items():
        if not isinstance(tag, str) or not isinstance(extent, int):
            raise TargetError(
                f"A launch has whole numbers by thread tag, not {extent!r} by {tag!r}."
            )
        if extent > LAUNCH_LIMITS.get(tag, extent):
            return f"binds {extent:,} iterations to {tag}, which has at most {LAUNCH_LIMITS[tag]:,}"
    threads = math.prod(e for tag, e in extents.items() if tag.startswith("threadIdx."))
    if threads > threads_per_block:
        shape = " x ".join(f"{e:,}" for t, e in sorted(extents.items()) if t[0] == "t" and e > 1)
        return (
            f"has {threads:,} threads a block ({shape}), and a block may have {threads_per_block:,}"
        )
    return None
