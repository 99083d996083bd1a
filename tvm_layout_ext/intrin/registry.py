"""The intrinsics by name, built and registered with TVM when they are first needed.

Building one takes about 0.1 s, too long to build them all at import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from tvm import s_tir

from ..errors import ScheduleError
from .copies import load, stmatrix
from .fragments import REGISTERS, operand_place, operand_tile, sums_place, turned
from .instructions import INSTRUCTIONS, TILE, Instruction
from .products import clear, multiply

_PREFIX = "layout_ext."
#: Lowest compute capabilities with these (PTX ISA, "ldmatrix" and "stmatrix", target notes).
LDMATRIX, STMATRIX = (7, 5), (9, 0)
_SCOPES = ("shared", "shared.dyn")


def load_name(matrix: str, one: Instruction, scope: str, *, k_major: bool, count: int = 4) -> str:
    """Name the intrinsic that loads a tile of an operand into a fragment.

    ``count`` matrices of 8 rows and 16 bytes: 1, 2 or 4. With ``k_major`` rows of the tile in
    memory lie along K.

    Examples
    --------
    >>> from tvm_layout_ext.intrin import instruction
    >>> half, byte = instruction("mma.m16n8k16.f32.f16"), instruction("mma.m16n8k32.s32.s8")
    >>> load_name("a", half, "shared", k_major=False)
    'layout_ext.ldmatrix.x4.a.float16.mn_major.shared'
    >>> load_name("a", byte, "shared", k_major=False)
    'layout_ext.load.x4.a.int8.mn_major.shared'
    """
    kind = "ldmatrix" if one.has_ldmatrix(k_major) else "load"
    major = "k_major" if k_major else "mn_major"
    return f"{_PREFIX}{kind}.x{count}.{matrix}.{one.operand}.{major}.{scope}"


def multiply_name(one: Instruction) -> str:
    """Name the intrinsic that multiplies two fragments into a tile of sums."""
    return _PREFIX + one.name


def clear_name(sums: str) -> str:
    """Name the intrinsic that sets a tile of sums to zero."""
    return f"{_PREFIX}clear.{sums}"


def store_name(dtype: str, scope: str, *, row_major: bool = True) -> str:
    """Name the intrinsic that stores a tile of 16-bit results by ``stmatrix``."""
    return f"{_PREFIX}stmatrix.x4.{dtype}.{'row_major' if row_major else 'column_major'}.{scope}"


@dataclass(frozen=True)
class _Entry:
    """How to build an intrinsic, and how its fragment lies in registers.

    ``place`` maps the indices of a tile of ``tile`` elements to lane and element.
    """

    build: Callable[[], tuple[Any, Any]]
    tile: tuple[int, int]
    place: Callable[[Any, Any], tuple[Any, Any]]


def _loads() -> dict[str, _Entry]:
    made: dict[str, _Entry] = {}
    for one, (matrix, count), scope, k_major in product(
        INSTRUCTIONS.values(), REGISTERS, _SCOPES, (True, False)
    ):
        registers = REGISTERS[matrix, count]

        def place(i: Any, j: Any, own: Any = (matrix, one.bits, k_major, registers)) -> Any:
            which, bits, is_k_major, numbers = own
            return operand_place(which, bits, *turned(i, j, is_k_major), numbers)

        name = load_name(matrix, one, scope, k_major=k_major, count=count)
        build = partial(load, one, matrix, count, scope, k_major)
        made[name] = _Entry(build, operand_tile(one.bits, registers, k_major), place)
    return made


def _entries() -> dict[str, _Entry]:
    made: dict[str, Callable[[], tuple[Any, Any]]] = {}
    for one in INSTRUCTIONS.values():
        made[multiply_name(one)] = partial(multiply, one)
        made[clear_name(one.sums)] = partial(clear, one.sums)
    for dtype, scope, row_major in product(("float16", "bfloat16"), _SCOPES, (True, False)):
        name = store_name(dtype, scope, row_major=row_major)
        made[name] = partial(stmatrix, dtype, scope, row_major)
    sums = {name: _Entry(build, (TILE, TILE), sums_place) for name, build in made.items()}
    return _loads() | sums


_ENTRIES = _entries()


def names() -> list[str]:
    """All names that :func:`register` knows."""
    return sorted(_ENTRIES)


def fragment_index(name: str, indices: Sequence[Any]) -> tuple[Any, ...]:
    """Say where an element of a matrix lies once the matrix is kept as an intrinsic's fragments.

    The last two indices count along the tile; they become its two numbers, lane and element.

    Examples
    --------
    >>> fragment_index("layout_ext.mma.m16n8k16.f32.f16", (3, 25, 3))
    (3, 1, 0, 5, 3)
    """
    *before, i, j = indices
    entry = _ENTRIES[name]
    rows, columns = entry.tile
    return (*before, i // rows, j // columns, *entry.place(i % rows, j % columns))


def capability_of(name: str) -> tuple[int, int]:
    """Lowest compute capability that has the instructions of an intrinsic.

    Examples
    --------
    >>> capability_of("layout_ext.mma.m16n8k32.f32.e4m3"), capability_of("layout_ext.clear.int32")
    ((8, 9), (7, 5))
    """
    short = name.removeprefix(_PREFIX)
    if short.startswith("stmatrix."):
        return STMATRIX
    return INSTRUCTIONS[short].capability if short in INSTRUCTIONS else LDMATRIX


def register(name: str) -> str:
    """Register an intrinsic of :func:`names` with TVM, unless that is done; give its name back.

    Raises
    ------
    ScheduleError
        If there is none of that name.
    """
    if name not in _ENTRIES:
        raise ScheduleError(
            f"There is no tensor intrinsic {name!r}; tvm_layout_ext.intrin.names() lists them."
        )
    if s_tir.TensorIntrin.get(name, allow_missing=True) is None:
        s_tir.TensorIntrin.register(name, *_ENTRIES[name].build())
    return name
