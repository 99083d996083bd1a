"""What a function computes, found out by running it on the CPU in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ....errors import ScheduleError
from ....ir.queries import ARITHMETIC, COMPARISONS, loads_in, nodes_in, uses
from ...space.functions import blocks_of
from ...space.operator import Tolerance
from .rows import MOST, Rows, choose_rows, guarded, stores_in

_WIDE = "float64"
#: Bytes, of arrays that TVM takes as they are.
_ALIGNMENT = 64
#: Of a negative number, or of none, these are no numbers, and nothing could be compared.
_POSITIVE = frozenset(f"{p}.{n}" for p in ("tirx", "prim") for n in ("sqrt", "rsqrt", "log", "pow"))
#: They compute nothing.
_CHOICES = ("if_then_else", "likely")
_BINARY = (*ARITHMETIC, *COMPARISONS, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def buffers_of(func: tirx.PrimFunc) -> list[Any]:
    """Parameters, all buffers, of which only the last, the output, is written."""
    buffers = list(func.params)
    for buffer in buffers:
        if not hasattr(buffer, "shape") or not all(
            isinstance(n, tirx.IntImm) for n in buffer.shape
        ):
            raise ScheduleError(
                f"Parameter {buffer.name} is no buffer whose shape is all numbers; the tuner draws "
                "inputs, so it needs to know how large they are; relax.transform.BindSymbolicVars "
                "gives a symbolic size its value."
            )
    written = {str(region.source.name) for _, block in blocks_of(func) for region in block.writes}
    outputs = [buffer.name for buffer in buffers if buffer.name in written]
    if outputs != [buffers[-1].name]:
        raise ScheduleError(
            f"The function writes {', '.join(outputs) or 'none of its parameters'}; a function to "
            f"tune has one output, its last parameter {buffers[-1].name}."
        )
    return buffers


def draw(func: tirx.PrimFunc, rng: np.random.Generator) -> list[np.ndarray]:
    """Random inputs; integers that are used as indices stay inside what they index.

    Floats are normally distributed, or lie between 0.5 and 1.5 if the function takes a root or a
    logarithm of something.
    """
    limits = _index_limits(func)
    positive = bool(_POSITIVE & _calls(func.body))
    return [_draw_one(buffer, limits, positive, rng) for buffer in buffers_of(func)[:-1]]


def _draw_one(
    buffer: Any, limits: dict[str, int], positive: bool, rng: np.random.Generator
) -> np.ndarray:
    shape, dtype = tuple(map(int, buffer.shape)), np.dtype(str(buffer.dtype))
    if str(dtype) == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        low, high = (0, limits[buffer.name]) if buffer.name in limits else (-8, 8)
        return rng.integers(max(low, np.iinfo(dtype).min), high, shape).astype(dtype)
    values = rng.uniform(0.5, 1.5, shape) if positive else rng.standard_normal(shape, np.float32)
    return values.astype(dtype)


def _index_limits(func: tirx.PrimFunc) -> dict[str, int]:
    """Of each buffer whose elements are indices, the smallest extent that they index."""
    limits: dict[str, int] = {}
    for one in nodes_in(func.body, tvm.ir.TensorLoad, tirx.BufferStore):
        buffer = one.buffer if isinstance(one, tirx.BufferStore) else one.source
        for index, extent in zip(one.indices, buffer.shape, strict=True):
            for load in loads_in(index):
                name, most = load.source.name, int(extent)
                limits[name] = min(limits.get(name, most), most)
    return limits


def _calls(node: Any) -> set[str]:
    return {getattr(call.op, "name", "") for call in nodes_in(node, tvm.ir.Call)}


@dataclass(frozen=True)
class Expected:
    """What an output should hold: all of ``values``, or those in ``rows`` along ``axis``."""

    values: np.ndarray
    rows: np.ndarray | None = None
    axis: int = 0

    def known(self, array: np.ndarray) -> np.ndarray:
        """The part of an array of the output's shape that can be compared."""
        return array if self.rows is None else array.take(self.rows, self.axis)


