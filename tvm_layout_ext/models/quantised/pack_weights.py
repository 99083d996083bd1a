"""``PackWeights``: constants that activations are multiplied by come to 4 or 8 bits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir.expr import GenericConst

from ...errors import ScheduleError
from ...ir.queries import nodes_of
from ...ir.replace_calls import with_calls_replaced
from ..bindings import Bindings
from ..relax_values import NARROW_FLOATS, axes_of, dims_of, name_of
from .group_quantise import GROUP, WORD, group_quantised

_log = logging.getLogger("tvm_layout_ext")
#: The function whose weights are packed.
_MAIN = "main"
#: Bits of a weight, by what users call it.
BITS = {"int4": 4, "int8": 8}
#: Terms in multiples of which the kernels of some rows read packed weights, by bits.
TERMS = {4: 128, 8: 64}
#: Weights below which a matrix stays untold, and columns below which it stays: routers of mixtures
#: have a column an expert, and choose another one by small errors.
LEAST_WEIGHTS, LEAST_COLUMNS = 1 << 16, 256


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.PackWeights")
class PackWeights:
    """Round the weights of products of ``main`` to 4 or 8 bits, and unpack them before products.

    A weight is a constant matrix, N x K as a linear has it or K x N, that an activation of 16 bits
    is multiplied by. A group of 32 neighbours along K has a scale, as in MLC's ``q4f16_1``, and K
    is a multiple of what the kernels read at once: of 128, or of 64 by 8 bits. The words and scales
    become the last parameters of ``main``, for constants would be unpacked where constants are
    folded. Behind that :attr:`as_constants` is the pass that makes them constants again: these
    kernels load before the one in front of them ends, and compiled modules share them.

    What is only gathered, as a table of embeddings, stays, also where a head has the same weights.

    Parameters
    ----------
    bits : int
        4 or 8.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        #: What these parameters hold.
        self.held = list[np.ndarray]()
        self.as_constants = HeldAsConstants(self.held)

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite a module."""
        main = mod[_MAIN]
        reader = Bindings.of(main)
        packed = _PackedWeights(self.bits)
        found = [
            (reader.bound[one.var], partial(one.unpacked, self.bits, parts))
            for one in _products(reader)
            if (parts := packed.parts(one)) is not None
        ]
        packed.tell(has_any=any(map(_is_large, nodes_of(main))))
        params = [var for parts in packed.known.values() if parts for var in parts]
        self.held[:] = packed.arrays
        longer = relax.Function(
            [*main.params, *params], main.body, main.ret_ty, main.is_pure, main.attrs
        )
        functions = {gv: longer if gv.name_hint == _MAIN else f for gv, f in mod.functions.items()}
        mod = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        return with_calls_replaced(mod, {mod.get_global_var(_MAIN): found}) if found else mod


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.HeldAsConstants")
class HeldAsConstants:
    """Put constants for the last parameters of ``main``."""

    def __init__(self, held: list[np.ndarray]) -> None:
        self.held = held

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite a module; nothing is held any longer."""
        params = mod[_MAIN].params[len(mod[_MAIN].params) - len(self.held) :]
        given = dict(zip(params, map(tvm.runtime.tensor, self.held), strict=True))
        self.held.clear()
        bound: tvm.IRModule = relax.transform.BindParams(_MAIN, given)(mod)
        return bound


@dataclass(frozen=True)
class _Weighted:
    """A product by a constant matrix."""

    var: Any
    call: relax.Call
    constant: Any
    is_turned: bool  #: Whether the constant is N x K

    @property
    def sizes(self) -> tuple[int, int]:
        """Columns and terms."""
        k, n = dims_of(self.call.args[1]) or (0, 0)
        return n, k

    @property
    def dtype(self) -> str:
        """The type that is multiplied."""
        return str(self.call.args[1].ty.dtype)

    @property
    def key(self) -> tuple[Any, bool, str]:
        """What tells weights from one another."""
        return self.constant.__chandle__(), self.is_turned, self.dtype

    def rows(self) -> np.ndarray:
        """The weight N x K."""
        found = _array_in_place(self.constant.value)
        return found if self.is_turned else found.T

    def unpacked(self, bits: int, parts: tuple[relax.Var, relax.Var], inside: Any) -> relax.Expr:
        """The product by what is unpacked."""
        builder = inside.builder_
        make = partial(_dequantised, self.sizes, bits, self.dtype)
        weight = builder.emit_te(make, *parts, primfunc_name_hint="dequantize")
        turned = builder.emit(relax.op.permute_dims(weight, [1, 0]))
        x = inside.visit_expr(self.call.args[0])
        return relax.Call(self.call.op, [x, turned], self.call.attrs, self.call.ty_args)


