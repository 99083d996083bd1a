"""Functions before any schedule: their digests, their blocks, and whether two compute the same."""

from __future__ import annotations

import hashlib
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ...ir.queries import blocks_in, nodes_in


def bare(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Strip a function of all that does not change what it computes.

    These are its attributes, and the width of its indices: Relax writes 64 bits, TE 32.
    """
    plain = tirx.PrimFunc(func.params, func.body, func.ret_type)
    data = {str(region.dtype) for region in _buffers(plain)}
    if data & {"int64", "uint64"}:
        # TVM's pass would narrow these elements, too.
        return plain
    try:
        narrow = tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": plain}))["main"]
    except (RuntimeError, ValueError, TypeError):
        return plain
    return tirx.PrimFunc(narrow.params, narrow.body, narrow.ret_type)


def _buffers(func: tirx.PrimFunc) -> list[Any]:
    own = [buffer for block in blocks_in(func.body) for buffer in block.alloc_buffers]
    return [param for param in func.params if hasattr(param, "shape")] + own


def same_function(one: tirx.PrimFunc, other: tirx.PrimFunc) -> bool:
    """Whether two bare functions compute the same; names do not count."""
    return bool(tvm_ffi.structural_equal(one, other))


def digest_of(func: tirx.PrimFunc) -> str:
    """Eight hex digits that tell functions apart, in every process; attributes do not count."""
    return hashlib.sha256(bare(func).script().encode()).hexdigest()[:8]


def blocks_of(func: tirx.PrimFunc) -> list[tuple[Any, Any]]:
    """Blocks below the root, in order, with what realises them."""
    nodes = nodes_in(func.body, s_tir.SBlockRealize)
    return [(node, node.block) for node in nodes if node.block.name_hint != "root"]