class Reference:
    """What a function gives, by the CPU; some rows only beyond ``most`` iterations."""

    def __init__(self, func: tirx.PrimFunc, most: int = MOST) -> None:
        self.func, self._most = func, most
        self._scale: float | None = None
        self._built: dict[Rows | None, Any] = {}

    @cached_property
    def _wide(self) -> tirx.PrimFunc:
        return _widened(self.func)

    @cached_property
    def _rows(self) -> Rows | None:
        blocks = [node for node, _ in blocks_of(self._wide)]
        return choose_rows(blocks, self._wide.params[-1], self._most)

    def __call__(self, *inputs: np.ndarray) -> np.ndarray:
        """Compute the output, in its own type."""
        return self._computed(None, inputs).values

    def expect(self, *inputs: np.ndarray) -> Expected:
        """Compute as much of the output as takes about a second at most."""
        return self._computed(self._rows, inputs)

    def _computed(self, rows: Rows | None, inputs: Sequence[np.ndarray]) -> Expected:
        output = buffers_of(self.func)[-1]
        shape, wide = tuple(map(int, output.shape)), self._wide.params
        shapes = [*(array.shape for array in inputs), shape]
        arrays = [_zeros(s, str(buffer.dtype)) for s, buffer in zip(shapes, wide, strict=True)]
        for ours, given in zip(arrays, inputs, strict=False):
            ours[...] = given
        if rows is not None:
            arrays.insert(0, _zeros((shape[rows.axis],), "int8"))
            arrays[0][rows.chosen] = 1
        # TVM takes them as they are: to copy large ones takes longer than to compute.
        self._compiled(rows)["main"](*map(tvm.runtime.from_dlpack, arrays))
        found = arrays[-1]
        if rows is None:
            self._scale = _root_mean_square(found)
            return Expected(found.astype(str(output.dtype)))
        known = found.take(rows.chosen, rows.axis)
        self._scale = _root_mean_square(known)
        values = np.zeros(shape, str(output.dtype))
        np.moveaxis(values, rows.axis, 0)[rows.chosen] = np.moveaxis(known, rows.axis, 0)
        return Expected(values, rows.chosen, rows.axis)

    def _compiled(self, rows: Rows | None) -> Any:
        if rows not in self._built:
            mod = _on_cpu(self._wide, rows)
            self._built[rows] = tvm.compile(mod, target="llvm", tir_pipeline="s_tir")
        return self._built[rows]

    def tolerance(self) -> Tolerance:
        """How far a kernel may lie from it.

        Copies and integers must be exact. Else any value may be rounded to the coarsest type there
        is, and a sum of K terms in any order loses about the square root of K roundings, relative
        to what the output is like on average (its root mean square).
        """
        lost = _roundings(self.func)
        if not lost:
            return Tolerance()
        if self._scale is None:
            self.expect(*draw(self.func, np.random.default_rng(0)))
        return Tolerance(rtol=lost, atol=lost * (self._scale or 0.0))


def _zeros(shape: Sequence[int], dtype: str) -> np.ndarray:
    """An array that begins where TVM wants one to begin."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _widened(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make every float of a function a float64: its buffers, its constants and its arithmetic."""
    wide = tvm.ir.PrimType(_WIDE)
    # Types of expressions are no part of what structural_map walks over, so these are built anew.
    buffers = tvm_ffi.structural_map(
        func, [(tvm.ir.PrimType, lambda kind: wide if "float" in str(kind.dtype) else kind)]
    )
    rules = [(kind, lambda node: type(node)(node.a, node.b)) for kind in _BINARY]
    rules += [
        (tirx.FloatImm, lambda node: tirx.FloatImm(_WIDE, node.value)),
        (tirx.Cast, _wide_cast),
        (tirx.Select, lambda node: tirx.Select(node.condition, node.true_value, node.false_value)),
        (tvm.ir.Call, _wide_call),
    ]
    return buffers.with_body(tvm_ffi.structural_map(buffers.body, rules, order="post"))


def _wide_cast(node: Any) -> Any:
    if "float" not in str(node.ty.dtype):
        return node
    return node.value if str(node.value.ty.dtype) == _WIDE else tirx.Cast(_WIDE, node.value)


def _wide_call(node: Any) -> Any:
    if "float" not in str(getattr(node.ty, "dtype", "")):
        return node
    return tvm.ir.Call(node.op, node.args, node.attrs, node.ty_args, ret_ty=_WIDE)


