"""The rule for some rows by packed weights: unpacked in registers, multiplied by ``mma.sync``.

The kernel is that of :mod:`..few_rows.mma_rows`, whose lanes unpack what they have read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T
from tvm.target import Target

from ...errors import ScheduleError
from ...gpu.hardware import MAX_ACCESS_BYTES, architecture
from ...ir.queries import distinct, loads_in, substitute
from ...ir.rebuild import sequence
from ..few_rows.mma_rows import PTX, ROWS, WARPS, MmaRows
from ..few_rows.product import RowsProduct
from ..on_tensor_cores import by_warpgroups, on_tensor_cores
from ..rule import Scheduled, either
from .unpacked import read_unpacked

#: Rows of ``x`` at most: with more, weights are unpacked into memory and multiplied by ``wgmma``.
MOST_ROWS = 64
#: Rows of the kernels of which one is chosen at each call, the most first.
_BOUNDS = (64, 32, 8)
#: As many warps at most share the terms of a column.
_MOST_SHARING = WARPS
#: Warps of a multiprocessor below which several share the terms of a column, of up to 16 rows and
#: of more, and bytes of ``x`` in shared memory, which are others by the eights of rows and whether
#: all warps of a block share a column: of 4 rows by 28672 x 4096 24 warps and 32 KB took 29.7 us,
#: 12 and 64 KB 35.5, of 32 rows 77.9 and 51.9; of 4 by 4096 x 14336, whose warps share columns,
#: 16 KB took 22.7 and 32 25.9 (H200, ``benchmarks/results/h200_packed.json``).
_BUSY = (24, 12)
_STAGED, _OTHERS = 65536, {(1, False): 32768, (1, True): 16384, (2, False): 32768}
#: Bytes up to which all of ``x`` is in shared memory, as that of a single row is.
_WHOLE = 32768
#: Vectors of packed weights that a lane holds.
_TOGETHER = 4
#: By type: the bits of a number to which integers are added in the lowest bits, the number, and
#: how many of these bits there are. The next bit doubles the number.
_MAGIC = {"float16": (0x6400, 1024, 10), "bfloat16": (0x4300, 128, 7)}
#: Bits of a word of packed weights, and the lowest capability whose ``mma.sync`` has 16 terms.
_WORD, _CAPABILITY = 32, (8, 0)


def tensor_rows(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Write a kernel of a product of up to :data:`MOST_ROWS` rows by weights that are packed.

    None where nothing is unpacked, or otherwise than as ``(q - c) * scale``. Where rows are
    symbolic the host chooses at each call, and more go the way of other products.
    """
    if architecture(str(target.attrs["arch"])).capability < _CAPABILITY:
        return None
    sizes = distinct(
        n for p in func.params for n in getattr(p, "shape", ()) if isinstance(n, tirx.Var)
    )
    if sizes:
        # A size that is handed over by itself is that of no operand.
        are_rows = len(sizes) == 1 and not any(sizes[0].same_as(p) for p in func.params)
        return _of_any_rows(func, sizes[0], target) if are_rows else None
    product = read_unpacked(func)
    if product is None or product.count > MOST_ROWS:
        return None
    kernel = _kernel(product, product.count)
    return None if kernel is None else _scheduled(kernel, kernel.function())


def is_taken(func: tirx.PrimFunc) -> bool:
    """Whether :func:`tensor_rows` has a kernel of a function of known rows."""
    try:
        product = read_unpacked(func)
    except ScheduleError:
        return False
    return product is not None and _kernel(product, product.count) is not None


def _of_any_rows(func: tirx.PrimFunc, size: Any, target: Target) -> Scheduled | None:
    """Kernels of so many rows each, and what other products of any rows have for more."""
    kernels = []
    for most in _BOUNDS:
        known = substitute(func, {size: tirx.IntImm(size.ty, most)})
        product = read_unpacked(known)
        kernel = _kernel(product, size) if product and product.count == most else None
        if kernel is None:
            return None
        made = kernel.function()
        body = substitute(made.body, dict(zip(made.params, func.params, strict=True)))
        again = tirx.PrimFunc(func.params, body, func.ret_type, attrs=func.attrs)
        kernels.append((most, _scheduled(kernel, again)))
    found = by_warpgroups(func, target) or on_tensor_cores(func, target)
    if found is None:
        return None
    for most, few in kernels:
        found = either(size <= most, few, found, f"of up to {most} rows {few.text}; {found.text}")
    return found


