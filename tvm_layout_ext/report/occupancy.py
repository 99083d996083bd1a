"""How many warps of a kernel a multiprocessor holds, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass

from ..gpu.hardware import WARP_SIZE, architecture, resident_limits


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
