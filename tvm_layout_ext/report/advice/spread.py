"""Advice on sums that have fewer tiles than the GPU has multiprocessors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from ...analysis.contraction import read_contraction
from ...errors import LayoutExtError
from ...gpu.hardware import MULTIPROCESSORS
from ...gpu.measured import H200
from ...ir.annotations import TENSOR_CORE
from ...ir.queries import blocks_in, is_among
from .trial import Advice, Question

#: Terms of a sum that a slice should have at least.
_TERMS = 64


def advise(question: Question) -> Iterator[Advice]:
    """Cut the only sum into slices, as many as there are multiprocessors for.

    A kernel more adds them up, so that the time that is saved has to be worth its start.
    """
    limit, sums = question.now.limit, _sums(question)
    if limit is None or not limit.is_unspread or len(sums) != 1:
        return
    (one,), blocks = sums, limit.work.blocks
    most = min(MULTIPROCESSORS // blocks, one.terms // _TERMS)
    slices = max((n for n in range(1, most + 1) if one.terms % n == 0), default=1)
    saved = limit.seconds * (1 - 1 / slices) - H200.launch
    if saved <= 0:
        return
    yield Advice(
        f"{blocks} of {MULTIPROCESSORS} multiprocessors work: {slices} slices of the {one.terms} "
        f"terms of {one.name} make {blocks * slices} blocks",
        one.te_line(slices) if question.is_te else one.line(slices),
        saved,
        tried=False,
    )


@dataclass(frozen=True)
class _Sum:
    """A block that adds up, in the words of the program before anything was done to it."""

    name: str
    terms: int  #: That can be cut
    axis: int  #: Position of the axis that has them, among those of the block
    number: int  #: The same among the summed axes
    is_product: bool

    def line(self, slices: int) -> str:
        if self.is_product:
            return (
                f'cut = sch.split_k("{self.name}", slices={slices})  '
                f"# first; then tile cut.partial for {self.name}"
            )
        loop = f'sch.get_loops("{self.name}")[{self.axis}]'
        return (
            f"outer, _ = sch.split({loop}, [{slices}, None])  # first\n"
            f"cut = sch.rfactor(outer, 0)  # then tile cut for {self.name}"
        )

    def te_line(self, slices: int) -> str:
        stage = f's["{self.name}"]'
        return (
            f"outer, _ = {stage}.split({stage}.op.reduce_axis[{self.number}], nparts={slices})"
            f"  # first\n"
            f"cut = s.rfactor({stage}.op.output(0), outer)  # then tile s[cut] for {stage}"
        )


def _sums(question: Question) -> list[_Sum]:
    """Each sum of the program, that of tiles as one."""
    found = []
    for block in question.blocks.values():
        if blocks_in(block.body) or not _summed(block):
            continue
        around = [b for b in question.blocks.values() if is_among(block, blocks_in(b.body))]
        found.append(_read(block, around, question.is_te))
    return found


def _read(block: Any, around: list[Any], is_te: bool) -> _Sum:
    axes = _summed(block)
    is_product = any(TENSOR_CORE in b.annotations for b in around) or _is_product(block)
    axis = max(axes, key=lambda at: axes[at])
    of_tiles = prod(n for b in around for n in _summed(b).values())
    terms = prod(axes.values()) if is_product and not is_te else axes[axis]
    name = str(block.name_hint).removesuffix("_update")
    return _Sum(name, terms * of_tiles, axis, list(axes).index(axis), is_product)


def _summed(block: Any) -> dict[int, int]:
    """Extents of the summed axes by their positions."""
    kinds = tirx.IterVar.CommReduce
    return {
        at: int(axis.dom.extent)
        for at, axis in enumerate(block.iter_vars)
        if axis.iter_type == kinds and isinstance(axis.dom.extent, tirx.IntImm)
    }


def _is_product(block: Any) -> bool:
    try:
        return bool(read_contraction(block))
    except LayoutExtError:
        return False
