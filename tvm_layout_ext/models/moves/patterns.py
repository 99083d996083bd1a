"""What TVM fuses with what, where its patterns of functions say otherwise."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.ops import IS_SCHEDULED
from ...ir.queries import blocks_in, nodes_in, thread_tag

#: TVM's patterns of what takes elements from any place, and of what is fused with nothing.
_INJECTIVE, _OPAQUE = 2, 8


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.FusionPatterns")
class FusionPatterns:
    """Say of gathers and slices that they take elements from any place, before ``FuseOps``.

    TVM fuses a gather with nothing, as its indices are loaded: 26 tables of a recommender, whose
    rows are put side by side, were 78 kernels. And it takes a slice that begins at 0 for a sum of
    elements, which would end the kernel of a product; but that stores all of its sums.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Give functions of a module another pattern."""
        for gv, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and "op_pattern" in func.attrs:
                pattern = int(func.attrs["op_pattern"])
                is_gather = pattern == _OPAQUE and _gathers(func)
                if is_gather or (pattern < _INJECTIVE and _reads_a_part(func)):
                    mod.update_func(gv, func.with_attr("op_pattern", _INJECTIVE))
        return mod


def _gathers(func: tirx.PrimFunc) -> bool:
    """Whether each block of a function without threads computes elements at their own places."""
    if IS_SCHEDULED in func.attrs or any(map(thread_tag, nodes_in(func.body, tirx.For))):
        return False
    blocks = [one for one in blocks_in(func.body) if one.iter_vars]
    return bool(blocks) and all(map(_is_of_elements, blocks))


def _is_of_elements(block: Any) -> bool:
    store = block.body
    if not isinstance(store, tirx.BufferStore) or len(store.indices) != len(block.iter_vars):
        return False
    pairs = zip(block.iter_vars, store.indices, strict=True)
    return all(one.iter_type == tirx.IterVar.DataPar and one.var.same_as(at) for one, at in pairs)


def _reads_a_part(func: tirx.PrimFunc) -> bool:
    """Whether a function of elements has an operand of more places than its result along a dim."""
    *given, result = [one.shape for one in func.params if hasattr(one, "shape")]
    alike = [one for one in given if len(one) == len(result)]
    sizes = [pair for one in alike for pair in zip(one, result, strict=True)]
    known = [pair for pair in sizes if all(isinstance(n, tirx.IntImm) for n in pair)]
    return any(int(own) > int(whole) for own, whole in known)
