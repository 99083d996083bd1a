"""What a swizzle annotation says, and the placement that it comes to for a buffer.

The annotation of a block is a text, for the one buffer that it writes, or a list of buffer names
and texts in turn. A text is one of

* ``auto``: the cheapest of plain rows, XOR swizzles, byte swizzles and padding, by count;
* ``none``: plain rows;
* ``xor``, ``xor(vec, per_phase, max_phase)``: Triton's swizzle, chosen by count, or given;
* ``pad``, ``pad(factor, offset)``: rows whose stride is ``offset`` modulo ``factor`` elements;
* ``32B``, ``64B``, ``128B``: the swizzles of TMA and ``wgmma``;
* a layout's text, such as ``SwizzledShared(8, 2, 4, [1, 0])`` or ``Linear({offset: ...}, ...)``;
* ``4,10;1,2``: for each dim the offsets to which the bits of its index go, lowest bit first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ...analysis.bank_requests import Requests
from ...analysis.choose_shared import Choice, choose
from ...errors import LayoutError
from ...layout.base import Layout
from ...layout.linear import LinearLayout
from ...layout.placement import (
    Placement,
    Xor,
    check_placement,
    dense,
    hardware_swizzle,
    laid_out,
    of_linear,
    padded,
    xor_rows,
)
from ...layout.shared import NVMMASharedLayout, PaddedSharedLayout, SwizzledSharedLayout
from ...layout.text import parse

#: Modes that are decided by counting accesses.
COUNTED = ("auto", "xor", "pad")
_GIVEN = re.compile(r"(xor|pad)\(\s*(\d+(?:\s*,\s*\d+)*)\s*\)")
_BYTES = ("32B", "64B", "128B")
_LEGAL = (
    "it must be auto, none, xor, xor(vec, per_phase, max_phase), pad, pad(factor, offset), 32B, "
    "64B, 128B, a shared or linear layout, or look like '4,10;1,2'"
)


def mode_text(mode: Any) -> str:
    """Write a mode of the primitive as the annotation has it, or a LayoutError."""
    if isinstance(mode, bool) or not isinstance(mode, str | int | tuple | Layout | LinearLayout):
        raise LayoutError(f"The swizzle is {mode!r}; {_LEGAL}.")
    if isinstance(mode, tuple) and (len(mode) != 3 or not all(map(_is_count, mode))):
        raise LayoutError(
            f"The swizzle is {mode!r}; (vec, per_phase, max_phase) are three powers of two."
        )
    if isinstance(mode, int):
        text = f"{mode}B"
    elif isinstance(mode, tuple):
        text = "xor({}, {}, {})".format(*mode)
    elif isinstance(mode, LinearLayout):
        text = str(of_linear(mode))
    else:
        text = mode if isinstance(mode, str) else repr(mode)
    check_mode(text)
    return text


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_mode(text: str) -> None:
    """Refuse a text that is no mode, as far as that can be said without the buffer."""
    if text not in COUNTED:
        _given(text)


def place(
    text: str,
    shape: Sequence[int],
    element_bits: int,
    accesses: Callable[[], Sequence[Requests]],
) -> Choice:
    """Find where the elements of a buffer of some shape go by a mode, ``text``.

    ``accesses`` gives all accesses of the buffer, and is asked only where the choice needs counts.
    The choice is named as a mode that would give the same placement.
    """
    if text in COUNTED:
        return choose(shape, element_bits, accesses(), text)
    return Choice(text, _given(text)(shape, element_bits))


def _given(text: str) -> Callable[[Sequence[int], int], Placement]:
    """How a mode that says all places a buffer of some shape and element bits."""
    if text == "none":
        return lambda shape, _bits: dense(shape)
    if text in _BYTES:
        return lambda shape, bits: hardware_swizzle(shape, int(text[:-1]), bits)
    if (found := _GIVEN.fullmatch(text)) is not None:
        return _with_numbers(text, found[1], [int(one) for one in found[2].split(",")])
    if text.startswith(("xor", "pad")):
        raise LayoutError(f"The swizzle is {text!r}; {_LEGAL}.")
    if "(" in text:
        layout = _shared_layout(text)
        return lambda shape, bits: laid_out(layout, shape, bits)
    images = Xor(_images(text))
    return lambda shape, _bits: check_placement(images, shape)


def _with_numbers(
    text: str, kind: str, numbers: Sequence[int]
) -> Callable[[Sequence[int], int], Placement]:
    if kind == "xor" and len(numbers) == 3:
        vec, per_phase, max_phase = numbers
        SwizzledSharedLayout(vec, per_phase, max_phase, [1, 0])
        return lambda shape, _bits: xor_rows(shape, vec, per_phase, max_phase)
    if kind == "pad" and len(numbers) == 2:
        factor, offset = numbers
        if not 0 <= offset < factor:
            raise LayoutError(f"{text} needs 0 <= offset < factor.")
        return lambda shape, _bits: padded(shape, (offset - shape[-1]) % factor)
    raise LayoutError(f"The swizzle is {text!r}; {_LEGAL}.")


def _shared_layout(text: str) -> Any:
    layout = parse(text)
    if isinstance(layout, SwizzledSharedLayout | NVMMASharedLayout | LinearLayout):
        return layout
    if isinstance(layout, PaddedSharedLayout):
        raise LayoutError(f"{text} has gaps by offset; ask for pad or pad(factor, offset) instead.")
    raise LayoutError(f"{text} is no layout of shared memory; {_LEGAL}.")


def _images(text: str) -> tuple[tuple[int, ...], ...]:
    try:
        images = tuple(
            tuple(int(image) for image in bits.split(",") if image) for bits in text.split(";")
        )
    except ValueError:
        images = ((0,),)
    if min((image for bits in images for image in bits), default=0) <= 0:
        raise LayoutError(f"The swizzle is {text!r}; {_LEGAL}.")
    return images
