"""Convolutions of groups as a batch of products, one for each group."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import SBlock

from ...ir.queries import is_among, is_load_of, loads_in, nodes_in
from ...tune.space.functions import blocks_of
from ...tune.space.off_tensor_cores import is_product


def groups_as_batch(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let results of a grouped convolution be counted by group, and by place in it.

    A result reads the channels of its group, ``image[..., f // 64 * 32 + c]``. With iterators
    ``g`` and ``f`` for the two parts this is a batch of products. So are iterators of what is
    computed from the sums element by element. Functions without such a block stay as they are.
    """
    for _, block in blocks_of(func):
        found = _grouped(block) if is_product(block) else None
        if found is not None:
            sch = s_tir.Schedule(func)
            _split(sch, str(block.name_hint), *found)
            return _simplified(sch.mod["main"])
    return func


def _grouped(block: Any) -> tuple[int, int] | None:
    """Which index of the result counts those of all groups, and how many a group has."""
    last = [
        load.indices[-1]
        for load in loads_in(block.body.value)
        if not is_load_of(load, block.body.buffer)
    ]
    extents = {one.var.__chandle__(): one.dom.extent for one in block.iter_vars}
    for part in nodes_in(tvm.runtime.convert(last), tirx.FloorDiv):
        for at, index in enumerate(block.body.indices):
            if not index.same_as(part.a) or not isinstance(part.b, tirx.IntImm):
                continue
            extent, size = extents.get(index.__chandle__()), int(part.b)
            if isinstance(extent, tirx.IntImm) and int(extent) % size == 0 and size > 1:
                return at, size
    return None


def _split(sch: s_tir.Schedule, name: str, at: int, size: int) -> None:
    """Split an iterator of a block, the dim that it writes, and the iterators of its readers."""
    pending, done = [name], set[str]()
    while pending:
        if (own := pending.pop()) in done:
            continue
        done.add(own)
        block = sch.get_sblock(own)
        node = sch.get(block)
        iterators = [one.var for one in node.iter_vars]
        place = next(i for i, var in enumerate(iterators) if var.same_as(node.body.indices[at]))
        sch.transform_block_layout(block, _map(iterators, place, size))
        readers = [sch.get(one) for one in sch.get_consumers(block)]
        # Who calls the function knows its parameters' dims.
        if readers and not is_among(node.body.buffer, sch.mod["main"].params):
            sch.transform_layout(block, ("write", 0), _map(node.body.indices, at, size))
            pending += [
                str(one.name_hint) for one in readers if _is_elementwise(one, node.body.buffer)
            ]


def _map(like: Any, at: int, size: int) -> Any:
    """Split one of as many indices, of the same types, by a number."""
    own = [tirx.Var(f"i{place}", str(one.ty.dtype)) for place, one in enumerate(like)]
    parts = [own[at] // size, own[at] % size]
    return tirx.IndexMap(own, [*own[:at], *parts, *own[at + 1 :]], None)


def _is_elementwise(block: SBlock, buffer: Any) -> bool:
    """Whether each result is computed at its own place from a buffer's element at that place."""
    if block.init is not None or not isinstance(block.body, tirx.BufferStore):
        return False
    own = [one.var for one in block.iter_vars]
    loads = [one for one in loads_in(block.body.value) if is_load_of(one, buffer)]
    return all(
        len(one.indices) == len(own) and all(map(tirx.Var.same_as, own, one.indices))
        for one in (block.body, *loads)
    )


def _simplified(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function whose indices are as simple as the extents of its blocks' iterators allow."""
    analyzer = tvm.sym.Analyzer()
    for _, block in blocks_of(func):
        for one in block.iter_vars:
            analyzer.bind(one.var, one.dom)

    def simple(node: Any) -> Any:
        return analyzer.simplify(node) if "int" in str(node.ty.dtype) else node

    kinds = (tirx.FloorDiv, tirx.FloorMod, tirx.Add)
    body = tvm_ffi.structural_map(func.body, [(kind, simple) for kind in kinds], order="post")
    return func.with_body(body)
