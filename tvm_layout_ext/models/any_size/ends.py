"""What lies behind the ends of a function's sizes, which whole tiles reach: zeros, never stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...ir.conditions import is_zero, step_of
from ...ir.queries import is_among, is_global, loads_in, nodes_in, uses, variables
from ...tune.space.functions import blocks_of
from ...tune.space.off_tensor_cores import is_product


def guarded(func: tirx.PrimFunc, whole: tirx.PrimFunc, sizes: list[Any]) -> Any:
    """The body of a schedule of whole tiles, with the parameters of the function that it is of.

    Raises ScheduleError if it stores what it would read behind the end of.
    """
    own = dict(zip((p.__chandle__() for p in whole.params), func.params, strict=True))
    crossed = _crossed(func, sizes)
    _check_intermediate(func, whole.body, crossed, sizes)
    return tvm_ffi.structural_map(whole.body, _Guards(own, crossed).table(), order="post")


@dataclass(frozen=True)
class _Guards:
    """Accesses of parameters with their own sizes, by the handles of those of whole tiles."""

    own: dict[int, Any]
    #: Dims whose ends tiles may cross, by handles of parameters, and whether their beginnings, too.
    crossed: dict[tuple[int, int], bool]

    def table(self) -> list[tuple[type, Any]]:
        return [
            (tvm.ir.TensorLoad, self.load),
            (tirx.BufferStore, self.store),
            (tvm.ir.TensorRegion, self.region),
        ]

    def load(self, node: Any) -> Any:
        param = self.own.get(node.source.__chandle__())
        if param is None:
            return node
        found = tirx.BufferLoad(param, list(node.indices))
        inside = self._inside(param, node.indices)
        if inside is None:
            return found
        return tirx.if_then_else(inside, found, tirx.const(0, str(param.dtype)))

    def store(self, node: Any) -> Any:
        param = self.own.get(node.buffer.__chandle__())
        if param is None:
            return node
        found = tirx.BufferStore(param, node.value, list(node.indices))
        inside = self._inside(param, node.indices)
        return found if inside is None else tirx.IfThenElse(inside, found, None)

    def _inside(self, param: Any, indices: Any) -> Any:
        """Whether indices lie inside of a parameter, along dims whose ends tiles may cross."""
        found = []
        for dim, (at, end) in enumerate(zip(indices, param.shape, strict=True)):
            is_both = self.crossed.get((param.__chandle__(), dim))
            if is_both is not None:
                found += [at >= 0, at < end] if is_both else [at < end]
        return tirx.all(*found) if found else None

    def region(self, node: Any) -> Any:
        param = self.own.get(node.source.__chandle__())
        return node if param is None else tirx.BufferRegion(param, list(node.region))


def _crossed(func: tirx.PrimFunc, sizes: list[Any]) -> dict[tuple[int, int], bool]:
    """Dims of parameters behind which whole tiles would read or write, and whether before, too.

    Beside those of these sizes, what is counted by them: rows 1 to ``n`` of ``n + 1``, or of 100.
    """
    found: dict[tuple[int, int], bool] = {}
    for param in func.params:
        for dim, end in enumerate(getattr(param, "shape", ())):
            if any(uses(end, size) for size in sizes):
                found[param.__chandle__(), dim] = False
    for _, block in reversed(blocks_of(func)):
        wide = [one.var for one in block.iter_vars if any(uses(one.dom, size) for size in sizes)]
        # What is read behind the end of an intermediate result is computed there, if inlined.
        for store in nodes_in(block, tirx.BufferStore):
            for dim, index in enumerate(store.indices):
                if (store.buffer.__chandle__(), dim) in found:
                    wide += [v for v in variables(index) if not is_among(v, wide)]
        for access in nodes_in(block, tvm.ir.TensorLoad, tirx.BufferStore):
            buffer = access.source if isinstance(access, tvm.ir.TensorLoad) else access.buffer
            for dim, index in enumerate(access.indices):
                steps = [step_of(index, var) for var in wide if uses(index, var)]
                if steps:
                    key = buffer.__chandle__(), dim
                    is_back = any(step is None or step < 0 for step in steps)
                    found[key] = found.get(key, False) or is_back
    return found


def _check_intermediate(
    func: tirx.PrimFunc, scheduled: Any, crossed: dict[tuple[int, int], bool], sizes: list[Any]
) -> None:
    """Refuse a schedule that stores what it would read behind the end of."""
    short = {
        str(buffer.name)
        for buffer in func.body.block.alloc_buffers
        for dim, end in enumerate(buffer.shape)
        if (buffer.__chandle__(), dim) in crossed and not any(uses(end, one) for one in sizes)
    }
    for load in loads_in(scheduled):
        if is_global(load.source) and str(load.source.name) in short:
            raise ScheduleError(f"{load.source.name} is stored, and whole tiles read behind it.")


def check_terms(func: tirx.PrimFunc, size: Any) -> None:
    """Refuse a product of so many terms of which a factor is not zero behind the last one."""
    for _, block in blocks_of(func):
        summed = [one for one in block.iter_vars if one.iter_type == tirx.IterVar.CommReduce]
        for one in summed if is_product(block) else ():
            if not one.dom.extent.same_as(size):
                continue
            for load in loads_in(block.body.value):
                used = any(uses(at, one.var) for at in load.indices)
                if used and not _ends_with_zeros(func, load, one.var, size):
                    raise ScheduleError(
                        f"{load.source.name} is not zero behind the {size} terms of a product, to"
                        " which whole tiles add some."
                    )


def _ends_with_zeros(func: tirx.PrimFunc, load: Any, var: Any, size: Any) -> bool:
    """Whether what is loaded is zero from ``var = size`` on, as parameters are there."""
    pairs = zip(load.indices, load.source.shape, strict=True)
    if not any(at.same_as(var) and end.same_as(size) for at, end in pairs):
        return False
    if is_among(load.source, func.params):
        return True
    dim = next(i for i, at in enumerate(load.indices) if at.same_as(var))
    stores = [
        store
        for store in nodes_in(func.body, tirx.BufferStore)
        if store.buffer.same_as(load.source)
    ]

    def is_zero_behind(store: Any) -> bool:
        own = store.indices[dim]

        def value(node: Any) -> Any:
            zeros = _ends_with_zeros(func, node, own, size)
            return tirx.const(0, str(node.source.dtype)) if zeros else node

        found = tvm_ffi.structural_map(store.value, [(tvm.ir.TensorLoad, value)], order="post")
        return is_zero(tvm.sym.Analyzer().simplify(found))

    return all(map(is_zero_behind, stores))
