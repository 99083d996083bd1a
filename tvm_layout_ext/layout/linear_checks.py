"""What linear layouts are made of and asked for, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from keyword import iskeyword
from math import prod
from typing import Any

import numpy as np

from ..errors import LayoutError

__all__ = [
    "Bases",
    "Sizes",
    "as_indices",
    "check_integer",
    "check_known",
    "check_mapping",
    "check_names",
    "check_permutation",
    "check_size",
    "check_total",
    "is_power_of_two",
    "log2",
    "read_bases",
    "whole_bases",
    "whole_sizes",
]

Bases = tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
Sizes = tuple[tuple[str, int], ...]


def is_power_of_two(value: int) -> bool:
    """Whether ``value`` is 1, 2, 4, ..."""
    return value > 0 and value & (value - 1) == 0


def log2(value: int) -> int:
    """Exponent of a power of two."""
    return int(value).bit_length() - 1


def check_integer(value: Any, what: str) -> None:
    """Refuse what is no integer, of Python or NumPy."""
    if not isinstance(value, int | np.integer):
        raise LayoutError(f"{what} is {value!r}, which is no integer.")


def as_indices(value: Any, name: str) -> np.ndarray:
    """Make an array of indices; numbers with a fraction are refused, not cut off."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise LayoutError(f"The indices of {name!r} are {value!r}, which is no array.") from None
    if array.size and array.dtype.kind not in "iub":
        raise LayoutError(f"The indices of {name!r} are {array.dtype}; they must be integers.")
    return array.astype(np.int64)


def read_bases(
    bases: Mapping[str, Iterable[Sequence[int]]], out_dims: Mapping[str, int] | Sequence[str]
) -> Bases:
    """Read the arguments of :meth:`LinearLayout.from_bases`."""
    if not isinstance(bases, Mapping):
        raise LayoutError(f"bases is {bases!r}; it must map input dims to vectors.")
    if isinstance(out_dims, str) or not isinstance(out_dims, Mapping | Sequence):
        raise LayoutError(f"out_dims is {out_dims!r}; it must map or list the output dims.")
    rows = []
    for name, vectors in bases.items():
        try:
            rows.append((name, tuple(tuple(vector) for vector in vectors)))
        except TypeError:
            raise LayoutError(
                f"The bases of {name!r} are {vectors!r}; they must be a list of vectors."
            ) from None
    return whole_bases(rows)


def whole_bases(rows: Iterable[Any]) -> Bases:
    """Make the numbers of basis vectors Python's own; NumPy's have another text.

    Raises
    ------
    LayoutError
        If one is no integer, or they are not tuples of tuples by name.
    """
    try:
        pairs = tuple((name, tuple(map(tuple, vectors))) for name, vectors in rows)
    except (TypeError, ValueError):
        raise LayoutError(f"bases is {rows!r}; it must pair input dims with vectors.") from None
    # Layouts are made by the thousand, nearly all of other layouts' numbers.
    if {type(value) for _, vectors in pairs for vector in vectors for value in vector} <= {int}:
        return pairs
    for name, vectors in pairs:
        for value in chain.from_iterable(vectors):
            check_integer(value, f"A number of a basis vector of {name!r}")
    return tuple(
        (name, tuple(tuple(map(int, vector)) for vector in vectors)) for name, vectors in pairs
    )


def whole_sizes(sizes: Iterable[Any]) -> Sizes:
    """Make sizes of output dims Python's own integers.

    Raises
    ------
    LayoutError
        If one is no integer, or they are not paired with names.
    """
    try:
        pairs = [(name, size) for name, size in sizes]
    except (TypeError, ValueError):
        raise LayoutError(f"out_dims is {sizes!r}; it must pair output dims with sizes.") from None
    for name, size in pairs:
        check_integer(size, f"The size of {name!r}")
    return tuple((name, int(size)) for name, size in pairs)


def check_mapping(sizes: Any, what: str) -> None:
    """Refuse what does not map names."""
    if not isinstance(sizes, Mapping):
        raise LayoutError(f"{what} is {sizes!r}; it must map names of dims.")


def check_name_list(names: Any, side: str) -> None:
    """Refuse what does not list names."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise LayoutError(f"The {side} dims are {names!r}; they must be a list of names.")
    for name in names:
        if not isinstance(name, str):
            raise LayoutError(f"The {side} dims {list(names)} hold {name!r}, which is no name.")


def check_size(size: int, what: str) -> None:
    """Refuse a size that is no power of two."""
    check_integer(size, f"The size of {what!r}")
    if not is_power_of_two(size):
        raise LayoutError(f"The size of {what!r} is {size}; it must be a power of two.")


def check_names(names: Sequence[Any], side: str) -> None:
    """Refuse names that are no identifiers, or repeated."""
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
            raise LayoutError(f"The {side} dim name {name!r} is not an identifier.")
    if len(set(names)) != len(names):
        raise LayoutError(f"The {side} dims {list(names)} repeat a name.")


def check_known(names: Sequence[str], known: Sequence[str], side: str) -> None:
    """Refuse names that the layout does not have."""
    check_name_list(names, side)
    for name in names:
        if name not in known:
            raise LayoutError(f"There is no {side} dim {name!r}; there are {list(known)}.")


def check_permutation(names: Sequence[str], known: Sequence[str], side: str) -> None:
    """Refuse names that are not those of the layout in some order."""
    check_name_list(names, side)
    if sorted(names) != sorted(known):
        raise LayoutError(f"{list(names)} is no permutation of the {side} dims {list(known)}.")


def check_total(sizes: Mapping[str, int], total: int, side: str) -> None:
    """Refuse sizes that do not make up a space."""
    check_mapping(sizes, f"The {side} sizes")
    for name, size in sizes.items():
        check_integer(size, f"The size of {name!r}")
    if prod(sizes.values()) != total:
        raise LayoutError(
            f"The sizes {dict(sizes)} multiply to {prod(sizes.values())}, "
            f"but the {side} space has {total}."
        )
