"""The ``mma.sync`` instructions that the package can use, by the types that they multiply."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import is_one_of
from ..errors import ScheduleError
from ..gpu.hardware import Architecture

#: Rows of A and columns of B of a tile; two instructions side by side, which have 8 columns each.
TILE = 16
#: Bytes along K of a tile, for every type: one ``ldmatrix.x4`` fetches 16 rows of them.
K_BYTES = 32


@dataclass(frozen=True)
class Instruction:
    """One ``mma.sync`` instruction.

    The unit of a schedule is a tile of 16 x 16 sums: ``mma.m16n8k*`` on its left and on its right
    half.

    Examples
    --------
    >>> one = instruction("mma.m16n8k16.f32.f16")
    >>> one.operand, one.k
    ('float16', 16)
    """

    #: TVM's names of the types of A and B, and of the sums.
    operand: str
    sums: str
    #: PTX's names of the same types.
    ptx_operand: str
    ptx_sums: str
    #: Name of the operand's type in ``T.ptx_legacy.mma``.
    legacy: str
    #: Bits of an operand.
    bits: int
    #: Lowest compute capability that has it (PTX ISA, "mma", target notes).
    capability: tuple[int, int]

    @property
    def k(self) -> int:
        """Elements along K that it multiplies."""
        return K_BYTES * 8 // self.bits

    def has_ldmatrix(self, k_major: bool) -> bool:
        """Whether ``ldmatrix`` loads operands whose rows lie along K, or along the other dim."""
        return k_major or self.bits == 16

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth of the unit of a schedule."""
        return TILE, TILE, self.k

    @property
    def ptx_shape(self) -> str:
        """Shape as PTX spells it."""
        return f"m16n8k{self.k}"

    @property
    def name(self) -> str:
        """Name by which a user asks for it."""
        return f"mma.{self.ptx_shape}.{self.ptx_sums}.{self.ptx_operand}"


_AMPERE, _ADA = (8, 0), (8, 9)
_ALL = (
    Instruction("float16", "float32", "f16", "f32", "fp16", 16, _AMPERE),
    Instruction("float16", "float16", "f16", "f16", "fp16", 16, _AMPERE),
    Instruction("bfloat16", "float32", "bf16", "f32", "bf16", 16, _AMPERE),
    Instruction("float32", "float32", "tf32", "f32", "tf32", 32, _AMPERE),
    Instruction("int8", "int32", "s8", "s32", "int8", 8, _AMPERE),
    Instruction("uint8", "int32", "u8", "s32", "uint8", 8, _AMPERE),
    Instruction("float8_e4m3fn", "float32", "e4m3", "f32", "e4m3", 8, _ADA),
    Instruction("float8_e5m2", "float32", "e5m2", "f32", "e5m2", 8, _ADA),
)
#: Every instruction by its name.
INSTRUCTIONS = {one.name: one for one in _ALL}
#: ``auto`` never takes these: they drop bits of what they are given.
_ON_REQUEST = frozenset({"tf32"})


def instruction(name: str) -> Instruction:
    """Look up an instruction.

    Raises
    ------
    ScheduleError
        If there is none of that name; the sentence lists those there are.
    """
    if not is_one_of(name, INSTRUCTIONS):
        raise ScheduleError(
            f"There is no tensor-core instruction {name!r}; known are {', '.join(INSTRUCTIONS)}."
        )
    return INSTRUCTIONS[name]


def choose(
    name: str, operand: str, sums: str, architecture: Architecture, *, tf32: bool = False
) -> Instruction:
    """Find the instruction for the types of operands and sums on a GPU: ``auto``, or one by name.

    Raises
    ------
    ScheduleError
        If no instruction multiplies these types, or the GPU lacks it. ``auto`` refuses float32
        operands: tf32 keeps 10 of their 23 bits of mantissa, which must be asked for, here or by
        ``tf32``.
    """
    one = _by_types(operand, sums, tf32) if name == "auto" else instruction(name)
    if (one.operand, one.sums) != (operand, sums):
        raise ScheduleError(
            f"{one.name} multiplies {one.operand} into {one.sums}, the block {operand} into {sums}."
        )
    if architecture.capability < one.capability:
        major, minor = one.capability
        raise ScheduleError(
            f"{one.name} needs compute capability {major}.{minor}; {architecture.name} is older."
        )
    return one


def _by_types(operand: str, sums: str, tf32: bool) -> Instruction:
    fitting = [one for one in _ALL if (one.operand, one.sums) == (operand, sums)]
    if not fitting:
        pairs = ", ".join(f"{one.operand} into {one.sums}" for one in _ALL)
        raise ScheduleError(
            f"No tensor-core instruction multiplies {operand} into {sums}; there are {pairs}."
        )
    if fitting[0].ptx_operand in _ON_REQUEST and not tf32:
        raise ScheduleError(
            f"Tensor cores multiply {operand} only as {fitting[0].ptx_operand}, which drops low "
            f"bits of the mantissa; ask for it with instruction={fitting[0].name!r}."
        )
    return fitting[0]
