"""What one thread does under a distributed layout: its registers, and runs of them in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import LayoutError
from ..f2 import Columns
from ..linear import LinearLayout


@dataclass(frozen=True)
class Field:
    """``width`` neighbouring bits of an index from ``first`` on, made of ``sources``."""

    first: int
    width: int
    sources: tuple[tuple[str, int], ...]


def bit_fields(layout: LinearLayout, out_dim: str) -> tuple[Field, ...]:
    """Cut one output index into as few fields as possible, so that it can be computed by shifts."""
    sources = _sources(layout, out_dim)
    fields, bit = [], 0
    while bit < len(sources):
        width = 1
        while bit + width < len(sources) and sources[bit + width] == [
            (name, first + width) for name, first in sources[bit]
        ]:
            width += 1
        if sources[bit]:
            fields.append(Field(bit, width, tuple(sources[bit])))
            bit += width
        else:
            bit += 1
    return tuple(fields)


def _sources(layout: LinearLayout, out_dim: str) -> list[list[tuple[str, int]]]:
    """For each bit of an output index, the input bits that are XORed there."""
    at = layout.out_names.index(out_dim)
    bits = (layout.out_sizes[out_dim] - 1).bit_length()
    return [
        [
            (name, i)
            for name, vectors in layout.bases
            for i, vector in enumerate(vectors)
            if vector[at] >> bit & 1
        ]
        for bit in range(bits)
    ]


def per_thread(layout: LinearLayout) -> LinearLayout:
    """Join lanes and warps to one dim ``thread``, and drop registers that are only copies."""
    if layout.in_sizes.get("block", 1) > 1:
        raise LayoutError(
            f"The layout spreads the tensor over {layout.in_sizes['block']} blocks of a cluster; "
            "a register tile belongs to one block."
        )
    kept = layout.without_zero_bases("register")
    if Columns(kept.flat_basis("register")).free:
        raise LayoutError("The layout keeps some elements in several registers of one thread.")
    return join_threads(kept)


def join_threads(layout: LinearLayout) -> LinearLayout:
    """Join lanes and warps to one dim, whatever the outputs are; other inputs go."""
    thread = layout.basis("lane") + layout.basis("warp")
    bases = ("register", layout.basis("register")), ("thread", thread)
    return LinearLayout(bases, layout.out_dims)


def split_input(layout: LinearLayout, dim: str, parts: Mapping[str, Sequence[int]]) -> LinearLayout:
    """Replace an input dim by several, each made of some of its bits."""
    vectors = layout.basis(dim)
    bases = {name: [vectors[bit] for bit in bits] for name, bits in parts.items()}
    bases |= {name: list(own) for name, own in layout.bases if name != dim}
    return LinearLayout.from_bases(bases, layout.out_sizes, surjective=False)


def contiguous_bits(layout: LinearLayout, out_dim: str, most: int) -> tuple[int, ...]:
    """Find the register bits that step through neighbours of an output index, lowest first.

    As in a vector access, the run begins at a multiple of its length: no other input touches the
    low bits of the index, and the run moves no other index. ``most``, a power of two, is the
    longest run wanted.
    """
    at = layout.out_names.index(out_dim)
    registers = layout.basis("register")
    run: list[int] = []
    while 2 << len(run) <= most:
        unit = tuple(1 << len(run) if i == at else 0 for i in range(len(layout.out_dims)))
        if unit not in registers:
            break
        run.append(registers.index(unit))
    while run and _touches(layout, at, run):
        run.pop()
    return tuple(run)


def _touches(layout: LinearLayout, at: int, run: Sequence[int]) -> bool:
    """Whether an input bit outside the run reaches the bits that the run steps through."""
    low = (1 << len(run)) - 1
    return any(
        vector[at] & low
        for name, vectors in layout.bases
        for bit, vector in enumerate(vectors)
        if not (name == "register" and bit in run)
    )


def same_thread(wanted: LinearLayout, held: LinearLayout) -> LinearLayout | None:
    """Find in which register each thread itself holds the elements that it wants.

    Both lead from register and thread to the tensor (:func:`per_thread`). What is wanted may be
    smaller than what is held. The result leads from registers of ``wanted`` to those of ``held``;
    None if some thread lacks an element, or holds it in another register than its neighbours.
    """
    wanted = LinearLayout(wanted.bases, held.out_dims)
    if wanted.basis("thread") != held.basis("thread"):
        return None
    columns = Columns(held.flat_basis("register"))
    bits = [columns.solve(vector) for vector in wanted.flat_basis("register")]
    if None in bits:
        return None
    images = [(bit,) for bit in bits if bit is not None]
    sizes = {"register": held.in_sizes["register"]}
    return LinearLayout.from_bases({"register": images}, sizes, surjective=False)