def _kernel(product: RowsProduct, count: Any) -> TensorRows | None:
    """The kernel of a product of up to as many rows as it has, or None if it is not legal."""
    forms = [_form(one) for one in product.members]
    known = [one for one in forms if one is not None]
    # Members are unpacked by the same instructions.
    if len(known) < len(forms) or len({one[:2] for one in known}) > 1:
        return None
    kernel = TensorRows(product, count, *known[0][:2], [one[2] for one in known])
    return kernel if kernel.vectors and kernel.fits() else None


def _scheduled(kernel: TensorRows, func: tirx.PrimFunc) -> Scheduled:
    name = " and ".join(one.block.name_hint for one in kernel.product.members)
    return Scheduled.of(func, f"{name} by packed weights, {kernel.text()}")


def _form(product: RowsProduct) -> tuple[int, int, Any] | None:
    """Bits of a weight, what is taken from it, and its scale, or None if it has another form."""
    value, dtype = product.written, str(product.x.source.dtype)
    if not isinstance(value, tirx.Mul) or dtype not in _MAGIC or str(value.ty.dtype) != dtype:
        return None
    sides = [value.a, value.b]
    packed = [any(x.source.same_as(product.packed) for x in loads_in(one)) for one in sides]
    if sum(packed) != 1 or str(product.packed.dtype) != f"uint{_WORD}":
        return None
    count, scale = sides if packed[0] else sides[::-1]
    taken = 0.0
    if isinstance(count, tirx.Sub) and isinstance(count.b, tirx.FloatImm):
        count, taken = count.a, float(count.b.value)
    bits = _WORD // product.each
    _, base, most = _MAGIC[dtype]
    largest = base if bits <= most else 2 * base
    if bits not in (4, 8) or not _is_exact(dtype, largest + taken) or abs(taken) > largest:
        return None
    if not isinstance(count, tirx.Cast) or not _are_digits(product, count.value, bits):
        return None
    return bits, int(taken), scale


def _is_exact(dtype: str, value: float) -> bool:
    return value == int(value) and float(np.array(value).astype(dtype)) == value


def _are_digits(product: RowsProduct, value: Any, bits: int) -> bool:
    """Whether neighbours along the terms are the digits of a word, the first the lowest."""
    word, k = tirx.Var("word", f"uint{_WORD}"), product.block.iter_vars[product.k].var
    simple = tvm.sym.Analyzer().simplify

    def load(node: Any) -> Any:
        return word if node.source.same_as(product.packed) else node

    value = tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, load)], order="post")
    mask = tirx.const((1 << bits) - 1, word.ty.dtype)
    for e in range(product.each):
        found = simple(substitute(value, {k: tirx.IntImm(k.ty, e)}))
        shift = tirx.const(e * bits, word.ty.dtype)
        forms = [simple((word >> shift) & mask)]
        forms += [simple(word & mask)] if e == 0 else []
        if not any(tvm_ffi.structural_equal(found, one) for one in forms):
            return False
    return True


def _do(call: Any) -> Any:
    return tirx.Evaluate(call)


