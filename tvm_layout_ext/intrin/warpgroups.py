"""The ``wgmma`` instructions that the package can use: four warps multiply 64 rows at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ScheduleError
from ..gpu.hardware import Architecture

__all__ = [
    "WarpgroupInstruction",
    "choose_warpgroup",
    "has_columns",
    "is_warpgroup",
    "warpgroup_instruction",
    "widened",
]

#: Rows that a warpgroup multiplies at a time (PTX ISA, "wgmma.mma_async").
ROWS = 64
#: Columns of an instruction: multiples of 8 up to 256.
COLUMNS, MOST_COLUMNS = 8, 256
#: Bytes along K of a row of an operand in shared memory, one panel of the 128-byte swizzle.
PANEL_BYTES = 128
#: Only this silicon has the instruction; its successors do not.
CAPABILITY = (9, 0)
#: Integers are multiplied by these columns up to 32, and by multiples of 16 up to 224 ("wgmma
#: .mma_async", syntax of integer types; its table of shapes goes to 256).
_FEW_COLUMNS, _MOST_OF_INTEGERS = (8, 24), 224
#: By the types of operands and sums: PTX's names of both, and bits of an operand.
_TYPES = {
    ("float16", "float32"): ("f16", "f32", 16),
    ("bfloat16", "float32"): ("bf16", "f32", 16),
    ("float16", "float16"): ("f16", "f16", 16),
    ("float32", "float32"): ("tf32", "f32", 32),
    ("float8_e4m3fn", "float32"): ("e4m3", "f32", 8),
    ("float8_e5m2", "float32"): ("e5m2", "f32", 8),
    ("int8", "int32"): ("s8", "s32", 8),
    ("uint8", "int32"): ("u8", "s32", 8),
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
        return _TYPES[self.operand, self.sums][2]

    @property
    def register(self) -> str:
        """Type of the registers of sums: one each, or two halves in one."""
        return "float32" if self.sums == "float32" else "uint32"

    @property
    def registers(self) -> int:
        """Registers of sums that a thread has."""
        return self.n // (4 if self.sums == "float16" else 2)

    @property
    def takes_any_major(self) -> bool:
        """Whether neighbours in memory may lie along M or N; others must lie along K."""
        return self.bits == 16

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
        operand, sums, _ = _TYPES[self.operand, self.sums]
        return f"wgmma.m64n{self.n}k{self.k}.{sums}.{operand}"

    @property
    def ptx(self) -> str:
        """The instruction as ``T.ptx`` spells it."""
        operand, sums, _ = _TYPES[self.operand, self.sums]
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{sums}.{operand}.{operand}"


def is_warpgroup(name: str) -> bool:
    """Whether the name of an instruction asks for ``wgmma``; ScheduleError if it is no name."""
    if not isinstance(name, str):
        raise ScheduleError(f"An instruction is named by a str, not {name!r}.")
    return name == "wgmma" or name.startswith("wgmma.")


def choose_warpgroup(
    name: str,
    operand: str,
    sums: str,
    columns: int,
    architecture: Architecture,
    *,
    tf32: bool = False,
) -> WarpgroupInstruction:
    """Find the ``wgmma`` for two types and so many columns of a tile on a GPU.

    That of float32 rounds to tf32, for which the name asks, or ``tf32``.

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
    if not has_columns(operand, columns):
        of = (
            "8, 24 and multiples of 16 up to 224"
            if "int" in operand
            else "multiples of 8 up to 256"
        )
        raise ScheduleError(f"wgmma multiplies {columns} columns of {operand}; {of} are legal.")
    one = WarpgroupInstruction(operand, sums, columns)
    if name == "wgmma" and operand == "float32" and not tf32:
        raise ScheduleError(
            "wgmma multiplies float32 only as tf32, which drops low bits of the mantissa; ask for "
            f"it with instruction={one.name!r}."
        )
    if name not in ("wgmma", one.name):
        raise ScheduleError(f"Instruction {name!r} is asked for; tiles and types make {one.name}.")
    return one


def has_columns(operand: str, columns: int) -> bool:
    """Whether there is a ``wgmma`` of so many columns for a type of operands."""
    if "int" in operand:
        return columns in _FEW_COLUMNS or (columns % 16 == 0 and 16 <= columns <= _MOST_OF_INTEGERS)
    return columns % COLUMNS == 0 and COLUMNS <= columns <= MOST_COLUMNS


def warpgroup_instruction(name: str) -> WarpgroupInstruction:
    """Look up an instruction by the name that a schedule wrote down."""
    _, shape, sums, operand = name.split(".")
    columns = int(shape.partition("n")[2].partition("k")[0])
    pair = next(pair for pair, short in _TYPES.items() if short[:2] == (operand, sums))
    return WarpgroupInstruction(*pair, columns)


def widened(one: WarpgroupInstruction, times: int) -> WarpgroupInstruction:
    """The instruction of so many times the columns; ScheduleError if there is none."""
    columns = one.n * times
    if not has_columns(one.operand, columns):
        raise ScheduleError(
            f"Tiles of {one.n} columns of {times} products take wgmma of {columns} columns of "
            f"{one.operand}, which does not exist; {MOST_COLUMNS // times} columns of each at most "
            "are legal."
        )
    return WarpgroupInstruction(one.operand, one.sums, columns)
