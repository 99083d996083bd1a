"""A stand-in for ``triton.language`` that traces axis information instead of building IR.

It also folds what Triton folds before its analysis: constants, and operations that change nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

from tvm_layout_ext.analysis.axis_info import arithmetic as ai
from tvm_layout_ext.analysis.axis_info import values
from tvm_layout_ext.analysis.axis_info.values import AxisInfo

#: x op constant is x.
NEUTRAL = {
    "add": 0, "sub": 0, "or": 0, "xor": 0, "shl": 0, "shr": 0, "mul": 1, "div": 1, "and": -1,
}  # fmt: skip
#: x op x, whether it is 0 or x.
SAME = {"sub": True, "xor": True, "and": False, "or": False, "max": False, "min": False}
COMMUTATIVE = ("add", "mul", "or", "xor", "and")


class Value:
    """A scalar (shape ``()``) or tensor with its axis information."""

    def __init__(
        self,
        info: AxisInfo,
        shape: Sequence[int] = (),
        argument: bool = False,
        element_bits: int | None = None,
    ) -> None:
        self.info = info
        self.shape = tuple(shape)
        self.argument = argument
        #: Of what a pointer points to.
        self.element_bits = element_bits
        #: This value is that value plus a constant.
        self.sum: tuple[Value, int] | None = None

    def __getitem__(self, index: Any) -> Value:
        result = self
        for axis, item in enumerate(index if isinstance(index, tuple) else (index,)):
            if item is None:
                result = expand_dims(result, axis)
        return result

    def to(self, _: object) -> Value:
        return Value(self.info, self.shape)

    def reshape(self, *shape: Any) -> Value:
        return reshape(self, *shape)

    def trans(self, *order: int) -> Value:
        return trans(self, *order)

    def broadcast_to(self, *shape: Any) -> Value:
        return broadcast_to(self, sizes_of(shape))

    def expand_dims(self, axis: int) -> Value:
        return expand_dims(self, axis)

    def ravel(self) -> Value:
        return ravel(self)

    def __neg__(self) -> Value:
        return binary("sub", 0, self)

    def __invert__(self) -> Value:
        return binary("xor", self, -1)


def value_of(thing: Any) -> Value:
    return thing if isinstance(thing, Value) else Value(AxisInfo.of_constant(int(thing)))


def broadcast_to(value: Any, shape: Sequence[int]) -> Value:
    value = value_of(value)
    if value.shape == tuple(shape):
        return value
    if not value.shape:
        info = values.splat(value.info, shape)
    else:
        info = values.broadcast(value.info, value.shape, shape)
    return Value(info, shape, element_bits=value.element_bits)


def common(*things: Any) -> tuple[list[Value], tuple[int, ...]]:
    values = [value_of(thing) for thing in things]
    shapes = [v.shape for v in values if v.shape]
    if not shapes:
        return values, ()
    shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    return [broadcast_to(v, shape) for v in values], shape


def binary(name: str, left: Any, right: Any) -> Value:
    if left is right and name in SAME:
        return value_of(0) if SAME[name] else left
    whole = value_of(left)
    (a, b), shape = common(left, right)
    if whole.element_bits is not None:
        info = ai.add_pointer(a.info, b.info, shape or (1,), whole.element_bits)
        return Value(info, shape, element_bits=whole.element_bits)
    if b.info.constant == NEUTRAL.get(name, ""):
        return a
    if name in COMMUTATIVE and a.info.constant == NEUTRAL.get(name, ""):
        return b
    if name in ("and", "or") and 0 in (a.info.constant, b.info.constant):
        return Value(AxisInfo.of_constant(0, shape or (1,)), shape)
    if name in ("add", "sub") and b.info.constant is not None and a.info.constant is None:
        return plus_constant(name, whole, b.info.constant, a, b, shape)
    return Value(ai.apply_binary(name, a.info, b.info, shape or (1,)), shape)


def plus_constant(
    name: str, whole: Value, constant: int, a: Value, b: Value, shape: tuple[int, ...]
) -> Value:
    """(x + 8) + 8 is x + 16."""
    signed = constant if name == "add" else -constant
    if whole.sum is not None and whole.shape == shape:
        return binary("add", whole.sum[0], whole.sum[1] + signed)
    result = Value(ai.apply_binary(name, a.info, b.info, shape or (1,)), shape)
    result.sum = a, signed
    return result


def comparison(name: str, left: Any, right: Any) -> Value:
    (a, b), shape = common(left, right)
    return Value(ai.apply_binary(name, a.info, b.info, shape or (1,)), shape)


def _install() -> None:
    symbols = {
        "add": "add", "sub": "sub", "mul": "mul", "floordiv": "div", "mod": "rem",
        "and": "and", "or": "or", "xor": "xor", "lshift": "shl", "rshift": "shr",
    }  # fmt: skip
    for method, name in symbols.items():
        setattr(Value, f"__{method}__", lambda a, b, n=name: binary(n, a, b))
        setattr(Value, f"__r{method}__", lambda a, b, n=name: binary(n, b, a))
    for name in ai.COMPARISONS:
        setattr(Value, f"__{name}__", lambda a, b, n=name: comparison(n, a, b))


_install()


def arange(low: int, high: int) -> Value:
    return Value(AxisInfo.of_range(low, high), (high - low,))


def expand_dims(value: Value, axis: int) -> Value:
    axis += len(value.shape) + 1 if axis < 0 else 0
    shape = (*value.shape[:axis], 1, *value.shape[axis:])
    return Value(values.expand_dims(value.info, axis), shape)


def reshape(value: Value, *shape: Any) -> Value:
    to = sizes_of(shape)
    return Value(values.reshape(value.info, value.shape, to), to)


def sizes_of(shape: Sequence[Any]) -> Sequence[int]:
    """A shape given as numbers, or as one list of them."""
    return shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape


def ravel(value: Value) -> Value:
    return reshape(value, prod(value.shape))


def trans(value: Value, *order: int) -> Value:
    order = order or tuple(reversed(range(len(value.shape))))
    shape = [value.shape[d] for d in order]
    return Value(values.transpose(value.info, order), shape)


def where(condition: Any, left: Any, right: Any) -> Value:
    condition = value_of(condition)
    if left is right:
        return value_of(left)
    if not condition.shape:
        (a, b), shape = common(left, right)
        return Value(values.select(condition.info, a.info, b.info, scalar=True), shape)
    (c, a, b), shape = common(condition, left, right)
    return Value(values.select(c.info, a.info, b.info, scalar=False), shape)


def hint(name: str) -> Any:
    def give(value: Value, numbers: Any) -> Value:
        # Triton 3.9 drops a hint on a bare kernel argument.
        if value.argument:
            return value
        given = (numbers,) if isinstance(numbers, int) else tuple(numbers)
        return Value(value.info.with_hints(**{name: given}), value.shape)

    return give


def load(pointer: Value, mask: Value | None = None, **_: object) -> Value:
    if mask is None:
        return Value(values.load(pointer.info), pointer.shape)
    (address, kept), shape = common(pointer, mask)
    return Value(values.load(address.info, kept.info), shape)


class Language(SimpleNamespace):
    """Operations without a rule give a value of which nothing is known."""

    def __getattr__(self, _: str) -> Any:
        def unknown(*things: Any) -> Value:
            _, shape = common(*(t for t in things if isinstance(t, (Value, int))))
            return Value(AxisInfo.unknown(max(1, len(shape))), shape)

        return unknown


TL = Language(
    arange=arange,
    broadcast_to=broadcast_to,
    cdiv=lambda a, b: binary("div", binary("add", a, binary("sub", b, 1)), b),
    expand_dims=expand_dims,
    load=load,
    full=lambda shape, value, dtype=None: Value(AxisInfo.of_constant(value, shape), shape),
    max_constancy=hint("constancy"),
    max_contiguous=hint("contiguity"),
    maximum=lambda a, b: binary("max", a, b),
    minimum=lambda a, b: binary("min", a, b),
    multiple_of=hint("divisibility"),
    permute=trans,
    ravel=ravel,
    program_id=lambda axis=0: Value(AxisInfo.argument(1)),
    reshape=reshape,
    trans=trans,
    view=reshape,
    where=where,
    zeros=lambda shape, dtype=None: Value(AxisInfo.of_constant(0, shape), shape),
    **dict.fromkeys(("int1", "int8", "int16", "int32", "int64", "uint32", "uint64")),
)


def run(source: str, names: dict[str, Any]) -> None:
    """Run statements, loops to the fixed point of what they carry round."""
    lines = source.splitlines()
    dedented = "\n".join(["if True:", *(f"    {line}" for line in lines)]) if lines else "pass"
    for statement in ast.parse(dedented).body:
        execute(statement.body if isinstance(statement, ast.If) else [statement], names)


def execute(body: Sequence[ast.stmt], names: dict[str, Any]) -> None:
    for statement in body:
        if isinstance(statement, ast.For):
            loop(statement, names)
        elif isinstance(statement, ast.If):
            branch(statement, names)
        else:
            exec(compile(ast.Module([statement], []), "<prelude>", "exec"), names)


def loop(statement: ast.For, names: dict[str, Any]) -> None:
    start, step = bounds(statement.iter, names)
    assert isinstance(statement.target, ast.Name)
    variable = Value(AxisInfo.of_loop_variable(start.info, step.info))
    while True:
        before = dict(names)
        names[statement.target.id] = variable
        execute(statement.body, names)
        del names[statement.target.id]
        if not merge(names, before):
            return


def branch(statement: ast.If, names: dict[str, Any]) -> None:
    other = dict(names)
    execute(statement.body, names)
    execute(statement.orelse, other)
    merge(names, other)


def merge(names: dict[str, Any], before: dict[str, Any]) -> bool:
    """Join what both ways know into ``names``; tell whether ``before`` claimed more."""
    changed = False
    for name in [n for n in names if n in before and n != "__builtins__"]:
        old, new = before[name], names[name]
        if new is old:
            continue
        (a, b), shape = common(old, new)
        names[name] = Value(values.join(a.info, b.info), shape)
        changed |= names[name].info != a.info
    return changed


def bounds(call: ast.expr, names: dict[str, Any]) -> tuple[Value, Value]:
    assert isinstance(call, ast.Call)
    args = [value_of(evaluate(ast.unparse(arg), names)) for arg in call.args]
    start = value_of(0) if len(args) == 1 else args[0]
    return start, args[2] if len(args) == 3 else value_of(1)


def evaluate(source: str, names: dict[str, Any]) -> Any:
    return eval(source, names)


def bits_of(kind: str) -> int:
    """Bits of a type such as ``fp16``, ``bf16``, ``i8``, ``fp8e5``."""
    return 8 if kind.startswith("fp8") else int(kind.lstrip("biufp"))


def namespace(scalars: dict[str, tuple[str, int]], indices: Sequence[str]) -> dict[str, Any]:
    """Names that an expression may use: ``tl``, arguments of a type and divisibility, indices.

    The type of a pointer begins with an asterisk.
    """
    names: dict[str, Any] = {"tl": TL, "arange": arange, "program_id": TL.program_id}
    names |= {"max": TL.maximum, "min": TL.minimum}
    for name, (kind, divisibility) in scalars.items():
        element_bits = bits_of(kind[1:]) if kind.startswith("*") else None
        info = AxisInfo.argument(divisibility)
        names[name] = Value(info, argument=True, element_bits=element_bits)
    for index in indices:
        exec(index, names)
    return names
