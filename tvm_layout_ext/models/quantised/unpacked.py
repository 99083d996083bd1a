"""Products by weights that a block of their function unpacks, and what an element of these is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx

from ...analysis.contraction import Contraction, Operand, read_contraction
from ...errors import ScheduleError
from ...ir.queries import is_among, loads_in, substitute
from ...ir.walk import top_statements
from ...tune.space.functions import blocks_of
from ..few_rows.product import RowsProduct, follows, has_numbers
from ..products import inlined

_WIDE = "float32"
#: The bits of 2**23 as a float: with an integer of up to 23 bits in its mantissa it is their sum.
_MAGIC, _POWER = 0x4B000000, 1 << 23


def read_unpacked(func: tirx.PrimFunc) -> RowsProduct | None:
    """Take such a function apart; None if no block unpacks an operand of a product.

    Two products of the same rows may meet in what is computed of both.

    Raises
    ------
    ScheduleError
        If there is one, and the function is something else.
    """
    sch, products = inlined(func)
    if len(products) not in (1, 2):
        return None
    func = sch.mod["main"]
    blocks = [block for _, block in blocks_of(func)]
    multiplied = [one for one in blocks if str(one.name_hint) in products]
    found = [_side(blocks, one) for one in multiplied]
    sides = [one for one in found if one is not None]
    if len(sides) < len(found):
        return None
    made = [*multiplied, *(one.maker for one in sides)]
    after = tuple(one for one in blocks if not is_among(one, made))
    name = " and ".join(one.name_hint for one in multiplied)
    if len(blocks) != len(top_statements(func)) or not all(
        follows(one, product) for one in after for product in multiplied
    ):
        raise ScheduleError(f"Block {name} is not all that its function computes.")
    read = [_read(func, block, after, side) for block, side in zip(multiplied, sides, strict=True)]
    if len(read) == 1:
        return read[0]
    if not after or not _have_same_rows(*read):
        raise ScheduleError(f"Blocks {name} are not of the same rows, or meet in no value.")
    return replace(read[0], beside=read[1])


class _UnpackedFactor(NamedTuple):
    """The block that unpacks a factor of a product, and both factors."""

    maker: Any
    what: Contraction
    own: Operand
    other: Operand


def _side(blocks: list[Any], product: Any) -> _UnpackedFactor | None:
    """The factor of a product that a block unpacks, or None if that is none or both."""
    what = read_contraction(product)
    pairs = [(what.a, what.b), (what.b, what.a)]
    found = [(_maker(blocks, own.buffer), what, own, other) for own, other in pairs]
    sides = [_UnpackedFactor(*one) for one in found if one[0] is not None]
    return sides[0] if len(sides) == 1 else None


def _read(
    func: tirx.PrimFunc, product: Any, after: tuple[Any, ...], side: _UnpackedFactor
) -> RowsProduct:
    """A product by a factor that is unpacked."""
    what, name = side.what, product.name_hint
    is_last = side.own is what.b
    own, rows = (what.columns, what.rows) if is_last else (what.rows, what.columns)
    wide = [i for i in what.batch if what.extents[i] > 1]
    n, k = ([i for i in group if what.extents[i] > 1] for group in (own, what.depth))
    if wide or len(n) != 1 or len(k) != 1 or not has_numbers(product):
        raise ScheduleError(f"Block {name} has a batch, or several or symbolic n or k.")
    loads = loads_in(product.body)
    load = next(one for one in loads if one.source.same_as(side.own.buffer))
    values = dict(zip((one.var for one in side.maker.iter_vars), load.indices, strict=True))
    written = substitute(side.maker.body.value, values)
    packed, each = _packed(written, product.iter_vars[k[0]])
    x = next(one for one in loads if one.source.same_as(side.other.buffer))
    weights = widened(written), written, packed
    return RowsProduct(func, product, after, what, *weights, each, x, n[0], k[0], tuple(rows))


def _have_same_rows(one: RowsProduct, other: RowsProduct) -> bool:
    """Whether two products have the same sizes, and one factor in common."""
    variables = zip(other.block.iter_vars, one.block.iter_vars, strict=False)
    same = {theirs.var: own.var for theirs, own in variables}
    indices = [substitute(i, same) for i in other.x.indices]
    return (
        (one.what.extents, one.n, one.k, one.rows)
        == (other.what.extents, other.n, other.k, other.rows)
        and one.x.source.same_as(other.x.source)
        and all(map(tvm_ffi.structural_equal, one.x.indices, indices))
    )


def _maker(blocks: list[Any], buffer: Any) -> Any | None:
    """The block that unpacks a buffer from integers, an element from elements."""
    for block in blocks:
        store = block.body
        if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(buffer):
            continue
        is_plain = block.init is None and len(store.indices) == len(block.iter_vars)
        same = is_plain and all(
            at.same_as(one.var) for at, one in zip(store.indices, block.iter_vars, strict=True)
        )
        if same and any("int" in str(load.source.dtype) for load in loads_in(store.value)):
            return block
    return None


def _packed(weight: Any, k: Any) -> tuple[Any, int]:
    """The buffer whose neighbours along ``k`` are unpacked, and weights of an element of it."""
    for load in loads_in(weight):
        length, at = load.source.shape[-1], load.indices[-1]
        if "int" not in str(load.source.dtype) or not isinstance(length, tirx.IntImm):
            continue
        each, rest = divmod(int(k.dom.extent), int(length))
        counted = k.var if each == 1 else tirx.floordiv(k.var, each)
        if not rest and each and tvm.sym.Analyzer().can_prove_equal(at, counted):
            return load.source, each
    raise ScheduleError(
        f"No integers that {k.var.name} counts through in memory are unpacked; weights are to be "
        "packed along the terms of the product."
    )


def widened(value: Any) -> Any:
    """An expression of narrow floats in float32, whose integers become floats by their bits.

    A multiprocessor converts 16 integers a cycle, and puts 128 into a mantissa.
    """
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(value.value), _WIDE)
    if isinstance(value, tirx.Add | tirx.Sub | tirx.Mul) and "float" in str(value.ty.dtype):
        first, second = widened(value.a), widened(value.b)
        if isinstance(value, tirx.Sub) and isinstance(first, tirx.Sub):
            both = [getattr(one, "value", 0.5) for one in (first.b, second)]
            if all(isinstance(one, int | float) and one == int(one) for one in both):
                # Whole numbers below 2**24, of which float32 has all.
                return first.a - tirx.const(sum(both), _WIDE)
        return type(value)(first, second)
    if isinstance(value, tirx.Cast) and "float" in str(value.ty.dtype):
        inner = value.value
        if "float" in str(inner.ty.dtype):
            return widened(inner)
        known = tvm.sym.Analyzer().const_int_bound(inner)
        low, high = int(known.min_value), int(known.max_value)
        if high - low < _POWER:
            least = min(low, 0)
            count = tirx.Cast("int32", inner) - least if least else inner
            bits = tirx.bitwise_or(tirx.Cast("uint32", count), tirx.const(_MAGIC, "uint32"))
            return tirx.reinterpret(_WIDE, bits) - tirx.const(_POWER - least, _WIDE)
    return value if str(value.ty.dtype) == _WIDE else tirx.Cast(_WIDE, value)
