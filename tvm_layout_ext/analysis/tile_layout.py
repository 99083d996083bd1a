"""Between our linear layouts and ``tvm.tirx.layout.TileLayout``.

A TileLayout cuts the row-major number of an element into digits and adds each, times a stride, to a
named axis. Where all digits and strides are powers of two and no two overlap, that is a linear
layout each of whose basis vectors has one bit set, and the other way round. A swizzle, which sets
two bits, has no TileLayout.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import tirx
from tvm.tirx.layout import Iter, TileLayout

from ..errors import LayoutError
from ..hardware import WARP_SIZE
from ..layout import LinearLayout
from ..layout.base import integers
from ..layout.linear import check_linear

__all__ = ["from_tile_layout", "to_tile_layout"]

#: Input dim of a linear layout -> axis of a TileLayout.
AXES = {"register": "m", "offset": "m", "lane": "laneid", "warp": "warpid", "block": "cbx"}
#: Axis of a TileLayout -> input dim; ``wid_in_wg`` numbers the warps of a warp group.
INPUTS = {"laneid": "lane", "warpid": "warp", "wid_in_wg": "warp", "cbx": "block"}
LANE_BITS = WARP_SIZE.bit_length() - 1
#: Axes that number the threads of a block or of a warp group.
THREAD_AXES = ("tx", "tid_in_wg")


def to_tile_layout(linear: LinearLayout) -> TileLayout:
    """Write a linear layout as a TileLayout of the tensor.

    Parameters
    ----------
    linear : LinearLayout
        From register, lane, warp and block, or from offset and block, to ``dim0``, ``dim1``, ...

    Raises
    ------
    LayoutError
        If a basis vector has two bits set, as in a swizzle, or two vectors are equal.
    """
    check_linear(linear, "A TileLayout is made of a linear layout")
    flat = linear.transpose_outs(linear.out_names[::-1]).flatten_outs("element")
    axes = dict(AXES)
    if linear.basis("block") and not linear.basis("warp"):
        # TVM wants the scopes between lane and cluster; a single warp's lanes are its threads.
        axes["lane"] = "tx"
    digits: dict[int, Iter] = {}
    copies = []
    for name, vectors in flat.bases:
        for bit, (element,) in enumerate(vectors):
            digit = Iter(2, 1 << bit, axes.get(name, name))
            if element == 0:
                copies.append(digit)
                continue
            if element & (element - 1) or element in digits:
                raise LayoutError(
                    f"{linear} has no TileLayout: {name} {1 << bit} is a sum or twin."
                )
            digits[element] = digit
    if len(digits) != flat.rank or not flat.is_surjective():
        raise LayoutError(f"{linear} has no TileLayout: it leaves out elements.")
    shard = [digits[element] for element in sorted(digits, reverse=True)]
    return TileLayout.from_iters(shard or [Iter(1, 1, "m")], copies).canonicalize()


def from_tile_layout(
    tile: TileLayout, shape: Sequence[int], memory: str = "register"
) -> LinearLayout:
    """Read a TileLayout of a tensor as a linear layout.

    Parameters
    ----------
    tile : TileLayout
        Axes ``laneid``, ``warpid``, ``wid_in_wg`` and ``cbx`` become lane, warp and block, ``tx``
        and ``tid_in_wg`` lane and warp.
    shape : sequence of int
        The tensor's shape.
    memory : str
        What axis ``m`` is: ``register`` or ``offset``.

    Raises
    ------
    LayoutError
        If a digit or stride is no power of two, or the axes overlap, have gaps or an offset.
    """
    if not isinstance(tile, TileLayout):
        raise LayoutError(f"{tile} is no TileLayout; a swizzle on one cannot be read.")
    shape = integers("The shape", shape)
    if tile.offset:
        raise LayoutError(f"{tile} begins at an offset, which is not linear.")
    found: dict[str, dict[int, int]] = {}
    element = prod(shape)
    for digit in tile.shard:
        extent = _constant(digit.extent, "extent")
        element //= extent
        _place(found, digit, memory, element)
    if element != 1:
        raise LayoutError(f"{tile} does not lay out {prod(shape)} elements of shape {list(shape)}.")
    for digit in tile.replica:
        _place(found, digit, memory, 0)
    ins = (memory, "lane", "warp", "block") if memory == "register" else (memory, "block")
    bases = {name: _column(found.pop(name, {}), name) for name in ins}
    if found:
        raise LayoutError(f"{tile} has axes that are not modelled: {', '.join(found)}.")
    flat = LinearLayout.from_bases(bases, {"element": prod(shape)})
    sizes = {f"dim{i}": n for i, n in reversed([*enumerate(shape)])}
    return flat.reshape_outs(sizes).transpose_outs([f"dim{i}" for i in range(len(shape))])


def _place(found: dict[str, dict[int, int]], digit: Iter, memory: str, element: int) -> None:
    """Note the image of each bit of a digit; ``element`` is the stride in the tensor, 0 a copy."""
    extent, stride = _constant(digit.extent, "extent"), _constant(digit.stride, "stride")
    for bit in range(extent.bit_length() - 1):
        name, index = _input_bit(digit.axis.name, stride.bit_length() - 1 + bit, memory)
        if index in found.setdefault(name, {}):
            raise LayoutError(f"Axis {digit.axis.name!r} has two digits at stride {stride << bit}.")
        found[name][index] = element << bit


def _input_bit(axis: str, bit: int, memory: str) -> tuple[str, int]:
    if axis in THREAD_AXES:
        return ("lane", bit) if bit < LANE_BITS else ("warp", bit - LANE_BITS)
    return {**INPUTS, "m": memory}.get(axis, axis), bit


def _column(bits: dict[int, int], name: str) -> list[tuple[int]]:
    if sorted(bits) != list(range(len(bits))):
        raise LayoutError(f"Bits {sorted(bits)} of {name} are used, which leaves gaps.")
    return [(bits[i],) for i in range(len(bits))]


def _constant(value: object, what: str) -> int:
    number = int(value.value) if isinstance(value, tirx.IntImm) else value
    if not isinstance(number, int) or number <= 0 or number & (number - 1):
        raise LayoutError(f"A TileLayout has {what} {value}, which is no power of two.")
    return number
