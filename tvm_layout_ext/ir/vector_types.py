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
    for one in nodes_in(body, tvm.ir.TensorLoad, tirx.BufferStore, tirx.Cast):
        value, verb, buffer, indices = one, "computes", None, (None,)
        if isinstance(one, tvm.ir.TensorLoad):
            verb, buffer, indices = "loads", one.source, one.indices
        elif isinstance(one, tirx.BufferStore):
            value, verb, buffer, indices = one.value, "stores", one.buffer, one.indices
        lanes = _constant_lanes(value)
        if lanes > 1:
            kind = str(value.ty).rpartition("x")[0]
            yield VectorUse(kind, lanes, verb, buffer, indices[-1])


def _constant_lanes(value: Any) -> int:
    text = str(value.ty)
    head, mark, lanes = text.rpartition("x")
    return int(lanes) if mark and head and lanes.isdigit() else 1


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
    loops = [loop.loop_var for loop in nodes_in(func.body, tirx.For)]
    for one in vectors_of(func.body):
        if one.buffer is None:
            continue
        what = (
            f"A vector of {one.lanes} {one.dtype} cannot be "
            f"{'loaded from' if one.verb == 'loads' else 'stored to'} {one.buffer.name}"
        )
        if one.dtype == "bool" and _at_once(one, loops):
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
    found = [str(one.a.ty) for one in nodes_in(func.body, *ARITHMETIC, *COMPARISONS)]
    kinds = [one.rpartition("x")[0] if one.count("x") else one for one in found]
    kind = next((one for one in kinds if one.startswith("float8")), None)
    if kind is None or capability < _SINCE.get(kind, ((0, 0), ""))[0]:
        return None
    return (
        f"CUDA has no arithmetic and no comparisons of {kind}; cast to float16 or float32, compute "
        "there, and cast the result."
    )


def _at_once(one: VectorUse, loops: list[Any]) -> bool:
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
    if any(depends_on(ramp.base, var) for var in loops):
        return first % gcd(step, one.lanes) == 0
    return step % one.lanes == 0 and first % one.lanes == 0


def _listed(lanes: tuple[int, ...]) -> str:
    *most, last = lanes
    return f"{', '.join(map(str, most))} or {last}"
