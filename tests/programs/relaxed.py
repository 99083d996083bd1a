"""Functions of Relax, given by what they compute of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, tirx


def emit(value: Any) -> Any:
    """A variable of a value, where its type is asked for; nested calls need none."""
    return relax.BlockBuilder.current().emit(value)


def relax_module(
    build: Callable[..., Any],
    *tensors: Any,
    dtype: str = "float16",
    **named: Any,
) -> tvm.IRModule:
    """A module whose ``main`` gives what is built of its parameters.

    A parameter is a variable, a shape, or a shape and a type; names in shapes are symbolic sizes.
    """
    known: dict[str, tirx.Var] = {}

    def size(one: Any) -> Any:
        return known.setdefault(one, tirx.Var(one, "int64")) if isinstance(one, str) else one

    def variable(name: str, given: Any) -> relax.Var:
        if isinstance(given, relax.Var):
            return given
        pair = len(given) == 2 and isinstance(given[0], (tuple, list))
        shape, kind = given if pair else (given, dtype)
        return relax.Var(name, relax.TensorType([size(one) for one in shape], kind))

    given = [*((f"x{at}", one) for at, one in enumerate(tensors)), *named.items()]
    params = [variable(*one) for one in given]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(build(*params)))
        builder.emit_func_output(out)
    return builder.get()
