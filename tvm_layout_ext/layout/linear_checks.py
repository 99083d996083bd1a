"""What linear layouts are made of, checked. Numbers become Python's; NumPy's print otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword
from math import prod
from typing import Any

import numpy as np

from ..errors import LayoutError

Bases = tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
Sizes = tuple[tuple[str, int], ...]


def is_power_of_two(value: int) -> bool:
    """Whether ``value`` is 1, 2, 4, ..."""
    return value > 0 and value & (value - 1) == 0


def log2(value: int) -> int:
    """Exponent of a power of two."""
    return int(value).bit_length() - 1


def check_integer(value: Any, what: str) -> int:
    """Refuse what is no integer, of Python or NumPy."""
    if not isinstance(value, int | np.integer):
        raise LayoutError(f"{what} is {value!r}, which is no integer.")
    return int(value)


def check_size(size: Any, what: str) -> None:
    """Refuse a size that is no power of two."""
    check_integer(size, f"The size of {what!r}")
    if not is_power_of_two(size):
        raise LayoutError(f"The size of {what!r} is {size}; it must be a power of two.")


def as_indices(value: Any, name: str) -> np.ndarray:
    """Make an array of indices; numbers with a fraction are refused, not cut off."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise LayoutError(f"The indices of {name!r} are {value!r}, which is no array.") from None
    if array.size and array.dtype.kind not in "iub":
        raise LayoutError(f"The indices of {name!r} are {array.dtype}; they must be integers.")
    return array.astype(np.int64)


def whole_bases(rows: Iterable[tuple[str, Any]]) -> Bases:
    """Read the vectors of each input dim."""
    bases = []
    for name, vectors in _pairs(rows, "The bases"):
        try:
            pairs = tuple(map(tuple, vectors))
        except TypeError:
            raise LayoutError(
                f"The bases of {name!r} are {vectors!r}; they must be a list of vectors."
            ) from None
        # Layouts are made by the thousand, nearly all of other layouts' numbers.
        if not {type(value) for vector in pairs for value in vector} <= {int}:
            what = f"A number of a basis vector of {name!r}"
            pairs = tuple(tuple(check_integer(v, what) for v in vector) for vector in pairs)
        bases.append((name, pairs))
    return tuple(bases)


def whole_sizes(sizes: Iterable[tuple[str, Any]]) -> Sizes:
    """Read the sizes of output dims."""
    return tuple(
        (name, check_integer(size, f"The size of {name!r}"))
        for name, size in _pairs(sizes, "The output dims")
    )


def _pairs(given: Any, what: str) -> list[tuple[Any, Any]]:
    try:
        return [(name, value) for name, value in given]
    except (TypeError, ValueError):
        raise LayoutError(
            f"{what} are {given!r}; they must be pairs of a dim and a value."
        ) from None


def check_mapping(given: Any, what: str) -> None:
    """Refuse what is no mapping of dims."""
    if not isinstance(given, Mapping):
        raise LayoutError(f"{what} are {given!r}; they must be a mapping of dims.")


def joint_shape(arrays: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """Shape of arrays of indices together."""
    try:
        return np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name!r} {array.shape}" for name, array in arrays.items())
        raise LayoutError(f"The arrays of indices do not broadcast: {shapes}.") from None


def check_names(names: Sequence[Any], side: str) -> None:
    """Refuse names that are no identifiers, or repeated."""
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
            raise LayoutError(f"The {side} dim name {name!r} is not an identifier.")
    if len(set(names)) != len(names):
        raise LayoutError(f"The {side} dims {list(names)} repeat a name.")


def check_known(names: Iterable[str], known: Sequence[str], side: str, whole: bool = False) -> None:
    """Refuse names that the layout does not have; ``whole`` wants each of its names once."""
    if not isinstance(names, Iterable):
        raise LayoutError(f"{names!r} is no list of {side} dims; there are {list(known)}.")
    for name in names:
        if name not in known:
            raise LayoutError(f"There is no {side} dim {name!r}; there are {list(known)}.")
    if whole and sorted(names) != sorted(known):
        raise LayoutError(f"{list(names)} is no permutation of the {side} dims {list(known)}.")


def check_total(sizes: Mapping[str, int], total: int, side: str) -> None:
    """Refuse sizes that do not make up a space."""
    check_mapping(sizes, f"The sizes of {side} dims")
    for name, size in sizes.items():
        check_size(size, name)
    if prod(sizes.values()) != total:
        raise LayoutError(
            f"The sizes {dict(sizes)} multiply to {prod(sizes.values())}, "
            f"but the {side} space has {total}."
        )
