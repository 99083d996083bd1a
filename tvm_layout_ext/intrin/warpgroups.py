"""The ``wgmma`` instructions that the package can use: four warps multiply 64 rows at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ScheduleError
from ..gpu.hardware import Architecture

__all__ = [
    "WarpgroupInstruction",
    "choose_warpgroup",
    "is_warpgroup",
    "warpgroup_instruction",
]

#: Rows that a warpgroup multiplies at a time (PTX ISA, "wgmma.mma_async").
ROWS = 64
#: Columns of an instruction: multiples of 8 up to 256.
COLUMNS, MOST_COLUMNS = 8, 256
#: Bytes along K of a row of an operand in shared memory, one panel of the 128-byte swizzle.
PANEL_BYTES = 128
#: Only this silicon has the instruction; its successors do not.
CAPABILITY = (9, 0)
#: By the types of operands and sums: PTX's names of both.
_TYPES = {
    ("float16", "float32"): ("f16", "f32"),
    ("bfloat16", "float32"): ("bf16", "f32"),
}


@dataclass(frozen=True)
class WarpgroupInstruction:
    """One ``wgmma`` instruction, with both operands in shared memory.

    The unit of a schedule is a tile of 64 x n sums and a panel of 128 bytes along K, which takes
    several instructions.

    Examples
    --------
    >>> one = WarpgroupInstruction("float16", "float32", 256)
    >>> one.name, one.shape
    ('wgmma.m64n256k16.f32.f16', (64, 256, 64))
    """

    operand: str
    sums: str
    n: int

    @property
    def bits(self) -> int:
        """Bits of an operand."""
        return 16

    @property
    def k(self) -> int:
        """Elements along K of one instruction: 32 bytes."""
        return 32 * 8 // self.bits

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth of the unit of a schedule."""
        return ROWS, self.n, PANEL_BYTES * 8 // self.bits

    @property
    def name(self) -> str:
        """Name by which a user asks for it."""
        operand, sums = _TYPES[self.operand, self.sums]
        return f"wgmma.m64n{self.n}k{self.k}.{sums}.{operand}"

    @property
    def ptx(self) -> str:
        """The instruction as ``T.ptx`` spells it."""
        operand, sums = _TYPES[self.operand, self.sums]
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{sums}.{operand}.{operand}"


def is_warpgroup(name: str) -> bool:
    """Whether the name of an instruction asks for ``wgmma``."""
    return name == "wgmma" or name.startswith("wgmma.")


def choose_warpgroup(
    name: str, operand: str, sums: str, columns: int, architecture: Architecture
) -> WarpgroupInstruction:
    """Find the ``wgmma`` for two types and so many columns of a tile on a GPU.

    Raises
    ------
    ScheduleError
        If there is none, or it is not the one named.
    """
    if architecture.capability != CAPABILITY or not architecture.name.endswith("a"):
        raise ScheduleError(
            f"wgmma is an instruction of sm_90a alone; {architecture.name} multiplies by mma.sync."
        )
    if (operand, sums) not in _TYPES:
        pairs = ", ".join(f"{one} into {other}" for one, other in _TYPES)
        raise ScheduleError(f"wgmma multiplies {pairs} here; the block {operand} into {sums}.")
    if not COLUMNS <= columns <= MOST_COLUMNS or columns % COLUMNS:
        raise ScheduleError(
            f"wgmma multiplies {columns} columns; multiples of {COLUMNS} up to {MOST_COLUMNS} are "
            "legal."
        )
    one = WarpgroupInstruction(operand, sums, columns)
    if name not in ("wgmma", one.name):
        raise ScheduleError(f"Instruction {name!r} is asked for; tiles and types make {one.name}.")
    return one


def warpgroup_instruction(name: str) -> WarpgroupInstruction:
    """Look up an instruction by the name that a schedule wrote down."""
    _, shape, sums, operand = name.split(".")
    columns = int(shape.partition("n")[2].partition("k")[0])
    pair = next(pair for pair, short in _TYPES.items() if short == (operand, sums))
    return WarpgroupInstruction(*pair, columns)
