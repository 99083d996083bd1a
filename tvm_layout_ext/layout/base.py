"""What all layout classes share: the text form, the checks of their fields, growing to a shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any, ClassVar

from ..errors import LayoutError
from .linear import LinearLayout, is_power_of_two


def dim_names(rank: int) -> list[str]:
    """Name the tensor's dims as linear layouts do: ``dim0``, ``dim1``, ..."""
    return [f"dim{i}" for i in range(rank)]


class Layout:
    """Base of the layout classes; each is a frozen dataclass.

    ``repr`` gives the text form, the short class name with all fields that are not at their
    default; :func:`tvm_layout_ext.layout.parse` reads it back.
    """

    #: Class name without the trailing "Layout"; the text form begins with it.
    text_name: ClassVar[str]
    #: Draws where the elements of a tensor lie: :func:`tvm_layout_ext.report.render`.
    render: ClassVar[Callable[..., str]]

    def __init_subclass__(cls) -> None:
        cls.text_name = cls.__name__.removesuffix("Layout")

    @property
    def rank(self) -> int:
        """Number of dims of the tensors it lays out."""
        raise NotImplementedError

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """Give the same placement, for tensors of one shape, as a map over F2."""
        raise NotImplementedError

    def padded_offset(self, offset: Any) -> Any:
        """Place an offset of shared memory behind the gaps before it; here there are none."""
        return offset

    def _texts(self) -> list[str]:
        return [f"{f.name}={_text(getattr(self, f.name))}" for f in fields(self)]  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{self.text_name}({', '.join(self._texts())})"

    def _check_shape(self, shape: Sequence[int]) -> None:
        shape = integers("The shape", shape)
        if len(shape) != self.rank:
            raise LayoutError(f"{self} lays out {self.rank} dims, but the shape is {list(shape)}.")
        for size in shape:
            if not is_power_of_two(size):
                raise LayoutError(f"Shape {list(shape)} has {size}, which is no power of two.")


@dataclass(frozen=True)
class CTALayout:
    """How the blocks (CTAs) of a cluster share a tensor.

    There are ``ctas_per_cga`` blocks along each dim, which is cut into ``cta_split_num`` parts; a
    quotient above 1 means so many copies of a part. ``cta_order`` lists the dims from the one along
    which neighbouring block ids lie to the slowest.

    Examples
    --------
    Four blocks over a 32x32 tensor, one quadrant each, neighbours side by side:

    >>> CTALayout((2, 2), (2, 2), (1, 0)).to_linear()
    Linear({block: [[0, 1], [1, 0]]}, {dim0: 2, dim1: 2})
    """

    ctas_per_cga: Sequence[int]
    cta_split_num: Sequence[int]
    cta_order: Sequence[int]

    def __post_init__(self) -> None:
        set_order(self, name="cta_order")
        set_sizes(self, len(self.cta_order), "ctas_per_cga", "cta_split_num")
        for ctas, split in zip(self.ctas_per_cga, self.cta_split_num, strict=True):
            if split > ctas:
                raise LayoutError(
                    f"cta_split_num {list(self.cta_split_num)} cuts a dim into {split} parts, "
                    f"but ctas_per_cga {list(self.ctas_per_cga)} has only {ctas} blocks there."
                )

    @staticmethod
    def single(rank: int) -> CTALayout:
        """Make the layout of one block, no cluster."""
        integers("rank", [rank])
        return CTALayout((1,) * rank, (1,) * rank, tuple(reversed(range(rank))))

    @property
    def is_single(self) -> bool:
        """Whether there is one block only."""
        return prod(self.ctas_per_cga) == 1

    def whole_along(self, dim: int) -> CTALayout:
        """Leave one dim uncut, so that each block holds all of it."""
        if dim not in range(len(self.cta_order)):
            raise LayoutError(f"There is no dim {dim!r}; {self} has {len(self.cta_order)}.")
        split = tuple(1 if d == dim else n for d, n in enumerate(self.cta_split_num))
        return CTALayout(self.ctas_per_cga, split, self.cta_order)

    def to_linear(self) -> LinearLayout:
        """Which part of the tensor each block holds, in units of parts."""
        names = dim_names(len(self.ctas_per_cga))
        result = start(["block"], len(names))
        for dim in self.cta_order:
            split = self.cta_split_num[dim]
            result = result * LinearLayout.identity(split, "block", names[dim])
            copies = self.ctas_per_cga[dim] // split
            result = result * LinearLayout.zeros(copies, "block", names[dim])
        return result

    def shape_of_one(self, shape: Sequence[int]) -> list[int]:
        """Shape of the part that one block holds."""
        if len(integers("The shape", shape)) != len(self.cta_order):
            raise LayoutError(f"{self} cuts {len(self.cta_order)} dims; the shape is {[*shape]}.")
        return [max(1, n // split) for n, split in zip(shape, self.cta_split_num, strict=True)]


class ClusteredLayout(Layout):
    """Base of the layouts that may be spread over the blocks of a cluster.

    A subclass declares these three fields last: all of them, or None, which means one block.
    """

    order: Sequence[int]
    ctas_per_cga: Sequence[int] | None
    cta_split_num: Sequence[int] | None
    cta_order: Sequence[int] | None

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.order)

    def _set_cluster(self, rank: int) -> None:
        given = (self.ctas_per_cga, self.cta_split_num, self.cta_order)
        if all(value is None for value in given):
            cluster = CTALayout.single(rank)
        elif self.ctas_per_cga is None or self.cta_split_num is None or self.cta_order is None:
            raise LayoutError(
                "ctas_per_cga, cta_split_num and cta_order describe a cluster together; "
                f"given are {given}."
            )
        else:
            cluster = CTALayout(self.ctas_per_cga, self.cta_split_num, self.cta_order)
        if len(cluster.ctas_per_cga) != rank:
            raise LayoutError(f"The cluster has {len(cluster.ctas_per_cga)} dims, not {rank}.")
        # One block has one canonical form, whatever order was given.
        cluster = CTALayout.single(rank) if cluster.is_single else cluster
        for name in _CLUSTER_FIELDS:
            object.__setattr__(self, name, getattr(cluster, name))

    @property
    def cta_layout(self) -> CTALayout:
        """The cluster as one value."""
        return CTALayout(*(getattr(self, name) for name in _CLUSTER_FIELDS))

    def _texts(self) -> list[str]:
        texts = super()._texts()
        return texts[: -len(_CLUSTER_FIELDS)] if self.cta_layout.is_single else texts


_CLUSTER_FIELDS = ("ctas_per_cga", "cta_split_num", "cta_order")


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)


