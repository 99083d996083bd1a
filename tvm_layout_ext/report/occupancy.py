"""How many warps of a record's kernel a multiprocessor holds, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..analysis.device_limits import launch_extents
from ..build import device_program
from ..calls import disk
from ..gpu.hardware import WARP_SIZE, architecture, resident_limits
from ..target import cuda_target
from ..tune.records.log import Record
from ..tune.space.operator import Operator
from .winner import task_of


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps that a multiprocessor holds at a time, of how many warps, and why no more.

    Registers are those that ptxas told of the compiled kernel; where it was not compiled there
    ``registers`` is None, and they may allow fewer blocks.
    """

    blocks: int
    warps: int
    most: int
    limited_by: tuple[str, ...]
    registers: int | None

    def __str__(self) -> str:
        most = "" if self.registers else "at most "
        unknown = "" if self.registers else "; registers are unknown, as it was not compiled"
        noun = "block" if self.blocks == 1 else "blocks"
        return (
            f"A multiprocessor holds {most}{self.blocks} {noun}, {self.warps} of {self.most} "
            f"warps, by {' and '.join(self.limited_by)}{unknown}."
        )


def occupancy(arch: str, threads: int, registers: int | None, shared_bytes: int) -> Occupancy:
    """Hold a block's needs against an architecture."""
    facts = architecture(arch)
    limits = resident_limits(facts, threads, registers or 1, shared_bytes)
    blocks = min(limits.values())
    by = tuple(name for name, most in limits.items() if most == blocks)
    warps = -(-threads // WARP_SIZE)
    return Occupancy(blocks, blocks * warps, facts.threads_per_sm // WARP_SIZE, by, registers)


def occupancy_of(record: Record, operator: Operator | None = None) -> Occupancy | None:
    """Of a record's kernel; None where it is not known.

    Of a program of several kernels nobody wrote down what each needs; others may not build today.
    """
    work = record.workload
    key = disk.key_of("threads", str(work), work.hash, record.config, record.arch, record.program)
    try:
        threads = int(disk.remembered(key, lambda: str(_threads(record, operator)).encode()))
    except Exception:
        return None  # As in page/kernel.py: a record of another version may meet anything in TVM.
    if not threads or record.smem_bytes is None:
        return None
    return occupancy(record.arch, threads, record.registers, record.smem_bytes)


def _threads(record: Record, operator: Operator | None) -> int:
    """Threads of a block of the only kernel, or 0."""
    task = task_of(record, operator)
    program = device_program(task.module(record.config), target=cuda_target(record.arch))
    if len(program.kernels) != 1:
        return 0
    (kernel,) = program.kernels.values()
    extents = launch_extents(kernel)
    return prod(n for tag, n in extents.items() if tag.startswith("threadIdx"))
