"""Linear layouts: maps between named index spaces that XOR basis vectors together.

One map answers "which element does register 1 of lane 6 hold?", another "at which byte of shared
memory does element (3, 5) lie?". On a GPU nearly every such map has power-of-two sizes, and for a
power-of-two size the map is usually *linear over F2*: write the index in binary, and the answer is
the XOR of one fixed vector for each bit that is set. The whole map is then a short list of vectors,
and questions about it (is it a bijection? what is its inverse? does it swizzle without bank
conflicts?) are linear algebra on that list.

An example. Two warps of four lanes hold a 4x4 tile, two neighbouring elements a lane. Suppose
we know only where the indices with a single bit set go::

    register 1 -> (0, 1)     lane 1 -> (0, 2)     lane 2 -> (1, 0)     warp 1 -> (2, 0)

In the tile below, ``wlr`` names warp, lane and register; the known places are filled in::

    000  001  010   ?
    020   ?    ?    ?
    100   ?    ?    ?
     ?    ?    ?    ?

Linearity fills in the rest. Lane 3 is lane 1 XOR lane 2, so it begins at (0, 2) XOR (1, 0), which
is (1, 2); its register 1 is at (1, 2) XOR (0, 1) = (1, 3); warp 1 repeats all that two rows below::

    000  001  010  011
    020  021  030  031
    100  101  110  111
    120  121  130  131

As code:

>>> tile = LinearLayout.from_bases(
...     {"register": [(0, 1)], "lane": [(0, 2), (1, 0)], "warp": [(2, 0)]}, ["row", "column"]
... )
>>> tile.apply(warp=1, lane=3, register=1)
{'row': 3, 'column': 3}

Had lane 1 gone to (1, 2), odd and even rows would hold their halves swapped: a swizzle is no
special case. Nor is broadcasting: a basis vector of zeros makes two indices hold the same element.

What linear layouts cannot say: sizes that are not powers of two, and anything with a carry in it,
such as rows padded to 33 words. Padding is added after the linear map, see ``PaddedSharedLayout``.

Order matters where bits are numbered. Whatever flattens or reshapes dims takes the *first* dim as
the fastest, so ``flatten_ins`` of (register, lane) numbers all registers of lane 0 first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from keyword import iskeyword
from math import prod
from operator import index
from typing import Any

import numpy as np

from ..errors import LayoutError
from .f2 import Columns, combine

Bases = tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
Sizes = tuple[tuple[str, int], ...]


def is_power_of_two(value: Any) -> bool:
    """Whether ``value`` is 1, 2, 4, ..."""
    return isinstance(value, int | np.integer) and bool(value > 0 and value & (value - 1) == 0)


def check_linear(*layouts: object) -> None:
    """Raise LayoutError unless these are LinearLayouts."""
    for one in layouts:
        if not isinstance(one, LinearLayout):
            raise LayoutError(f"{one!r} is no LinearLayout; to_linear(shape) makes one of it.")


def _listed(values: Any) -> tuple[Any, ...]:
    """The values as a tuple; TypeError if they are none, or may be asked for values for ever."""
    if not isinstance(values, Iterable):
        raise TypeError
    return tuple(values)


def _vectors(values: Any) -> tuple[tuple[int, ...], ...]:
    """Vectors of Python's numbers: NumPy's print otherwise."""
    return tuple(tuple(map(index, _listed(vector))) for vector in _listed(values))


def log2(value: int) -> int:
    """Exponent of a power of two."""
    return int(value).bit_length() - 1


def _check_size(size: int, what: str) -> None:
    if not is_power_of_two(size):
        raise LayoutError(f"The size of {what!r} is {size}; it must be a power of two.")


def _check_names(names: Sequence[str], side: str) -> None:
    """Refuse names that are no identifiers, or repeated."""
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
            raise LayoutError(f"The {side} dim name {name!r} is not an identifier.")
    if len(set(names)) != len(names):
        raise LayoutError(f"The {side} dims {list(names)} repeat a name.")


def check_known(names: Iterable[str], known: Sequence[str], side: str, whole: bool = False) -> None:
    """Refuse names that the layout does not have; ``whole`` wants each of its names once."""
    if not isinstance(names, Collection):
        raise LayoutError(f"{names!r} are no {side} dims; there are {list(known)}.")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise LayoutError(f"There is no {side} dim {name!r}; there are {list(known)}.")
    if whole and sorted(names) != sorted(known):
        raise LayoutError(f"{list(names)} is no permutation of the {side} dims {list(known)}.")


def _check_total(sizes: Mapping[str, int], total: int, side: str) -> None:
    """Refuse sizes that do not make up a space."""
    if not isinstance(sizes, Mapping):
        raise LayoutError(f"The sizes of the {side} dims are a dictionary, not {sizes!r}.")
    for name, size in sizes.items():
        _check_size(size, name)
    if prod(sizes.values()) != total:
        raise LayoutError(
            f"The sizes {dict(sizes)} multiply to {prod(sizes.values())}, "
            f"but the {side} space has {total}."
        )


@dataclass(frozen=True, repr=False)
class LinearLayout:
    """A map over F2 from named input indices to named output coordinates.

    Make one with :meth:`from_bases`, :meth:`identity`, :meth:`strided`, :meth:`zeros`, or by
    multiplying such pieces. What cannot be is a LayoutError of one sentence.

    Examples
    --------
    A row of eight words dealt to two lanes in pairs, then asked who holds word 6:

    >>> pair = LinearLayout.identity(2, "register", "word")
    >>> row = pair * LinearLayout.identity(2, "lane", "word") * pair
    >>> row
    Linear({register: [[1], [4]], lane: [[2]]}, {word: 8})
    >>> row.invert().apply(word=6)
    {'register': 2, 'lane': 1}
    """

    bases: Bases  #: For each input dim, in order, the images of its indices 1, 2, 4, ...
    #: The output dims, in order, with their sizes. A basis vector has one number for each.
    out_dims: Sizes

    def __post_init__(self) -> None:
        try:
            bases = [
                (name, _vectors(vectors)) for name, vectors in map(_listed, _listed(self.bases))
            ]
            sizes = tuple(
                (name, index(size)) for name, size in map(_listed, _listed(self.out_dims))
            )
        except (TypeError, ValueError):
            raise LayoutError(
                "A LinearLayout has pairs of an input dim and its vectors of numbers, and pairs of "
                "an output dim and its size; from_bases takes dictionaries."
            ) from None
        object.__setattr__(self, "bases", tuple(bases))
        object.__setattr__(self, "out_dims", sizes)
        _check_names([name for name, _ in self.bases], "input")
        _check_names([name for name, _ in self.out_dims], "output")
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

    # Construction

    @staticmethod
    def from_bases(
        bases: Mapping[str, Iterable[Sequence[int]]],
        out_dims: Mapping[str, int] | Sequence[str],
        *,
        surjective: bool = True,
    ) -> LinearLayout:
        """Make a layout from the images of the powers of two.

        Parameters
        ----------
        bases : mapping of str to vectors
            For each input dim, the images of the indices 1, 2, 4, ...
        out_dims : mapping of str to int, or sequence of str
            The output dims with their sizes; with names only, a size is the least power of two
            that holds every basis vector.
        surjective : bool
            Refuse bases that leave a coordinate out. Sizes that are wrong usually show here.
        """
        try:
            rows = tuple((name, _vectors(vectors)) for name, vectors in bases.items())
            names = _listed(out_dims)
        except (AttributeError, TypeError):
            raise LayoutError(
                "from_bases takes a dictionary of vectors by their input dim, and output dims, by "
                "name or with their sizes."
            ) from None
        if isinstance(out_dims, Mapping):
            sizes = tuple(out_dims.items())
        else:
            sizes = tuple((name, _enough(rows, i)) for i, name in enumerate(names))
        layout = LinearLayout(rows, sizes)
        if surjective and not layout.is_surjective():
            raise LayoutError(
                f"{layout} reaches only 2^{layout.rank} of its {layout.total_out_size} coordinates;"
                " pass surjective=False if that is meant."
            )
        return layout

    @staticmethod
    def empty() -> LinearLayout:
        """Make the layout without dims, neutral in products."""
        return LinearLayout((), ())

    @staticmethod
    def identity(size: int, in_dim: str, out_dim: str) -> LinearLayout:
        """Send index i to coordinate i."""
        return LinearLayout.strided(size, 1, in_dim, out_dim)

    @staticmethod
    def strided(size: int, stride: int, in_dim: str, out_dim: str) -> LinearLayout:
        """Send index i to coordinate i * stride; the coordinates between stay unreached."""
        _check_size(size, in_dim)
        _check_size(stride, "stride")
        vectors = tuple((int(stride) << i,) for i in range(log2(size)))
        total = int(size) * int(stride) if size > 1 else 1
        return LinearLayout(((in_dim, vectors),), ((out_dim, total),))

    @staticmethod
    def zeros(size: int, in_dim: str, out_dim: str) -> LinearLayout:
        """Send every index to coordinate 0: a broadcast."""
        _check_size(size, in_dim)
        return LinearLayout(((in_dim, ((0,),) * log2(size)),), ((out_dim, 1),))

    @staticmethod
    def identity_of(sizes: Mapping[str, int]) -> LinearLayout:
        """Send each of several dims to itself."""
        result = LinearLayout.empty()
        for name, size in sizes.items():
            result = result * LinearLayout.identity(size, name, name)
        return result

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
        return next((vectors for name, vectors in self.bases if name == in_dim), ())

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
        """Map one index of every input dim to its coordinates."""
        self._check_given(indices)
        for name, size in self.in_sizes.items():
            at = indices[name]
            if not isinstance(at, int | np.integer) or not 0 <= at < size:
                raise LayoutError(f"Index {at!r} of {name!r} is not in [0, {size}).")
        packed = shift = 0
        for name, vectors in self.bases:
            packed |= indices[name] << shift
            shift += len(vectors)
        image = self._unpack(combine(self.columns, packed))
        return dict(zip(self.out_names, image, strict=True))

    def apply_arrays(self, **indices: Any) -> dict[str, np.ndarray]:
        """Map arrays of indices, which broadcast against each other, to arrays of coordinates."""
        self._check_given(indices)
        try:
            arrays = {name: np.asarray(indices[name], np.int64) for name in self.in_dims}
            shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        except (TypeError, ValueError, OverflowError):
            raise LayoutError(
                f"Indices of {list(self.in_dims)} are arrays of whole numbers, of shapes that fit."
            ) from None
        for name, size in self.in_sizes.items():
            if arrays[name].size and not 0 <= arrays[name].min() <= arrays[name].max() < size:
                raise LayoutError(f"Some indices of {name!r} are not in [0, {size}).")
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
        """For each input dim, the index bits that the earlier bits make redundant."""
        masks, shift = {}, 0
        for name, vectors in self.bases:
            masks[name] = self._eliminated.free >> shift & (1 << len(vectors)) - 1
            shift += len(vectors)
        return masks

    # Algebra

    def __mul__(self, other: LinearLayout) -> LinearLayout:
        """Put ``other`` around this layout: its vectors come after, scaled by our sizes.

        Where both have a dim, ours is the fast part of it.
        """
        check_linear(other)
        mine, theirs = self.out_sizes, other.out_sizes
        outs = list(dict.fromkeys([*mine, *theirs]))
        sizes = {name: mine.get(name, 1) * theirs.get(name, 1) for name in outs}
        bases: dict[str, list[tuple[int, ...]]] = {}
        for layout, scale in ((self, {}), (other, mine)):
            for name, vectors in layout.bases:
                own = bases.setdefault(name, [])
                for vector in vectors:
                    values = dict(zip(layout.out_names, vector, strict=True))
                    own.append(tuple(values.get(o, 0) * scale.get(o, 1) for o in outs))
        return LinearLayout.from_bases(bases, sizes, surjective=False)

    def compose(self, outer: LinearLayout) -> LinearLayout:
        """First this layout, then ``outer``, whose input dims are our output dims."""
        check_linear(outer)
        if set(self.out_names) != set(outer.in_dims):
            raise LayoutError(
                f"The outer layout takes {list(outer.in_dims)}, "
                f"but the inner one gives {list(self.out_names)}."
            )
        for name, size in self.out_dims:
            if size > outer.in_sizes[name]:
                raise LayoutError(
                    f"The inner layout gives {name!r} of size {size}, "
                    f"but the outer one takes only {outer.in_sizes[name]}."
                )

        def image(vector: tuple[int, ...]) -> tuple[int, ...]:
            indices = dict(zip(self.out_names, vector, strict=True))
            return tuple(outer.apply(**indices).values())

        bases = tuple((name, tuple(map(image, vectors))) for name, vectors in self.bases)
        return LinearLayout(bases, outer.out_dims)

    def invert(self) -> LinearLayout:
        """Make the layout that leads back."""
        if not self.is_bijective():
            raise LayoutError(
                f"Only a bijection can be inverted; {self} takes {self.total_in_size} indices "
                f"to 2^{self.rank} of {self.total_out_size} coordinates."
            )
        return self.pseudo_invert()

    def pseudo_invert(self) -> LinearLayout:
        """Make a layout that leads back, choosing index 0 wherever several indices would do."""
        return LinearLayout.identity_of(self.out_sizes).invert_and_compose(self)

    def invert_and_compose(self, outer: LinearLayout) -> LinearLayout:
        """Find the map C from our indices to those of ``outer`` with outer(C(x)) = self(x).

        With a layout to write with (this one) and one to read with (``outer``), C says which index
        of the reader meets what each index of the writer left. Two rules settle the choice where
        several indices of ``outer`` hold one element: an input dim with the same vectors in both
        layouts goes to itself, and of the other dims the free index bits are 0.
        """
        check_linear(outer)
        outer = outer.transpose_outs(self.out_names)
        for (name, size), (_, outer_size) in zip(self.out_dims, outer.out_dims, strict=True):
            if size > outer_size:
                raise LayoutError(f"Dim {name!r} has size {size} here but {outer_size} in outer.")
        if not outer.is_surjective():
            raise LayoutError(f"{outer} is not surjective, so it cannot be inverted.")
        same = {d for d in outer.in_dims if d in self.in_dims and outer.basis(d) == self.basis(d)}
        # Vectors of the dims set aside may be needed after all, to make up sums.
        solved = _solve(self, outer, same) or _solve(self, outer, set())
        assert solved is not None, "a surjective layout has a solution for every vector"
        return solved

    # Rearrangement

    def transpose_ins(self, names: Sequence[str]) -> LinearLayout:
        """Put the input dims in another order."""
        check_known(names, self.in_dims, "input", whole=True)
        return self.sublayout(names, self.out_names)

    def transpose_outs(self, names: Sequence[str]) -> LinearLayout:
        """Put the output dims in another order."""
        check_known(names, self.out_names, "output", whole=True)
        return self.sublayout(self.in_dims, names)

    def rename_outs(self, names: Mapping[str, str]) -> LinearLayout:
        """Give some output dims other names."""
        if not isinstance(names, Mapping):
            raise LayoutError(f"New names are a dictionary by the old ones, not {names!r}.")
        check_known(names, self.out_names, "output")
        outs = tuple((names.get(name, name), size) for name, size in self.out_dims)
        return LinearLayout(self.bases, outs)

    def reshape_ins(self, sizes: Mapping[str, int]) -> LinearLayout:
        """Split or join input dims, the first dim being the fastest before and after."""
        _check_total(sizes, self.total_in_size, "input")
        vectors = [vector for _, old in self.bases for vector in old]
        bases, at = [], 0
        for name, size in sizes.items():
            bases.append((name, tuple(vectors[at : at + log2(size)])))
            at += log2(size)
        return LinearLayout(tuple(bases), self.out_dims)

    def reshape_outs(self, sizes: Mapping[str, int]) -> LinearLayout:
        """Split or join output dims, the first dim being the fastest before and after."""
        _check_total(sizes, self.total_out_size, "output")
        shape = LinearLayout((), tuple(sizes.items()))
        bases = tuple(
            (name, tuple(shape._unpack(self._pack(vector)) for vector in vectors))
            for name, vectors in self.bases
        )
        return LinearLayout(bases, shape.out_dims)

    def flatten_ins(self, name: str) -> LinearLayout:
        """Make all input dims one."""
        _check_names([name], "input")
        return self.reshape_ins({name: self.total_in_size})

    def flatten_outs(self, name: str) -> LinearLayout:
        """Make all output dims one."""
        _check_names([name], "output")
        return self.reshape_outs({name: self.total_out_size})

    def sublayout(self, ins: Sequence[str], outs: Sequence[str]) -> LinearLayout:
        """Hold all other inputs at 0 and ignore all other outputs."""
        check_known(ins, self.in_dims, "input")
        check_known(outs, self.out_names, "output")
        at = [self.out_names.index(name) for name in outs]
        bases = tuple(
            (name, tuple(tuple(vector[i] for i in at) for vector in self.basis(name)))
            for name in ins
        )
        return LinearLayout(bases, tuple((name, self.out_sizes[name]) for name in outs))

    def without_zero_bases(self, in_dim: str) -> LinearLayout:
        """Drop the index bits of one dim that change nothing."""
        bases = tuple(
            (name, tuple(v for v in vectors if any(v)) if name == in_dim else vectors)
            for name, vectors in self.bases
        )
        return LinearLayout(bases, self.out_dims)

    def without_identity(self, dims: Iterable[str]) -> LinearLayout:
        """Take off, while it lasts, each of ``dims`` that goes to itself apart from the others."""
        result = self
        for name in dims:
            if not result._is_separate_identity(name):
                break
            ins = [n for n in result.in_dims if n != name]
            result = result.sublayout(ins, [n for n in result.out_names if n != name])
        return result

    def _is_separate_identity(self, name: str) -> bool:
        if name not in self.in_dims or name not in self.out_names:
            return name not in self.in_dims and name not in self.out_names
        others_in = [n for n in self.in_dims if n != name]
        others_out = [n for n in self.out_names if n != name]
        own = self.sublayout([name], [name])
        return (
            own == LinearLayout.identity(own.in_sizes[name], name, name)
            and not any(self.sublayout(others_in, [name]).columns)
            and not any(self.sublayout([name], others_out).columns)
        )

    # Text

    def __repr__(self) -> str:
        ins = ", ".join(f"{name}: {[list(v) for v in vectors]}" for name, vectors in self.bases)
        outs = ", ".join(f"{name}: {size}" for name, size in self.out_dims)
        return f"Linear({{{ins}}}, {{{outs}}})"


def _solve(inner: LinearLayout, outer: LinearLayout, same: set[str]) -> LinearLayout | None:
    """Find the map of :meth:`LinearLayout.invert_and_compose`, the ``same`` dims set aside."""
    names = [name for name in outer.in_dims if name not in same]
    index_space = LinearLayout((), tuple(outer.in_sizes.items()))
    unknowns = outer.sublayout(names, outer.out_names)
    columns = Columns(unknowns.columns)
    reduced = LinearLayout((), tuple((name, unknowns.in_sizes[name]) for name in names))
    at = {name: i for i, name in enumerate(names)}
    bases = []
    for name, vectors in inner.bases:
        images = []
        for bit, vector in enumerate(vectors):
            if name in same:
                images.append(tuple(1 << bit if d == name else 0 for d in index_space.out_names))
                continue
            mask = columns.solve(unknowns._pack(vector))
            if mask is None:
                return None
            parts = reduced._unpack(mask)
            images.append(tuple(parts[at[d]] if d in at else 0 for d in index_space.out_names))
        bases.append((name, tuple(images)))
    return LinearLayout(tuple(bases), index_space.out_dims)


def _enough(rows: Bases, at: int) -> int:
    """Least power of two above every number in column ``at``."""
    largest = max((v[at] for _, vs in rows for v in vs if at < len(v)), default=0)
    return 1 << max(int(largest), 0).bit_length()
