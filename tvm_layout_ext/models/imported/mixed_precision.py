"""``MixedPrecision``: a module of ``float32`` multiplies in 16 bits, as PyTorch's autocast does."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...checks import is_one_of, takes_module
from ...errors import ScheduleError
from ...ir.annotations import TF32
from ...ir.queries import is_number, nodes_of, size_of
from ...text import lines_of
from ..known_values import array_of, scalar_of
from ..merge_alike import MergeAlike
from ..moves.clips import Clips
from ..relax_values import NARROW_FLOATS, VIEWS, bound_to, extents_of, name_of, rewritten, source_of
from ..tf32 import KINDS, allow_tf32
from .narrow_shortcuts import NarrowShortcuts

#: The one type of 16 bits that TVM's pass knows.
_TVMS = "float16"
#: Operators that it gives 16 bits, and that TVM refuses of ``bfloat16``.
_NOT_OF_BFLOAT16 = ("nn.group_norm", "power")


@takes_module
@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.MixedPrecision")
class MixedPrecision:
    """Multiply in 16 bits, add up and normalise in ``float32``, and store 16 bits.

    This is TVM's ``ToMixedPrecision``, with :class:`NarrowShortcuts` behind it. TVM 0.27's ends
    with "Expected TensorType, but got T.int64" where an operator is given numbers: at the ``clip``
    of a hard swish (MobileNetV3), and where slices are put into a mask (Swin). Clips are written as
    a maximum and a minimum before, and such masks are worked out. A product of a column by a row
    adds nothing up and stays in ``float32``: so do angles of rotary embeddings. Powers that are
    added up are of ``float32``, as by autocast: the square of 256 is no number of ``float16``.

    Parameters
    ----------
    dtype : str, optional
        ``"float16"``, or ``"bfloat16"``, which has the range of ``float32``. With ``"tf32"`` all
        values stay ``float32``; what products and convolutions multiply is rounded to the 10 bits
        of mantissa that ``float16`` has, and keeps its range.

    Raises
    ------
    ScheduleError
        If TVM's pass fails all the same, with its sentence, or the module holds the other type.

    Examples
    --------
    >>> mod = from_exported_program(program)  # doctest: +SKIP
    >>> mod = tlx.MixedPrecision()(mod)  # doctest: +SKIP
    """

    def __init__(self, dtype: str = "float16") -> None:
        if not is_one_of(dtype, (TF32, *NARROW_FLOATS)):
            legal = ", ".join((TF32, *NARROW_FLOATS))
            raise ScheduleError(f"dtype is one of {legal}, not {dtype!r}.")
        self.dtype = dtype

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if self.dtype == TF32:
            return allow_tf32(mod, KINDS)
        (other,) = set(NARROW_FLOATS) - {self.dtype}
        if _holds(mod, other):
            raise ScheduleError(f"The module holds {other}, so it does not come to {self.dtype}.")
        # A constant of no element, which nobody reads, has no address that TVM's pass would take.
        mod = relax.transform.DeadCodeElimination()(mod)
        for kind in (Clips, _Masks, _Outer):
            mod = rewritten(mod, kind)
        behind = (
            # It rounds what three products read once for each.
            MergeAlike(),
            # Names of what it merged would count as readers of a shortcut.
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
            NarrowShortcuts(),
        )
        try:
            mod = rewritten(relax.transform.ToMixedPrecision()(mod), _Powers)
            if self.dtype != _TVMS:
                mod = rewritten(mod, _Bfloat16)
            return tvm.transform.Sequential(behind)(mod)
        except (RuntimeError, TypeError, ValueError) as error:
            reason = lines_of(error)[-1]
            raise ScheduleError(f"TVM's ToMixedPrecision refuses the module: {reason}") from error


def _holds(mod: tvm.IRModule, dtype: str) -> bool:
    """Whether a Relax function of a module has values of a type, or makes some."""
    found = (one for func in mod.functions.values() for one in nodes_of(func))
    return any(dtype in _types_of(getattr(one, "ty", None)) for one in found)


def _types_of(ty: Any) -> set[str]:
    """Types of elements of a tensor, or of all in a tuple."""
    if isinstance(ty, relax.TupleType):
        return {name for one in ty.fields for name in _types_of(one)}
    return {str(ty.dtype)} if isinstance(ty, relax.TensorType) else set()


@mutator
class _Bfloat16(PyExprMutator):
    """Rounds to ``bfloat16`` what TVM's pass rounds to ``float16``.

    All else has its type from what it reads: the pass has sums in ``float32``, and leaves constants
    as they are, so that none has lost its range. What TVM refuses to compute of ``bfloat16`` is
    computed in ``float32``, of constants that are not rounded.
    """

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if name_of(call) in _NOT_OF_BFLOAT16 and str(call.ty.dtype) == _TVMS:
            given = [self._wide(self.visit_expr(one)) for one in call.args]
            wide = self.builder_.emit(relax.Call(call.op, given, call.attrs, call.ty_args))
            return op.astype(wide, "bfloat16")
        call = super().visit_call_(call)
        if name_of(call) != "astype" or str(call.attrs.dtype) != _TVMS:
            return call
        return op.astype(call.args[0], "bfloat16")

    def _wide(self, value: Any) -> Any:
        """An operand of 16 bits in ``float32``."""
        rounded = bound_to(value, self.lookup_binding)
        if name_of(rounded) == "astype" and isinstance(rounded.args[0], GenericConst):
            return rounded.args[0]
        return self.builder_.emit(op.astype(value, "float32"))


@mutator
class _Masks(PyExprMutator):
    """Works out what slices are put into, or puts them between what stands around them.

    Triangles of a matrix are chosen by a constant.
    """

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) in ("tril", "triu"):
            return self._triangle(call)
        if name_of(call) != "slice_scatter":
            return call
        self.builder_.normalize(call)
        found = array_of(call, self.lookup_binding)
        return self._joined(call) if found is None else relax.const(found, str(call.ty.dtype))

    def _triangle(self, call: relax.Call) -> relax.Expr:
        """One half of a matrix of floats, of a known size."""
        data, dtype = call.args[0], str(call.ty.dtype)
        sizes = [size_of(one) for one in (extents_of(data) or ())[-2:]]
        edge = size_of(getattr(call.args[1], "value", call.args[1]))
        if "float" not in dtype or not all(isinstance(one, int) for one in (edge, *sizes)):
            return call
        holds = getattr(np, name_of(call))(np.ones(sizes, bool), edge)
        return op.where(relax.const(holds), data, relax.const(0.0, dtype))

    def _joined(self, call: relax.Call) -> relax.Expr:
        """A slice between what stands before it and behind, where all sizes are known."""
        data, part, *numbers = call.args
        axis, emit = int(call.attrs.axis) % data.ty.ndim, self.builder_.emit
        extents = [size_of(one.ty.shape.values[axis]) for one in (data, part)]
        known = [size_of(getattr(one, "value", one)) for one in numbers]
        if not all(isinstance(one, int) for one in (*known, *extents)):
            return call
        extent, size = extents
        places = np.arange(extent)[slice(*known)]
        if size == extent or size != len(places):
            return part if size == extent else call
        if size == 0:
            return data
        if known[2] != 1:
            numbers = np.arange(extent)
            numbers[places] = extent + np.arange(size)
            both = emit(op.concat([data, part], axis))
            return op.take(both, relax.const(numbers, "int64"), axis)
        ends = [(0, int(places[0])), (int(places[-1]) + 1, extent)]
        before, behind = (
            [emit(op.strided_slice(data, [axis], [a], [b], [1]))] if a < b else [] for a, b in ends
        )
        return op.concat([*before, part, *behind], axis)


@mutator
class _Outer(PyExprMutator):
    """Multiplies a column by a row element by element.

    TVM's pass rounds a constant that is given other dims, and one that meets constants alone. So
    one side is written out as a constant, beside another that is computed.
    """

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) != "matmul" or str(call.attrs.out_dtype) not in ("None", "float32"):
            return call
        shapes = [extents_of(one) or () for one in call.args]
        if any(len(one) < 2 for one in shapes) or not is_number(shapes[0][-1], 1):
            return call
        sides = [*call.args]
        for at, one in enumerate(sides):
            if self._is_constant(one) and (found := array_of(one, self.lookup_binding)) is not None:
                sides[at] = relax.const(found, str(one.ty.dtype))
                break
        return op.multiply(*sides)

    def _is_constant(self, value: Any) -> bool:
        source = source_of(value, (*VIEWS, "broadcast_to"), self._call)
        return isinstance(self._call(source), GenericConst)

    def _call(self, value: Any) -> Any:
        return bound_to(value, self.lookup_binding)


@mutator
class _Powers(PyExprMutator):
    """Widens what a power is of where the power is widened."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        power: Any = None
        if name_of(call) == "astype":
            power = bound_to(call.args[0], self.lookup_binding)
        if name_of(power) != "power" or str(call.ty.dtype) != "float32":
            return call
        # The pass has rounded it.
        exponent = scalar_of(source_of(power.args[1], ("astype",), self._bound), self._bound)
        if exponent is None or str(power.ty.dtype) not in NARROW_FLOATS:
            return call
        base = self.builder_.emit(op.astype(power.args[0], "float32"))
        return op.power(base, relax.const(exponent, "float32"))

    def _bound(self, value: Any) -> Any:
        return bound_to(value, self.lookup_binding)
