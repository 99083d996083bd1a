"""What Relax's values are called, how large they are, and what they are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from ..ir.queries import are_equal, nodes_of, size_of

#: Floats of 16 bits, as in NumPy's names.
NARROW_FLOATS = ("float16", "bfloat16")
FLOATS = (*NARROW_FLOATS, "float32")
#: The operator of ours that rounds to tf32.
ROUNDED = "layout_ext.to_tf32"
#: Operators each element of whose result is computed from those at its place.
ELEMENTWISE = (
    *("abs", "add", "astype", "ceil", "clip", "cos", "divide", "erf", "exp", "floor", "log"),
    *("maximum", "minimum", "multiply", "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu"),
    *("nn.relu", "nn.silu", "power", "round", "rsqrt", "sigmoid", "sin", "sqrt", "square"),
    *("subtract", "tanh", "where", ROUNDED),
)


#: Operators that give elements another shape, and leave them where they are.
VIEWS = ("reshape", "expand_dims", "squeeze")


def rewritten(mod: tvm.IRModule, kind: Any) -> tvm.IRModule:
    """A module whose Relax functions a mutator has rewritten."""
    one = kind(mod)
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function):
            one.builder_.update_func(gv, one.visit_expr(func))
    return one.builder_.get()


def cleaned(mod: tvm.IRModule) -> tvm.IRModule:
    """A module whose values have one name, and readers: another name would be one."""
    one_name: tvm.IRModule = relax.transform.CanonicalizeBindings()(mod)
    return relax.transform.DeadCodeElimination()(one_name)


def bound_to(value: Any, binding: Callable[[Any], Any]) -> Any:
    """What a variable is bound to, also by the name of another one; else the value itself."""
    while isinstance(value, relax.Var):
        value = binding(value)
    return value


def bound_in_reach(value: Any, binding: Callable[[Any], Any]) -> Any:
    """What a variable is bound to, or None where the variable's readers cannot read its operands.

    They cannot where a block of dataflow gives the variable, and has the operands for itself.
    """
    found = bound_to(value, binding)
    if not isinstance(value, relax.Var) or isinstance(value, relax.DataflowVar) or found is None:
        return found
    return None if any(isinstance(one, relax.DataflowVar) for one in uses_of(found)) else found


def source_of(value: Any, names: Sequence[str], bound: Callable[[Any], Any]) -> Any:
    """What a value is made from by some operators alone, ``bound`` giving what variables are."""
    while name_of(call := bound(value)) in names:
        value = call.args[0]
    return value


def name_of(value: Any) -> str:
    """Name of an operator that is called, without its family."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return ""
    return str(value.op.name).removeprefix("relax.")


def operators_of(mod: tvm.IRModule) -> set[str]:
    """Names of the operators that a module's Relax functions call, as of :func:`name_of`."""
    functions = [one for one in mod.functions.values() if isinstance(one, relax.Function)]
    return {name_of(one) for func in functions for one in _values_of(func)}


def _values_of(func: relax.Function) -> list[Any]:
    """What variables of a function are bound to: calls have variables as arguments, not calls."""
    if not isinstance(func.body, relax.SeqExpr):
        return nodes_of(func)
    values = [one.value for block in func.body.blocks for one in block.bindings]
    # Which hold functions or branches, whose bindings are others.
    if any(isinstance(one, (relax.If, relax.SeqExpr, relax.Function)) for one in values):
        return nodes_of(func)
    return [*values, func.body.body]


def dims_of(value: Any) -> list[int] | None:
    """Extents of a tensor, or None where some are not known."""
    shape = getattr(getattr(value.ty, "shape", None), "values", None)
    if shape is None or not all(isinstance(one, tirx.IntImm) for one in shape):
        return None
    return [int(one) for one in shape]


def extents_of(value: Any) -> tuple[Any, ...] | None:
    """Extents of a tensor, or None where they are not written out."""
    found = getattr(getattr(value.ty, "shape", None), "values", None)
    return None if found is None else tuple(found)


def has_shape(value: Any, shape: Sequence[Any] | None) -> bool:
    """Whether a value is a tensor of these extents; not if either is not written out."""
    own = extents_of(value)
    if own is None or shape is None or len(own) != len(shape):
        return False
    return are_equal(own, shape)


def axes_of(call: relax.Call) -> list[int]:
    """The axes of a ``permute_dims``, counted from the front; none written are all, backwards."""
    rank, axes = int(call.args[0].ty.ndim), call.attrs.axes
    return [int(axis) % rank for axis in (range(rank)[::-1] if axes is None else axes)]


def uses_of(value: Any) -> list[Any]:
    """Variables that a value is computed from, each as often as it is read."""
    if isinstance(value, relax.Call):
        return [var for one in value.args for var in uses_of(one)]
    if isinstance(value, relax.Tuple):
        return [var for one in value.fields for var in uses_of(one)]
    return [value] if isinstance(value, relax.Var) else [*relax.analysis.free_vars(value)]


def tensors_of(call: relax.Call, binding: Callable[[Any], Any]) -> list[Any]:
    """The tensors that an operator is given, those of a tuple one by one."""
    found = []
    for one in call.args:
        bound = bound_to(one, binding)
        found += [*bound.fields] if isinstance(bound, relax.Tuple) else [one]
    return [one for one in found if isinstance(getattr(one, "ty", None), relax.TensorType)]


def whole_numbers(values: Any) -> list[int] | None:
    """Whole numbers that are written out, or None where some are not."""
    found = [size_of(getattr(one, "value", one)) for one in values]
    return found if all(isinstance(one, int) for one in found) else None


def slices_of(call: relax.Call) -> list[list[int]] | None:
    """Axes, begins, ends and perhaps steps of a slice, or None where some are not written out."""
    found = [whole_numbers(part) for part in call.args[1:]]
    known = [part for part in found if part is not None]
    return known if len(known) == len(found) else None
