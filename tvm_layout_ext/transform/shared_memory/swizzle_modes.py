"""What a swizzle annotation says, and the placement that it comes to for a buffer.

The annotation of a block is a text, for the one buffer that it writes, or a list of buffer names
and texts in turn. A text is one of

* ``auto``: the cheapest of plain rows, XOR swizzles, byte swizzles and padding, by count;
* ``none``: plain rows;
* ``xor``, ``xor(vec, per_phase, max_phase)``: Triton's swizzle, derived from row and reads, or
  given;
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
from ...analysis.choose_shared import Choice, choose, choose_xor
from ...errors import LayoutError
from ...layout.base import Layout
from ...layout.linear import LinearLayout
from ...layout.placement import Strided, Xor, dense, hardware_swizzle, of_linear, padded, xor_rows
from ...layout.shared import NVMMASharedLayout, PaddedSharedLayout, SwizzledSharedLayout
from ...layout.text import parse

__all__ = ["check_mode", "mode_text", "place", "swizzle_text"]

_XOR = re.compile(r"xor\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)")
_PAD = re.compile(r"pad\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_BYTES = ("32B", "64B", "128B")
_LEGAL = (
    "it must be auto, none, xor, xor(vec, per_phase, max_phase), pad, pad(factor, offset), 32B, "
    "64B, 128B, a shared or linear layout, or look like '4,10;1,2'"
)


def swizzle_text(images: Sequence[Sequence[int]]) -> str:
    """Write a swizzle as the annotation has it.

    >>> swizzle_text([[4, 10], [1, 2], []])
    '4,10;1,2;'
    """
    return ";".join(",".join(map(str, bits)) for bits in images)


def mode_text(mode: Any) -> str:
    """Write a mode of the primitive as the annotation has it, checked.

    Parameters
    ----------
    mode : str, int, tuple of int, Layout or LinearLayout
        A text; 32, 64 or 128 bytes; (vec, per_phase, max_phase).

    Raises
    ------
    LayoutError
        If it is none of these.

    Examples
    --------
    >>> mode_text(128), mode_text((8, 2, 4)), mode_text("auto")
    ('128B', 'xor(8, 2, 4)', 'auto')
    """
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
        text = swizzle_text(of_linear(mode).images)
    else:
        text = mode if isinstance(mode, str) else repr(mode)
    check_mode(text)
    return text


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_mode(text: str) -> None:
    """Refuse a text that is no mode, as far as that can be said without the buffer.

    Raises
    ------
    LayoutError
        With the text and what would be legal.
    """
    if text in ("auto", "none", "xor", "pad", *_BYTES):
        return
    if (pad := _PAD.fullmatch(text)) is not None:
        factor, offset = map(int, pad.groups())
        if not 0 <= offset < factor:
            raise LayoutError(f"{text} needs 0 <= offset < factor.")
        return
    if (xor := _XOR.fullmatch(text)) is not None:
        SwizzledSharedLayout(*_three(xor), [1, 0])
        return
    if text.startswith(("xor", "pad")):
        raise LayoutError(f"The swizzle is {text!r}; {_LEGAL}.")
    if "(" in text:
        _shared_layout(text)
    else:
        _images(text)


def _shared_layout(text: str) -> Any:
    layout = parse(text)
    if isinstance(layout, SwizzledSharedLayout | NVMMASharedLayout | LinearLayout):
        return layout
    if isinstance(layout, PaddedSharedLayout):
        raise LayoutError(f"{text} has gaps by offset; ask for pad or pad(factor, offset) instead.")
    raise LayoutError(f"{text} is no layout of shared memory; {_LEGAL}.")


def _images(text: str) -> list[list[int]]:
    try:
        images = [[int(image) for image in bits.split(",") if image] for bits in text.split(";")]
        if min((image for bits in images for image in bits), default=0) <= 0:
            raise ValueError(text)
        return images
    except ValueError:
        raise LayoutError(f"The swizzle is {text!r}; {_LEGAL}.") from None


def place(
    text: str,
    shape: Sequence[int],
    element_bits: int,
    accesses: Callable[[], Sequence[Requests]],
) -> Choice:
    """Find where the elements of a buffer go by a mode.

    Parameters
    ----------
    text : str
        The mode.
    shape : sequence of int
        Of the buffer.
    element_bits : int
    accesses : callable
        Gives all accesses of the buffer; asked only where the choice needs counts.

    Returns
    -------
    Choice
        Named as a mode that would give the same placement; for ``auto``, ``pad`` and ``xor`` with
        the counts that decided.

    Raises
    ------
    LayoutError
        If the buffer's shape cannot be laid out so.

    Examples
    --------
    >>> place("xor", [128, 32], 16, list).name
    'xor(8, 2, 4)'
    >>> place("pad(32, 8)", [64, 32], 16, list).placement.strides
    (40, 1)
    """
    if text in ("auto", "pad"):
        return choose(shape, element_bits, accesses(), text)
    if text == "xor":
        return choose_xor(shape, element_bits, accesses())
    return _given(text, shape, element_bits)


def _given(text: str, shape: Sequence[int], element_bits: int) -> Choice:
    if text == "none":
        return Choice(text, dense(shape))
    if (xor := _XOR.fullmatch(text)) is not None:
        params = _three(xor)
        return Choice(f"xor{params}", xor_rows(shape, *params))
    if (pad := _PAD.fullmatch(text)) is not None:
        return Choice(text, _padded(shape, *map(int, pad.groups())))
    if text in _BYTES:
        return Choice(text, hardware_swizzle(shape, int(text[:-1]), element_bits))
    if "(" in text:
        return Choice(text, _laid_out(_shared_layout(text), shape, element_bits))
    return Choice(text, _checked(Xor(tuple(map(tuple, _images(text)))), shape))


def _three(match: re.Match[str]) -> tuple[int, int, int]:
    vec, per_phase, max_phase = map(int, match.groups())
    return vec, per_phase, max_phase


def _padded(shape: Sequence[int], factor: int, offset: int) -> Strided:
    if len(shape) < 2:
        raise LayoutError(f"A buffer of shape {list(shape)} has no rows to pad.")
    return padded(shape, (offset - shape[-1]) % factor)


def _laid_out(layout: Any, shape: Sequence[int], element_bits: int) -> Xor:
    if isinstance(layout, NVMMASharedLayout) and layout.element_bitwidth != element_bits:
        raise LayoutError(
            f"{layout!r} is for elements of {layout.element_bitwidth} bits, not {element_bits}."
        )
    linear = layout if isinstance(layout, LinearLayout) else layout.to_linear(_rounded(shape))
    alignment = 128 if isinstance(layout, LinearLayout) else max(128, layout.alignment)
    return _checked(Xor(of_linear(linear).images, alignment), shape)


def _rounded(shape: Sequence[int]) -> list[int]:
    return [1 << (shape[0] - 1).bit_length(), *shape[1:]]


def _checked(placement: Xor, shape: Sequence[int]) -> Xor:
    if len(placement.images) != len(shape):
        raise LayoutError(f"It has {len(shape)} dims, the swizzle {len(placement.images)}.")
    for dim, (extent, bits) in enumerate(zip(shape, placement.images, strict=True)):
        if extent > 1 << len(bits):
            raise LayoutError(
                f"It has {extent} elements along dim {dim}, the swizzle {1 << len(bits)}."
            )
    flat = [image for bits in placement.images for image in bits]
    if not _is_bijective(flat):
        raise LayoutError(f"It would have several elements at one offset: {flat}.")
    return placement


def _is_bijective(vectors: Sequence[int]) -> bool:
    """Whether the XORs of n vectors are the numbers below 2**n, each once."""
    if any(not 0 <= vector < 1 << len(vectors) for vector in vectors):
        return False
    pivots: dict[int, int] = {}
    for vector in vectors:
        rest = vector
        while rest and rest.bit_length() in pivots:
            rest ^= pivots[rest.bit_length()]
        if not rest:
            return False
        pivots[rest.bit_length()] = rest
    return True
