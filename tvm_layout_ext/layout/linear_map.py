"""What a linear map over F2 is, and what can be asked of it; :mod:`.linear` makes maps of maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ..errors import LayoutError
from .f2 import Columns, combine
from .linear_checks import (
    Bases,
    Sizes,
    as_indices,
    check_integer,
    check_names,
    is_power_of_two,
    log2,
    whole_bases,
    whole_sizes,
)

__all__ = ["Bases", "LinearMap", "Sizes"]


@dataclass(frozen=True, repr=False)
class LinearMap:
    """Basis vectors of input dims, and what follows from them.

    The part of :class:`.linear.LinearLayout` that only reads; its attributes are described there.
    """

    bases: Bases
    out_dims: Sizes

    def __post_init__(self) -> None:
        object.__setattr__(self, "bases", whole_bases(self.bases))
        object.__setattr__(self, "out_dims", whole_sizes(self.out_dims))
        check_names([name for name, _ in self.bases], "input")
        check_names([name for name, _ in self.out_dims], "output")
        for name, size in self.out_dims:
            if not is_power_of_two(size):
                raise LayoutError(f"Output dim {name!r} has size {size}, not a power of two.")
        for name, vectors in self.bases:
            for vector in vectors:
                self._check_vector(name, vector)

    def _check_vector(self, name: str, vector: tuple[int, ...]) -> None:
        if len(vector) != len(self.out_dims):
            raise LayoutError(
                f"A basis vector of {name!r} has {len(vector)} numbers, {list(vector)}, "
                f"but there are {len(self.out_dims)} output dims."
            )
        for value, (out, size) in zip(vector, self.out_dims, strict=True):
            if not 0 <= value < size:
                raise LayoutError(
                    f"A basis vector of {name!r} has {value} for output dim {out!r}, "
                    f"which must lie in [0, {size})."
                )

    # Shape

    @property
    def in_dims(self) -> tuple[str, ...]:
        """Names of the input dims."""
        return tuple(name for name, _ in self.bases)

    @property
    def out_names(self) -> tuple[str, ...]:
        """Names of the output dims."""
        return tuple(name for name, _ in self.out_dims)

    @property
    def in_sizes(self) -> dict[str, int]:
        """Size of each input dim."""
        return {name: 1 << len(vectors) for name, vectors in self.bases}

    @property
    def out_sizes(self) -> dict[str, int]:
        """Size of each output dim."""
        return dict(self.out_dims)

    @property
    def total_in_size(self) -> int:
        """Number of input indices."""
        return prod(self.in_sizes.values())

    @property
    def total_out_size(self) -> int:
        """Number of output coordinates."""
        return prod(self.out_sizes.values())

    def basis(self, in_dim: str) -> tuple[tuple[int, ...], ...]:
        """Look up the images of the indices 1, 2, 4, ... of an input dim; none if it is absent."""
        return dict(self.bases).get(in_dim, ())

    def flat_basis(self, in_dim: str) -> list[int]:
        """:meth:`basis` with each image packed into one integer, first output dim lowest."""
        return [self._pack(vector) for vector in self.basis(in_dim)]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """All basis vectors packed, the bits of the first input dim first: the matrix over F2."""
        return tuple(self._pack(vector) for _, vectors in self.bases for vector in vectors)

    @cached_property
    def _shifts(self) -> tuple[int, ...]:
        bits = [log2(size) for _, size in self.out_dims]
        return tuple(sum(bits[:i]) for i in range(len(bits)))

    def _pack(self, vector: Sequence[int]) -> int:
        return sum(value << shift for value, shift in zip(vector, self._shifts, strict=True))

    def _unpack(self, packed: int) -> tuple[int, ...]:
        return tuple(
            packed >> shift & size - 1
            for shift, (_, size) in zip(self._shifts, self.out_dims, strict=True)
        )

    # Application

    def apply(self, **indices: int) -> dict[str, int]:
        """Map one index of every input dim to its coordinates.

        Raises
        ------
        LayoutError
            If an input dim is missing, unknown, or its index no integer or out of range.
        """
        self._check_given(indices)
        for name, size in self.in_sizes.items():
            check_integer(indices[name], f"The index of {name!r}")
            if not 0 <= indices[name] < size:
                raise LayoutError(f"Index {indices[name]} of {name!r} is not in [0, {size}).")
        image = self._unpack(combine(self.columns, self._join(indices)))
        return dict(zip(self.out_names, image, strict=True))

    def _join(self, indices: Mapping[str, int]) -> int:
        packed = shift = 0
        for name, vectors in self.bases:
            packed |= indices[name] << shift
            shift += len(vectors)
        return packed

    def apply_arrays(self, **indices: Any) -> dict[str, np.ndarray]:
        """Map arrays of indices, which broadcast against each other, to arrays of coordinates.

        Examples
        --------
        >>> from tvm_layout_ext.layout import LinearLayout
        >>> swizzle = LinearLayout.from_bases({"i": [(1,), (3,)]}, ["o"])
        >>> swizzle.apply_arrays(i=np.arange(4))["o"]
        array([0, 1, 3, 2])

        Raises
        ------
        LayoutError
            As :meth:`apply` does, and if a coordinate may need more than 63 bits or the arrays do
            not broadcast.
        """
        self._check_given(indices)
        arrays = {name: as_indices(indices[name], name) for name in self.in_dims}
        for name, size in self.out_dims:
            if size > 1 << 63:
                raise LayoutError(f"Output dim {name!r} has size {size}; arrays hold 63 bits.")
        for name, size in self.in_sizes.items():
            if arrays[name].size and not 0 <= arrays[name].min() <= arrays[name].max() < size:
                raise LayoutError(f"Some indices of {name!r} are not in [0, {size}).")
        try:
            shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        except ValueError:
            shapes = {name: array.shape for name, array in arrays.items()}
            raise LayoutError(
                f"Indices of shapes {shapes} do not broadcast against each other."
            ) from None
        result = {name: np.zeros(shape, dtype=np.int64) for name in self.out_names}
        for name, vectors in self.bases:
            for bit, vector in enumerate(vectors):
                is_set = arrays[name] >> bit & 1
                for out, value in zip(self.out_names, vector, strict=True):
                    result[out] ^= is_set * value
        return result

    def _check_given(self, indices: Mapping[str, object]) -> None:
        if set(indices) != set(self.in_dims):
            raise LayoutError(
                f"The layout takes indices of {list(self.in_dims)}, not of {list(indices)}."
            )

    # Questions

    @cached_property
    def _eliminated(self) -> Columns:
        return Columns(self.columns)

    @property
    def rank(self) -> int:
        """Dimension of the image: 2^rank coordinates are reached."""
        return self._eliminated.rank

    def is_surjective(self) -> bool:
        """Whether every coordinate is reached."""
        return 1 << self.rank == self.total_out_size

    def is_injective(self) -> bool:
        """Whether no two indices go to one coordinate."""
        return self.rank == len(self.columns)

    def is_bijective(self) -> bool:
        """Whether the layout can be inverted."""
        return self.is_surjective() and self.is_injective()

    def free_variable_masks(self) -> dict[str, int]:
        """For each input dim, the index bits that the earlier bits make redundant.

        Two indices that differ only there may hold the same element; a thread with any of them
        set repeats another's work.
        """
        masks, shift = {}, 0
        for name, vectors in self.bases:
            masks[name] = self._eliminated.free >> shift & (1 << len(vectors)) - 1
            shift += len(vectors)
        return masks

    def num_consecutive(self) -> int:
        """How many first indices of the first input dim go to as many first coordinates.

        This is the width to which the first output dim can be accessed at once: it also asks that
        no other index bit ever touches the low bits of that coordinate, so that each such run is
        aligned to its own length.

        Examples
        --------
        >>> from tvm_layout_ext.layout import LinearLayout
        >>> bases = {"register": [(1,), (2,), (8,)], "lane": [(4,)]}
        >>> LinearLayout.from_bases(bases, ["x"]).num_consecutive()
        4
        """
        if not self.bases or not self.out_dims:
            return 1
        vectors = self.bases[0][1]
        run = 0
        while run < len(vectors) and vectors[run] == self._unit(run):
            run += 1
        low = 0
        for vector in [*vectors[run:], *(v for _, vs in self.bases[1:] for v in vs)]:
            low |= vector[0]
        limit = low & -low if low else self.out_dims[0][1]
        return min(1 << run, limit)

    def _unit(self, bit: int) -> tuple[int, ...]:
        return (1 << bit, *(0 for _ in self.out_dims[1:]))

    # Text

    def __repr__(self) -> str:
        ins = ", ".join(f"{name}: {[list(v) for v in vectors]}" for name, vectors in self.bases)
        outs = ", ".join(f"{name}: {size}" for name, size in self.out_dims)
        return f"Linear({{{ins}}}, {{{outs}}})"