def _products(reader: Bindings) -> Iterator[_Weighted]:
    """Products of a function by constants, in their order."""
    for var in reader.order:
        call, is_turned = reader.bound[var], False
        if name_of(call) != "matmul" or len(dims_of(call.args[1]) or ()) != 2:
            continue
        value = call.args[1]
        while name_of(made := reader.call(value)) in ("permute_dims", "astype"):
            is_turned ^= name_of(made) == "permute_dims" and axes_of(made) == [1, 0]
            value = made.args[0]
        if isinstance(value, GenericConst):
            yield _Weighted(var, call, value, is_turned)


class _PackedWeights:
    """Weights that have been packed, and those that stay."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        #: Parameters of words and scales, or None where a weight stays.
        self.known = dict[Any, tuple[relax.Var, relax.Var] | None]()
        self.arrays = list[np.ndarray]()
        self.stay = Counter[tuple[int, int, str]]()

    def parts(self, one: _Weighted) -> tuple[relax.Var, relax.Var] | None:
        """Parameters that hold the weight of a product."""
        if one.key not in self.known:
            self.known[one.key] = self._made(one)
        return self.known[one.key]

    def _made(self, one: _Weighted) -> tuple[relax.Var, relax.Var] | None:
        n, k = one.sizes
        if n * k < LEAST_WEIGHTS:
            return None
        why = _reason(one, self.bits)
        if why is None:
            made = group_quantised(one.rows(), self.bits, one.dtype)
            if np.isfinite(made[1].astype("float32")).all():
                return self._params(made)
            why = f"which are not all finite, or whose scales {one.dtype} does not hold"
        self.stay[n, k, why] += 1
        return None

    def _params(self, made: tuple[np.ndarray, np.ndarray]) -> tuple[relax.Var, relax.Var]:
        at = len(self.arrays) // 2
        self.arrays += made
        types = [relax.TensorType(one.shape, str(one.dtype)) for one in made]
        return relax.Var(f"packed{at}", types[0]), relax.Var(f"scales{at}", types[1])

    def tell(self, has_any: bool) -> None:
        """Say what stays, and why, where there is any weight."""
        for (n, k, why), count in self.stay.items():
            _log.warning("Not packed: weights of %d x %d (%d), %s.", n, k, count, why)
        if has_any and not self.arrays:
            _log.warning("No weight comes to %d bits.", self.bits)


def _is_large(value: Any) -> bool:
    """Whether a value is a constant that may hold weights."""
    return isinstance(value, GenericConst) and prod(value.value.shape) >= LEAST_WEIGHTS


def _reason(one: _Weighted, bits: int) -> str | None:
    """Why a weight stays, or None."""
    n, k = one.sizes
    if one.dtype not in NARROW_FLOATS or str(one.call.args[0].ty.dtype) != one.dtype:
        return f"which are multiplied in {one.dtype}"
    if k % TERMS[bits]:
        return f"whose {k} terms are no multiple of {TERMS[bits]}"
    if n < LEAST_COLUMNS:
        return f"which have fewer than {LEAST_COLUMNS} columns, as those of routers"
    return None


def _dequantised(
    shape: tuple[int, int], bits: int, dtype: str, packed: te.Tensor, scales: te.Tensor
) -> te.Tensor:
    """What :func:`group_quantised` has packed, N x K."""
    each = WORD // bits
    mask = tirx.const((1 << bits) - 1, packed.dtype)
    half = tirx.const(1 << bits - 1, dtype)

    def one(n: Any, k: Any) -> Any:
        shift = tirx.Cast(packed.dtype, k % each * bits)
        count = packed[n, k // each] >> shift & mask
        return (tirx.Cast(dtype, count) - half) * scales[n, k // GROUP]

    return te.compute(shape, one, name="dequantize")


def _array_in_place(tensor: Any) -> np.ndarray:
    """What a tensor of TVM's holds, without a copy."""
    if str(tensor.dtype) != "bfloat16":
        return np.from_dlpack(tensor)
    import ml_dtypes

    bits = np.from_dlpack(tensor._create_view(list(tensor.shape), "uint16"))
    return bits.view(ml_dtypes.bfloat16)


def check_weights(weights: Any) -> None:
    """ScheduleError if weights do not come to a type."""
    if weights is not None and not (isinstance(weights, str) and weights in BITS):
        raise ScheduleError(f"weights is one of {', '.join(BITS)}, not {weights!r}.")
