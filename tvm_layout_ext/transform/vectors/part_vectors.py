"""Keep loads and stores whole around what TVM has no vector form of.

TVM 0.27 does a vector one element after the other, loads and stores too, if there is an ``erf`` or
``rsqrt`` in it: GELU of halves took eight loads of 2 bytes a thread and as many stores.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir import ops
from ...ir.conditions import loads_with_conditions, step_of
from ...ir.queries import depends_on, is_call_of, is_number, loads_in, nodes_in, substitute
from ...ir.rebuild import loop_with, sequence, unrolled, vectorized
from ..base import function_pass, mapped

#: Lanes of 16 bits up to which TVM 0.27's CUDA gathers them; of more it ends in an internal error.
_GATHERED = 4


def _parted(loop: Any) -> Any:
    """Load vectors into registers, compute their elements one by one, and store vectors."""
    store = loop.body
    if isinstance(store, tirx.IfThenElse) and not depends_on(store.condition, loop.loop_var):
        parted = _parted(loop_with(loop, body=store.then_case))
        is_new = store.else_case is None and not isinstance(parted, tirx.For)
        return tirx.IfThenElse(store.condition, parted, None) if is_new else loop
    is_vector = loop.kind == tirx.ForKind.VECTORIZED and isinstance(store, tirx.BufferStore)
    is_known = is_number(loop.min, 0) and isinstance(loop.extent, tirx.IntImm)
    if not is_vector or not is_known:
        return loop
    lanes, var = int(loop.extent), loop.loop_var
    is_gathered = lanes > _GATHERED and _gathers(store.value, var)
    if not is_gathered and not _needs_it(store.value, var):
        return loop
    guards = _whole_loads(store.value, var)
    whole = [load for load, _ in guards]
    if not (whole or is_gathered) or not _runs(store.indices, var):
        return loop
    made = [_registers(var, load.source, lanes) for load in whole]
    out = _registers(var, store.buffer, lanes)

    def at(node: Any, lane: Any) -> Any:
        return substitute(node, {var: lane.astype(str(var.ty.dtype))})

    def element(lane: Any) -> Any:
        def kept(node: Any) -> Any:
            pairs = zip(whole, made, strict=True)
            own = (b for x, b in pairs if tvm_ffi.structural_equal(node, x))
            buffer = next(own, None)
            return node if buffer is None else tirx.BufferLoad(buffer, [lane])

        rules = [(tvm.ir.TensorLoad, kept)]
        value = tvm_ffi.structural_map(store.value, rules, order="post")
        return tirx.BufferStore(out, at(value, lane), [lane])

    def moved(target: Any, indices: Any, load: Any) -> Any:
        """Store a vector that is loaded; None stands for its lane."""

        def lane_of(v: Any) -> Any:
            own = [v] if indices is None else [at(index, v) for index in indices]
            return tirx.BufferStore(target, load(v), own)

        return vectorized(lanes, lane_of)

    def loaded(guard: Any, load: Any, buffer: Any) -> Any:
        vector = moved(buffer, None, partial(at, load))
        return vector if guard is None else tirx.IfThenElse(guard, vector, None)

    loads = (loaded(guard, x, b) for (x, guard), b in zip(guards, made, strict=True))
    stored = moved(store.buffer, store.indices, lambda v: tirx.BufferLoad(out, [v]))
    held = map(tirx.AllocBuffer, (*made, out))
    return sequence([*held, *loads, unrolled(lanes, element), stored])


def _gathers(value: Any, var: Any) -> bool:
    """Whether lanes of floats of 16 bits are loaded from apart, and under no condition."""
    return not nodes_in(value, tirx.Select) and any(
        str(load.source.dtype) in ("float16", "bfloat16")
        and any(depends_on(index, var) for index in load.indices)
        and not _runs(load.indices, var)
        for load in loads_in(value)
    )


def _needs_it(value: Any, var: Any) -> bool:
    """Whether a value has such a call of its own in each lane, and no load under a condition."""
    calls = nodes_in(value, tvm.ir.Call)
    is_choice = nodes_in(value, tirx.Select) or any(is_call_of(x, ops.CHOICE) for x in calls)
    return not is_choice and any(
        is_call_of(x, *ops.WITHOUT_VECTORS) and depends_on(x, var) for x in calls
    )


def _whole_loads(value: Any, var: Any) -> list[tuple[Any, Any]]:
    """Loads of neighbours that all lanes do or none, each once, with the condition if there is one.

    One that only some lanes do may be of an address outside of its buffer in the others. Of ``and``
    and ``or`` later passes compute both sides if these ask registers, filled or not.
    """
    joined = [load for one in nodes_in(value, tirx.And, tirx.Or) for load in loads_in(one)]
    found: list[tuple[Any, Any]] = []
    sites = [(x, held) for x, held in loads_with_conditions(value) if _runs(x.indices, var)]
    for load, _ in sites:
        if _has(load, [other for other, _ in found]):
            continue
        ways = [held for other, held in sites if tvm_ffi.structural_equal(load, other)]
        asked = [one for held in ways for one in held]
        if not all(ways):
            found.append((load, None))
        elif not _has(load, joined) and not any(loads_in(x) or depends_on(x, var) for x in asked):
            found.append((load, reduce(tirx.Or, [reduce(tirx.And, held) for held in ways])))
    return found


def _has(load: Any, loads: list[Any]) -> bool:
    return any(tvm_ffi.structural_equal(load, other) for other in loads)


def _runs(indices: Any, var: Any) -> bool:
    """Whether neighbours in a vector are neighbours in memory."""
    return len(indices) == 1 and step_of(indices[0], var) == 1


def _registers(var: Any, like: Any, lanes: int) -> Any:
    name = f"{like.name}_{var.name}"
    return tirx.decl_buffer((lanes,), like.dtype, name, scope="local", layout=None)


@function_pass()
def PartVectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that keeps loads and stores whole around calls without a vector form.

    ::

        for v in T.vectorized(8):             for v in T.vectorized(8): a[v] = A[x * 8 + v]
            B[x * 8 + v] =                    for v in T.unroll(8): b[v] = T.erf(a[v])
                T.erf(A[x * 8 + v])           for v in T.vectorized(8): B[x * 8 + v] = b[v]

    So it does where more than four floats of 16 bits lie apart, which TVM does not write.

    A condition that is the same in all lanes guards the vectors of the loads that are under it.

    Leaves alone: values that a condition chooses around such calls, loads that only some lanes do,
    and other accesses whose elements lie apart.
    """
    return mapped(func, (tirx.For, _parted))
