"""Compiles the calls that are warp-level matrix instructions.

TIR has two spellings of each. ``tirx.ptx_legacy.*`` takes pointers and offsets, as the tensor
intrinsics of ``tvm.s_tir.tensor_intrin.cuda`` do; the table ops ``tirx.ptx.*`` take each register
as an operand, and the modifiers as strings behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.ir.prim.expr import IntImm

from ...errors import NotModelled
from ...gpu.hardware import MATRIX_ROW_BYTES
from ...ir import ops
from ..matrix.load_store import load_matrices, store_matrices, torn_lanes, with_torn
from ..matrix.product import multiply, multiply_poison
from ..matrix.shapes import Product
from ..memory.access import AccessInstruction
from ..memory.local import LocalAccess
from ..memory.registers import RegisterExpression, Registers, read_all, write_all
from ..model.code import Run
from ..model.places import handle
from ..model.values import numpy_type
from .device import DeviceCompiler, operands_of
from .tile_loops import fill_tile, load_transposed_bytes, store_tile

_REGISTER = 4
_LEGACY_MMA_ARGUMENTS = 13


# Operands.


def _local_pointer(c: DeviceCompiler, pointer: Any, offset: Any, size: int) -> LocalAccess:
    """``size`` bytes at an element offset from a pointer into a local array."""
    place, index = c.pointee(pointer, local=True)
    if place.storage.scope != "local":
        raise NotModelled(
            f"A matrix instruction with registers in {place.storage.scope} memory, as those of "
            f"{place.name}, has no model here."
        )
    return c.register(place, index + offset, size)


def _shared_rows(c: DeviceCompiler, pointer: Any, offset: Any, kind: str) -> AccessInstruction:
    """The access of 16 bytes at an element offset from a pointer into shared memory."""
    place, index = c.pointee(pointer)
    if not place.storage.scope.startswith("shared"):
        raise NotModelled(f"{kind} of {place.name}: it must be shared memory, not global.")
    at = index if offset is None else index + offset
    name = c.names.of(place, at, MATRIX_ROW_BYTES)
    return c.access(place, at, MATRIX_ROW_BYTES // place.dtype.itemsize, True, kind, name)


def _element(c: DeviceCompiler, expr: Any) -> Any:
    """Place and constant index (or None) of a local array's element, if the expression is one."""
    if type(expr).__name__ != "TensorLoad":
        return None
    place = c.places.at(expr.source)
    if place.storage.scope != "local" or place.dtype.itemsize != _REGISTER:
        return None
    return place, expr.indices[0]


