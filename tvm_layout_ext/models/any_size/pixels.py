"""Convolutions of images of any size by ``wgmma``: read for some sizes, written for each call's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx

from ...analysis.contraction import Contraction
from ...errors import ScheduleError
from ...gpu.hardware import Architecture
from ...ir.annotations import MARK
from ...ir.queries import blocks_in, distinct, is_among, loads_in, substitute, uses, variables
from ...transform.hopper.any_size import with_pixels
from ...transform.hopper.lower_warpgroups import lowered
from ...tune.space.functions import blocks_of
from ...tune.space.off_tensor_cores import is_product
from ..rule import Scheduled, few_or_many
from .whole_tiles import resized

#: Numbers that stand for symbolic images, pixels of a result, and other sizes, twice: what differs
#: by them depends on a size. Pixels are more than one turn of all blocks; the last are few, so that
#: no bound of an image is proven by them.
_NUMBERS = (
    ((3, 5, 7, 11), (223, 227, 229), (17, 19, 23, 29)),
    ((5, 7, 11, 13), (233, 239, 241), (31, 37, 41, 43)),
)

#: So many pixels have a kernel of their own. Tiles are chosen for so many along each dim, in this
#: kernel and in that for more, and for so many images.
_MOST_FEW, _FEW, _MANY, _USUAL_IMAGES = 4096, 16, 64, 4

#: Schedules a function of known sizes by a tile for so many pixels along each dim that is symbolic;
#: None where ``wgmma`` is not for it.
Multiply = Callable[[tirx.PrimFunc, int], Scheduled | None]


def usual(product: Contraction, pixels: int) -> Contraction:
    """A product as if each symbolic dim had so many pixels."""
    values = {n: pixels for _, some, _ in _NUMBERS for n in some}
    values |= {n: _USUAL_IMAGES for some, *_ in _NUMBERS for n in some}
    extents = enumerate(product.extents)
    changed = tuple(values.get(n, n) if i in product.rows else n for i, n in extents)
    return replace(product, extents=changed)


def has_windows(func: tirx.PrimFunc) -> bool:
    """Whether a product reads windows of pixels, or every second one, of a symbolic number."""
    return any(
        any(uses(index, var) for var in _symbolic(block)) and not isinstance(index, tirx.Var)
        for _, block in blocks_of(func)
        if is_product(block)
        for load in loads_in(block.body.value)
        for index in load.indices
    )


def _symbolic(block: Any) -> list[Any]:
    return [one.var for one in block.iter_vars if variables(one.dom.extent)]


def of_any_pixels(func: tirx.PrimFunc, arch: Architecture, multiply: Multiply) -> Scheduled | None:
    """Kernels for images of any height and width; None if they are none for all sizes.

    TMA copies boxes of pixels, fills what is outside of an image with zeros, and drops what is
    outside of the result.
    """
    many = _of_pixels(func, arch, multiply, _MANY)
    few = many and _of_pixels(func, arch, multiply, _FEW)
    if not many or not few:
        return many
    product = next(block for _, block in blocks_of(func) if is_product(block))
    rows = prod(product.body.buffer.shape[:-1])
    return few_or_many(rows, _MOST_FEW, few, many, "pixels")


def _of_pixels(
    func: tirx.PrimFunc, arch: Architecture, multiply: Multiply, pixels: int
) -> Scheduled | None:
    """One kernel, which is the same by all numbers that stand for sizes, or None."""
    found = [_written(func, arch, multiply, pixels, numbers) for numbers in _NUMBERS]
    (one, text), (other, _) = found
    if one is None or other is None or not tvm_ffi.structural_equal(one, other):
        return None
    return Scheduled.of(one.with_attr(MARK, 1), text)


def _written(
    func: tirx.PrimFunc,
    arch: Architecture,
    multiply: Multiply,
    pixels: int,
    numbers: tuple[tuple[int, ...], ...],
) -> tuple[tirx.PrimFunc | None, str]:
    """The kernel by numbers that stand for sizes, which has the sizes."""
    values = _values(func, numbers)
    known = resized(func, {var: tirx.IntImm(var.ty, n) for var, n in values.items()})
    scheduled = multiply(known, pixels)
    if scheduled is None:
        return None, ""
    sizes = {n: var for var, n in values.items()}
    made = lowered(scheduled.function, arch, partial(with_pixels, sizes=sizes))
    if len(blocks_in(made.body)) > 1:
        return None, ""
    body = substitute(made.body, dict(zip(made.params, func.params, strict=True)))
    return tirx.PrimFunc(func.params, body, func.ret_type, attrs=func.attrs), scheduled.text


def _values(func: tirx.PrimFunc, numbers: tuple[tuple[int, ...], ...]) -> dict[Any, int]:
    """Numbers for all symbolic sizes, each another, and none that an extent is.

    Raises ScheduleError if they are too many.
    """
    extents = [n for param in func.params for n in getattr(param, "shape", ())]
    taken = {int(n) for n in extents if isinstance(n, tirx.IntImm)}
    product = next(block for _, block in blocks_of(func) if is_product(block))
    first, *rest = product.body.buffer.shape
    images, pixels, others = (iter([n for n in some if n not in taken]) for some in numbers)
    found: dict[Any, int] = {}
    batch = [first] if isinstance(first, tirx.Var) else []
    for var in distinct([*batch, *(v for n in (*rest, *extents) for v in variables(n))]):
        own = images if is_among(var, batch) else pixels if is_among(var, rest) else others
        number = next(own, None)
        if number is None:
            raise ScheduleError(
                f"{var.name} is one of too many sizes of a convolution that are symbolic, or the "
                "numbers that could stand for it are extents."
            )
        found[var] = number
    return found