# Checks of fields; each also turns the lists that users write into tuples.


def set_sizes(layout: object, rank: int, *names: str) -> None:
    """Check that each named field holds ``rank`` powers of two."""
    for name in names:
        values = _integers(layout, name)
        if len(values) != rank:
            raise LayoutError(f"{name} is {list(values)}; it needs {rank} numbers, one a dim.")
        for value in values:
            if not is_power_of_two(value):
                raise LayoutError(f"{name} {list(values)} has {value}, which is no power of two.")


def set_order(layout: object, name: str = "order") -> None:
    """Check that the named field is a permutation of the dims, as many as it has numbers."""
    values = _integers(layout, name)
    rank = len(values)
    if rank == 0:
        raise LayoutError(f"{name} is empty; a layout needs at least one dim.")
    if sorted(values) != list(range(rank)):
        raise LayoutError(f"{name} is {list(values)}; it must be a permutation of 0..{rank - 1}.")


def check_power_of_two(name: str, value: Any, least: int = 1, most: int | None = None) -> None:
    """Check that one number is a power of two within bounds."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if is_int and is_power_of_two(value) and least <= value <= (most or value):
        return
    bounds = f" of at least {least}" if most is None else f" from {least} to {most}"
    raise LayoutError(f"{name} is {value!r}; it must be a power of two{bounds}.")


def _integers(layout: object, name: str) -> tuple[int, ...]:
    values = integers(name, getattr(layout, name))
    object.__setattr__(layout, name, values)
    return values


def integers(name: str, given: object) -> tuple[int, ...]:
    """Check that a value is a list of integers, and make it a tuple."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise LayoutError(f"{name} is {given!r}; it must be a list of integers.")
    for value in given:
        if not isinstance(value, int) or isinstance(value, bool):
            raise LayoutError(f"{name} {list(given)} holds {value!r}, which is no integer.")
    return tuple(given)


def integer_lists(name: str, given: object) -> tuple[tuple[int, ...], ...]:
    """Check that a value is a list of lists of integers, and make them tuples."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise LayoutError(f"{name} is {given!r}; it must be a list of lists of integers.")
    return tuple(integers(name, item) for item in given)


# Building linear layouts


def start(in_dims: Sequence[str], rank: int) -> LinearLayout:
    """Make a layout of sizes 1 that fixes the order of the dims, to multiply others onto."""
    return LinearLayout(
        tuple((name, ()) for name in in_dims), tuple((name, 1) for name in dim_names(rank))
    )


def put(
    layout: LinearLayout, in_dim: str, sizes: Sequence[int], order: Sequence[int]
) -> LinearLayout:
    """Spread ``in_dim`` over the dims: the next ``sizes[d]`` indices along d, in order of d."""
    names = dim_names(len(layout.out_dims))
    for dim in order:
        layout = layout * LinearLayout.identity(sizes[dim], in_dim, names[dim])
    return layout


def grow(
    layout: LinearLayout, shape: Sequence[int], order: Sequence[int], in_dim: str
) -> LinearLayout:
    """Repeat along each dim, in order, until the layout is at least as large as the shape."""
    names = dim_names(len(shape))
    for dim in order:
        repeats = max(1, shape[dim] // layout.out_sizes[names[dim]])
        layout = layout * LinearLayout.identity(repeats, in_dim, names[dim])
    return layout


def shrink(layout: LinearLayout, shape: Sequence[int]) -> LinearLayout:
    """Cut what lies outside the shape: the vectors that lead there become broadcasts."""
    names = dim_names(len(shape))
    limits = dict(zip(names, shape, strict=True))
    bases = {
        name: [
            tuple(v if v < limits[out] else 0 for v, out in zip(vector, names, strict=True))
            for vector in vectors
        ]
        for name, vectors in layout.bases
    }
    sizes = {name: min(size, limits[name]) for name, size in layout.out_dims}
    return LinearLayout.from_bases(bases, sizes, surjective=False)


def fit(
    layout: LinearLayout,
    cluster: CTALayout,
    shape: Sequence[int],
    order: Sequence[int],
    in_dim: str = "register",
) -> LinearLayout:
    """Grow and shrink a block's layout to its part of the shape, then add the cluster."""
    part = cluster.shape_of_one(shape)
    own = shrink(grow(layout, part, order, in_dim), part)
    return own * shrink(cluster.to_linear(), shape)