def registers_of(c: DeviceCompiler, operands: list[Any]) -> list[Registers]:
    """Operands of a table op, one register each; neighbours of one array go together."""
    parts: list[Registers] = []
    last: tuple[int, int] | None = None
    for expr in operands:
        if numpy_type(expr)[0].itemsize != _REGISTER:
            raise NotModelled(f"A matrix instruction with {expr} for a 32-bit register.")
        found = _element(c, expr)
        if found is None:
            parts.append(RegisterExpression(c.narrowed(expr)))
            last = None
            continue
        place, index = found
        here = (handle(expr.source), int(index.value)) if isinstance(index, IntImm) else None
        if here is not None and last is not None and here == (last[0], last[1] + 1):
            size = parts.pop().size + _REGISTER
            parts.append(c.register(place, index - (size // _REGISTER - 1), size))
        else:
            parts.append(c.register(place, index, _REGISTER))
        last = here
    return parts


def _table(call: Any) -> tuple[list[Any], list[str]]:
    """Operands and modifiers of a table op."""
    operands, (*tokens, flags) = operands_of(call)
    if any(flag == "pred" or flag[:1] == "s" for flag in flags.split(",")):
        raise NotModelled(f"The simulated GPU does not model {call.op.name} with a predicate.")
    return operands, tokens


# ldmatrix and stmatrix.


def _legacy_ldmatrix(c: DeviceCompiler, call: Any) -> Run | None:
    transpose, number, kind, local, local_at, shared, shared_at = call.args
    if str(kind.value) != ".b16":
        raise NotModelled(f"The simulated GPU does not model ldmatrix of {kind.value} elements.")
    matrices, trans = int(number.value), bool(transpose.value)
    if trans and numpy_type(call)[0].itemsize == 1:
        return load_transposed_bytes(c, call)
    to = _local_pointer(c, local, local_at, matrices * _REGISTER)
    access = _shared_rows(c, shared, shared_at, "ldmatrix")
    return load_matrices(access, [to], matrices, trans)


def _table_ldmatrix(c: DeviceCompiler, call: Any) -> Run:
    (*destination, pointer), tokens = _table(call)
    access = _shared_rows(c, pointer, None, "ldmatrix")
    matrices = int(tokens[3][1:])
    return load_matrices(access, registers_of(c, destination), matrices, "trans" in tokens)


def _table_stmatrix(c: DeviceCompiler, call: Any) -> Run:
    (pointer, *source), tokens = _table(call)
    access = _shared_rows(c, pointer, None, "stmatrix")
    matrices = int(tokens[3][1:])
    return store_matrices(access, registers_of(c, source), matrices, "trans" in tokens)


# mma.


def _product(
    c: DeviceCompiler,
    product: Product,
    a: list[Registers],
    b: list[Registers],
    before: list[Registers],
    after: list[Registers],
) -> Run:
    site = c.site("mma")

    def run(s: Any, m: Any) -> None:
        left, p = read_all(a, s, m, product.dtype("a"))
        right, q = read_all(b, s, m, product.dtype("b"))
        total, r = read_all(before, s, m, product.dtype("c"))
        result = multiply(product, left, right, total)
        codes = multiply_poison(product, p, q, r)
        codes = with_torn(codes, torn_lanes(s.batch, m, site, "mma"), len(result))
        write_all(after, s, m, result, codes)

    return run


def _legacy_mma(c: DeviceCompiler, call: Any) -> Run:
    if len(call.args) != _LEGACY_MMA_ARGUMENTS:
        raise NotModelled("The simulated GPU does not model mma of single bits.")
    shape, rows, columns, *operands, total_type = (str(name.value) for name in call.args[:6])
    a, a_at, b, b_at, d, d_at, saturate = call.args[6:]
    types = (total_type, *operands, total_type)
    product = Product.named(shape, (rows, columns), types, bool(saturate.value))
    parts = {"a": (a, a_at), "b": (b, b_at), "c": (d, d_at)}
    left, right, total = (
        _local_pointer(c, *parts[part], product.registers(part) * _REGISTER) for part in parts
    )
    return _product(c, product, [left], [right], [total], [total])


def _table_mma(c: DeviceCompiler, call: Any) -> Run:
    operands, tokens = _table(call)
    shape, rows, columns = tokens[2:5]
    saturate = "satfinite" in tokens
    types = tuple(t for t in tokens[5:] if t not in ("", "satfinite"))[:4]
    product = Product.named(shape, (rows, columns), types, saturate)
    parts = []
    for part in ("c", "a", "b", "c"):
        count = product.registers(part)
        parts.append(registers_of(c, operands[:count]))
        operands = operands[count:]
    after, left, right, before = parts
    return _product(c, product, left, right, before, after)


#: Op name -> its compiler.
MATRIX_CALLS: dict[str, Callable[[Any, Any], Run | None]] = {
    ops.PTX_LEGACY_LDMATRIX: _legacy_ldmatrix,
    ops.PTX_LEGACY_MMA: _legacy_mma,
    ops.MMA_FILL_LEGACY: fill_tile,
    ops.MMA_STORE_LEGACY: store_tile,
    ops.PTX_LDMATRIX: _table_ldmatrix,
    ops.PTX_STMATRIX: _table_stmatrix,
    ops.PTX_MMA: _table_mma,
    ops.PTX_MMA_F16ACC: _table_mma,
    ops.PTX_MMA_INT: _table_mma,
}
