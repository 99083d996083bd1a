"""The caller's arrays as device memory: strides, element offsets, addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import SimulationError
from .memory import Memory

#: Bytes up to which an address matters: no instruction is wider, and sectors hold two of these.
_WIDEST, _SECTOR = 16, 32


@dataclass(frozen=True)
class View:
    """Which elements of a parameter's memory belong to it: strides and offset in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    offset: int
    dtype: np.dtype[Any]

    @property
    def elements(self) -> int:
        """Elements of the memory: those before it, and those it reaches over."""
        reach = int(np.prod(self.shape, dtype=np.int64))
        if self.strides is not None and reach:
            reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1
        return self.offset + reach

    def of(self, flat: Any) -> Any:
        """Its elements, with their shape, of an array that has an entry for each of the memory."""
        rest = flat[self.offset :]
        if self.strides is None:
            return rest[: int(np.prod(self.shape, dtype=np.int64))].reshape(self.shape)
        steps = [step * flat.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(rest, self.shape, steps)

    def between(self, count: int) -> Any:
        """Which of ``count`` elements of the memory are none of its own."""
        others = np.ones(count, bool)
        self.of(others)[...] = False
        return others


def copy_in(name: str, array: Any, view: View, base: int) -> Memory:
    """Copy an array to the device; of rows far apart only their own elements."""
    size = view.elements * view.dtype.itemsize
    if view.strides is not None:
        steps = tuple(step * view.dtype.itemsize for step in view.strides)
        if steps != array.strides:
            raise SimulationError(
                f"Argument {name} has strides {array.strides} bytes, but the function takes "
                f"{steps}."
            )
    data = np.zeros(size, np.uint8)
    view.of(data.view(view.dtype))[...] = array
    return Memory(name, data, view.dtype.itemsize, "global", size, base)


def elements_before(name: str, array: Any, factor: int = 1) -> int:
    """Elements of the array that ``array`` is a view of that lie before its first one."""
    between = _address(array) - _address(_whole(array))
    if between < 0 or between % array.itemsize:
        raise SimulationError(
            f"Argument {name} begins {between} bytes into its memory, which is no number of "
            f"elements of {array.itemsize} bytes."
        )
    elements = int(between // array.itemsize)
    if factor > 1 and elements % factor:
        raise SimulationError(
            f"Argument {name} begins {elements} elements into its memory, but the function takes "
            f"multiples of {factor}."
        )
    return elements


def check_offset(name: str, array: Any, wanted: int) -> int:
    """Check the elements before an argument against the number that the function takes."""
    found = wanted if array is None else elements_before(name, array)
    if found != wanted:
        raise SimulationError(
            f"Argument {name} begins {found} elements into its memory, but the function takes "
            f"{wanted}; pass a view such as whole[{wanted}:]."
        )
    return wanted


def low_address(name: str, array: Any, offset: int, alignment: int) -> int:
    """Low bits of the address at which the memory of an argument begins.

    One of less than 16 bytes' alignment lies where the caller's does; others begin with a sector.
    """
    if not 0 < alignment < _WIDEST:
        return 0
    address = _address(array) - offset * array.itemsize
    if address % alignment:
        raise SimulationError(
            f"Argument {name} begins {address % alignment} bytes past a multiple of {alignment}, "
            "to which the function wants it aligned."
        )
    return address % _SECTOR


def _whole(array: Any) -> Any:
    """The array that holds the memory that an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