def _on_cpu(func: tirx.PrimFunc, rows: Rows | None) -> tvm.IRModule:
    """Share each block's outer loops out to the cores; the inner one runs along memory."""
    sch = s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    nodes = [node for node, _ in blocks_of(func)]
    along = (None,) * len(nodes) if rows is None else rows.loops
    for node, row in zip(nodes, along, strict=True):
        with suppress(RuntimeError, ScheduleError):
            _spread_out(sch, node, row)
    if rows is None:
        return sch.mod
    extent = int(func.params[-1].shape[rows.axis])
    variables = [row for row in along if row is not None]
    return tvm.IRModule({"main": guarded(sch.mod["main"], variables, extent)})


def _spread_out(sch: s_tir.Schedule, node: Any, row: Any) -> None:
    """Put the loop of the rows first, and the one along memory last."""
    block = sch.get_sblock(str(node.block.name_hint))
    kinds = [iterator.iter_type for iterator in node.block.iter_vars]
    inner = _streamed(node.block)
    own = {sch.get(loop).loop_var.__chandle__(): loop for loop in sch.get_loops(block)}
    loops = [own.get(value.__chandle__()) for value in node.iter_values]
    summed = [i for i, kind in enumerate(kinds) if kind == tirx.IterVar.CommReduce]
    outer = [i for i in range(len(kinds)) if i not in (*summed, inner)]
    outer.sort(key=lambda i: row is None or not node.iter_values[i].same_as(row))
    order = [*outer, *summed, *([] if inner is None else [inner])]
    sch.reorder(*(loops[i] for i in order if loops[i] is not None))
    shared = [loops[i] for i in outer if loops[i] is not None]
    if shared:
        # A batch of one leaves the cores nothing to share.
        sch.parallel(shared[0] if row is not None else sch.fuse(*shared))
    if summed and inner is not None:
        sch.decompose_reduction(block, loops[summed[0]])


def _streamed(block: Any) -> int | None:
    """The iterator along which all accesses go from one element to the next, or stay."""
    if not isinstance(block.body, tirx.BufferStore):
        return None
    accesses = [block.body, *loads_in(block.body)]
    for position, iterator in reversed(list(enumerate(block.iter_vars))):
        var = iterator.var
        if (
            iterator.iter_type == tirx.IterVar.DataPar
            and all(
                one.indices[-1].same_as(var) or not uses(one.indices[-1], var)
                for one in accesses
                if one.indices
            )
            and not any(uses(index, var) for one in accesses for index in one.indices[:-1])
        ):
            return position
    return None


def _roundings(func: tirx.PrimFunc) -> float:
    """Relative error that a kernel may have; 0 if it only copies, or computes with integers."""
    types = {str(region.source.dtype) for _, block in blocks_of(func) for region in block.writes}
    types |= {str(buffer.dtype) for buffer in buffers_of(func)}
    epsilons = [_epsilon(name) for name in types if "float" in name]
    if not epsilons or not _computes(func):
        return 0.0
    sums = [
        math.sqrt(_reduced(block)) * _epsilon(str(block.writes[0].source.dtype))
        for _, block in blocks_of(func)
        if _reduced(block) > 1 and "float" in str(block.writes[0].source.dtype)
    ]
    return 4 * max(epsilons) + 2 * max(sums, default=0.0)


def _epsilon(dtype: str) -> float:
    return float(ml_dtypes.finfo(np.dtype(dtype)).eps)


def _reduced(block: Any) -> int:
    summed = (i for i in block.iter_vars if i.iter_type == tirx.IterVar.CommReduce)
    return math.prod(int(iterator.dom.extent) for iterator in summed)


def _computes(func: tirx.PrimFunc) -> bool:
    """Whether any stored value is more than a copy, a constant, or a choice between such."""
    stores = [store for _, block in blocks_of(func) for store in stores_in(block)]
    calls = {name for store in stores for name in _calls(store.value)}
    return count_flops(func) > 0 or not all(name.endswith(_CHOICES) for name in calls)


def count_flops(func: tirx.PrimFunc) -> int:
    """Additions, multiplications, divisions, maxima and minima of floats, over all iterations."""
    total = 0
    for _, block in blocks_of(func):
        iterations = math.prod(int(iterator.dom.extent) for iterator in block.iter_vars)
        for store in stores_in(block):
            found = nodes_in(store.value, *ARITHMETIC)
            total += iterations * sum("float" in str(node.ty.dtype) for node in found)
    return total