class TensorRows(MmaRows):
    """Weights that are unpacked in registers: two that lie half a word apart take one ``LOP3``."""

    along, how = 1, ", unpacked in registers"

    def __init__(
        self, product: RowsProduct, count: Any, bits: int, taken: int, scales: Sequence[Any]
    ) -> None:
        tiles = -(-product.count // ROWS)
        most = _MOST_SHARING if tiles < 4 else _MOST_SHARING // 2
        words = MAX_ACCESS_BYTES * 8 // _WORD
        super().__init__(product, count, words, product.each, _BUSY[tiles > 2], most)
        self.bits, self.taken, self.scale_of = bits, taken, scales
        self.apart = self.pairs
        staged = _OTHERS.get((self.tiles, self.sharing == WARPS), _STAGED)
        own = max(1, min(staged // self.staged_bytes, self.vectors) // self.sharing)
        is_whole = 0 < self.vectors * self.staged_bytes <= _WHOLE
        if is_whole:
            own = -(-self.vectors // self.sharing)
        is_ahead = is_whole and own > _TOGETHER
        if is_ahead:
            own += -own % _TOGETHER
        most = _TOGETHER // (1 + is_ahead)
        together = next(n for n in range(most, 0, -1) if own % n == 0)
        self.allocate(own, together, is_ahead)
        held = together * (1 + is_ahead)
        self.held = self.registers("packed", f"uint{_WORD}", held, 2, self.words)
        self.scales = self.registers("scales", "uint32", held, 2)
        self.kept += [self.held, self.scales]
        self.top = self.registers("top", "uint32", 1)
        if bits > _MAGIC[self.dtype][2]:
            self.kept.append(self.top)

    def fits(self) -> bool:
        """Whether a lane's weights share a scale, and its part of ``x`` lies together."""
        k = self.product.block.iter_vars[self.product.k].var
        zero = tirx.const(0, "int64")
        ends = [self._scale(member, zero, tirx.IntImm("int64", i * self.vector), e)
                for member in range(len(self.scale_of)) for i in range(4)
                for e in (0, self.vector - 1)]  # fmt: skip
        pairs = zip(ends[::2], ends[1::2], strict=True)
        return self.product.x.indices[-1].same_as(k) and all(
            tvm_ffi.structural_equal(one, other) for one, other in pairs
        )

    def load(self, u: Any, vector: Any) -> Any:
        """Load packed weights, and their scale in both halves of a register."""
        known = tirx.min(vector, self.vectors - 1) * 4 + self.thread

        def column(h: int) -> Any:
            var, zero = tirx.Var("v", "int32"), tirx.const(0, "int64")
            member, n = self.column_of(h)
            product = self.product.members[member]
            values = self.values(n, zero, zero, product)
            load = next(
                one for one in loads_in(product.written) if one.source.same_as(product.packed)
            )
            indices = [substitute(i, values) for i in load.indices[:-1]]
            at = known.astype("int64") * self.words + var
            word = tirx.BufferLoad(product.packed, [*indices, at])
            scale = self._scale(member, n, known.astype("int64") * self.vector, 0)
            bits = tirx.Cast("uint32", T.reinterpret("uint16", scale))
            twice = tirx.bitwise_or(bits, tirx.shift_left(bits, tirx.const(16, "uint32")))
            if self.vectors % self.chunk:  # Beyond the last vector nothing is added.
                twice = tirx.Select(vector < self.vectors, twice, tirx.const(0, "uint32"))
            put = tirx.BufferStore(self.held, word, [u, h, var])
            return sequence(
                [
                    tirx.For(var, 0, self.words, tirx.ForKind.VECTORIZED, put),
                    tirx.BufferStore(self.scales, twice, [u, h]),
                ]
            )

        return sequence(map(column, range(2)))

    def _scale(self, member: int, column: Any, first: Any, e: int) -> Any:
        """The scale of the weight ``e`` of a vector of a product."""
        product = self.product.members[member]
        values = self.values(column, first + e, tirx.const(0, "int64"), product)
        return tvm.sym.Analyzer().simplify(substitute(self.scale_of[member], values))

    def unpack(self, u: int, h: int, word: int, p: int) -> list[Any]:
        """Put two weights into a register: by their bits, less what is taken, times the scale.

        A bit that the mantissa has no place for is the lowest of the exponent: it doubles the base.
        """
        _, base, most = _MAGIC[self.dtype]
        low = (1 << min(self.bits, most)) - 1
        high = (1 << self.bits) - 1 - low
        shift = tirx.const(self.bits * p, "uint32")
        packed = tirx.shift_right(tirx.BufferLoad(self.held, [u, h, word]), shift)
        own, top = tirx.BufferLoad(self.a, [h, p]), tirx.BufferLoad(self.top, [0])
        fused = T.ptx[f"fma.rn.{PTX[self.dtype]}x2"]
        scale = tirx.BufferLoad(self.scales, [u, h])
        one, zero = self._twice(self._half(1)), tirx.const(0, "uint32")
        less = self._twice(self._half(-base - self.taken))
        made = [tirx.BufferStore(self.a, self._raw(packed, low), [h, p])]
        if high:
            both = self._twice(self._half(-2 * base - self.taken))
            made += [
                tirx.BufferStore(self.top, self._raw(packed, high), [0]),
                _do(fused(top, top, one, both)),
            ]
            less = top
        return [*made, _do(fused(own, own, one, less)), _do(fused(own, own, scale, zero))]

    def _raw(self, packed: Any, mask: int) -> Any:
        """Some bits of two weights, in numbers whose lowest bits are none."""
        return tirx.bitwise_or(
            tirx.bitwise_and(packed, self._twice(mask)), self._twice(_MAGIC[self.dtype][0])
        )

    def _twice(self, half: int) -> Any:
        """The same 16 bits in both halves of a register."""
        return tirx.const(half << 16 | half, "uint32")

    def _half(self, value: float) -> int:
        return int(np.array(value).astype(self.dtype).view(np.uint16))
