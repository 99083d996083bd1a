"""Vector types that TVM's CUDA code generation has, and those that it writes wrongly.

TVM 0.27 prints a vector as a type of CUDA (``char4``), or as one of words of as many bytes. Of
other lengths it says "Cannot convert type", or prints a type that CUDA lacks. Two kinds compile and
move other bytes: vectors of ``bool`` are ``ushort2`` to ``ushort4``, twice as wide, and of FP8 the
length is divided by 4 and rounded down.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any, NamedTuple

import tvm
from tvm import tirx

from .queries import ARITHMETIC, COMPARISONS, depends_on, nodes_in

_FP8 = (2, 4, 8, 12, 16)
#: Lengths by element type, each compiled by nvcc 13 from a copy and from a sum of such vectors.
_LANES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("int8", "uint8"), (2, 3, 4, 8, 16)),
    **dict.fromkeys(("int16", "uint16", "int32", "uint32", "float32"), (2, 3, 4, 6, 8)),
    **dict.fromkeys(("float16", "bfloat16"), (2, 4, 6, 8)),
    **dict.fromkeys(("int64", "uint64", "float64"), (2, 3, 4)),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), _FP8),
    "bool": (),
}
#: First compute capabilities with these types; before them TVM stores bits of the other type.
_SINCE = {
    "float8_e4m3fn": ((8, 9), "uint8"),
    "float8_e5m2": ((8, 9), "uint8"),
    "bfloat16": ((8, 0), "uint16"),
}


class VectorUse(NamedTuple):
    """A vector that a lowered program computes, loads or stores."""

    dtype: str  #: Of an element
    lanes: int
    verb: str  #: ``loads``, ``stores`` or ``computes``
    buffer: Any = None  #: What is loaded or stored
    index: Any = None  #: Its last index


def lanes_of_type(dtype: str, capability: tuple[int, int]) -> tuple[int, ...] | None:
    """Lengths of the vectors that CUDA code can have of an element type; None if nobody knows."""
    since, instead = _SINCE.get(dtype, ((0, 0), dtype))
    return _LANES.get(dtype if capability >= since else instead)


def vectors_of(body: Any) -> Iterator[VectorUse]:
    """Vectors of constant length in a lowered program, indices apart."""
    # A kernel has thousands of values, and few types, each of which is one object.
    known: dict[int, tuple[Any, str, int]] = {}
    for one in nodes_in(body, tvm.ir.TensorLoad, tirx.BufferStore, tirx.Cast):
        ty = one.value.ty if isinstance(one, tirx.BufferStore) else one.ty
        if ty.__chandle__() not in known:
            known[ty.__chandle__()] = ty, *_element_and_lanes(ty)
        _, kind, lanes = known[ty.__chandle__()]
        if lanes == 1:
            continue
        if isinstance(one, tvm.ir.TensorLoad):
            yield VectorUse(kind, lanes, "loads", one.source, one.indices[-1])
        elif isinstance(one, tirx.BufferStore):
            yield VectorUse(kind, lanes, "stores", one.buffer, one.indices[-1])
        else:
            yield VectorUse(kind, lanes, "computes")


def _element_and_lanes(ty: Any) -> tuple[str, int]:
    """Element type and constant length of a vector; anything else is one element."""
    head, mark, lanes = str(ty).rpartition("x")
    return (head, int(lanes)) if mark and head and lanes.isdigit() else (str(ty), 1)


def lacking(func: Any, capability: tuple[int, int]) -> str | None:
    """Say which vector CUDA has no type for, of a function after TVM's VectorizeLoop."""
    for one in vectors_of(func.body):
        lanes = lanes_of_type(one.dtype, capability)
        if lanes and one.lanes not in lanes:
            return (
                f"The kernel {one.verb} vectors of {one.lanes} {one.dtype}"
                f"{f' ({one.buffer.name})' if one.buffer is not None else ''}, and CUDA code has "
                f"those of {_listed(lanes)}."
            )
    return None


def miswritten(func: Any, capability: tuple[int, int]) -> str | None:
    """Say which access TVM's CUDA would make to other bytes, of a function after VectorizeLoop."""
    for one in vectors_of(func.body):
        if one.buffer is None or not one.dtype.startswith(("bool", "float8")):
            continue
        what = (
            f"A vector of {one.lanes} {one.dtype} cannot be "
            f"{'loaded from' if one.verb == 'loads' else 'stored to'} {one.buffer.name}"
        )
        if one.dtype == "bool" and _at_once(one, func):
            return (
                f"{what}, as CUDA code has none of truth values and TVM writes those of 2 to 4 "
                "twice as wide; do not vectorize this loop, or keep the values as int8."
            )
        lanes = lanes_of_type(one.dtype, capability)
        if one.dtype.startswith("float8") and lanes == _FP8 and one.lanes not in lanes:
            return (
                f"{what}, as TVM's CUDA code moves FP8 in whole groups of 4 and leaves the rest "
                f"out; {_listed(lanes)} elements are legal."
            )
    return None


def lacking_arithmetic(func: Any, capability: tuple[int, int]) -> str | None:
    """Say which arithmetic of a lowered function CUDA has no operators for: that of FP8."""
    types = (one.a.ty for one in nodes_in(func.body, *ARITHMETIC, *COMPARISONS))
    found = [str(ty) for ty in {ty.__chandle__(): ty for ty in types}.values()]
    kinds = [one.rpartition("x")[0] if one.count("x") else one for one in found]
    kind = next((one for one in kinds if one.startswith("float8")), None)
    if kind is None or capability < _SINCE.get(kind, ((0, 0), ""))[0]:
        return None
    return (
        f"CUDA has no arithmetic and no comparisons of {kind}; cast to float16 or float32, compute "
        "there, and cast the result."
    )


def _at_once(one: VectorUse, func: Any) -> bool:
    """Whether TVM's code generation moves a vector in one access, as far as it can be told."""
    ramp = one.index
    if not isinstance(ramp, tirx.Ramp):
        return not one.buffer.ty.dtype.is_scalar()
    if not (isinstance(ramp.stride, int | tirx.IntImm) and int(ramp.stride) == 1):
        return False
    if one.verb == "stores":
        return True
    known = tvm.sym.Analyzer().modular_set(ramp.base)
    step, first = int(known.coeff), int(known.base)
    # A loop may be unrolled later, and each of its values stand alone.
    if any(depends_on(ramp.base, loop.loop_var) for loop in nodes_in(func.body, tirx.For)):
        return first % gcd(step, one.lanes) == 0
    return step % one.lanes == 0 and first % one.lanes == 0


def _listed(lanes: tuple[int, ...]) -> str:
    *most, last = lanes
    return f"{', '.join(map(str, most))} or {last}"
