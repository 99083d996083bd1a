"""Indices of linear layouts as TIR expressions: shifts, masks, and XOR only where bits meet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from tvm import tirx

from ...layout import LinearLayout
from ...layout.conversion.per_thread import bit_fields


def coordinates(layout: LinearLayout, indices: Mapping[str, Any]) -> dict[str, Any]:
    """An index for each output dim of a layout: an int where all that matters is known."""
    return {name: _coordinate(layout, name, indices) for name in layout.out_names}


def _coordinate(layout: LinearLayout, out_dim: str, indices: Mapping[str, Any]) -> Any:
    total: Any = 0
    for field in bit_fields(layout, out_dim):
        parts = [
            _extract(indices[dim], layout.in_sizes[dim], bit, field.width)
            for dim, bit in field.sources
        ]
        total = total + _meet(parts) * (1 << field.first)
    return total


def _extract(index: Any, size: int, bit: int, width: int) -> Any:
    """Some bits of an index, moved to the bottom."""
    if isinstance(index, int):
        return index >> bit & (1 << width) - 1
    shifted = tirx.floordiv(index, 1 << bit) if bit else index
    return shifted if 1 << (bit + width) == size else tirx.floormod(shifted, 1 << width)


def _meet(parts: list[Any]) -> Any:
    known = reduce(lambda a, b: a ^ b, (p for p in parts if isinstance(p, int)), 0)
    open_ = [p for p in parts if not isinstance(p, int)]
    if not open_:
        return known
    return reduce(tirx.bitwise_xor, [*open_, known] if known else open_)
