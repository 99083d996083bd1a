"""Functions that a module hands to TVM's paged cache: kernels of ours, and what pages are like."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.frontend.nn.llm.kv_cache import RopeMode

from ... import decisions
from ...analysis.assumptions import divisible
from ...analysis.nest import element_bytes
from ...errors import ScheduleError
from ...gpu.hardware import architecture
from ...ir import ops
from ...ir.queries import nodes_in
from ...ir.rebuild import block_with, realize_with, sequence
from ...target import has_warpgroups_around
from .attention import ROLES, on_tensor_cores

_log = logging.getLogger("tvm_layout_ext")
_CREATE = "vm.builtin.paged_attention_kv_cache_create"
#: Places among the arguments of the creation.
_DISAGGREGATED, _ROPE_MODE = 8, 9
#: Bytes that divide the place of a layer's pages: each layer has a tensor, or a whole part of one.
_ALIGNED = 16


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.PagedCache")
class PagedCache:
    """Compute attention over a paged cache on tensor cores, and tell functions what pages are like.

    A function is one of the cache's by being handed to its creation, and its place there says what
    it is for. Of a layer's pages functions may rely on that they begin at a whole vector: that is
    checked on the host wherever one is called.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite what creations of caches are given."""
        changed = dict(mod.functions.items())
        for creation in creations(mod):
            for gv in _functions_of(creation):
                if isinstance(func := changed.get(gv), tirx.PrimFunc):
                    changed[gv] = _promised(func)
            changed |= _on_tensor_cores(creation, changed)
        return tvm.IRModule(changed, attrs=mod.attrs, global_infos=mod.global_infos)


def _on_tensor_cores(creation: Any, functions: dict[Any, Any]) -> dict[Any, Any]:
    """Functions of a cache that have a kernel of warpgroups; of others a sentence is logged."""
    found = {}
    for place, role in ROLES.items() if has_warpgroups_around() else ():
        for gv in _functions_in(creation.args[place]):
            try:
                _check_cache(creation)
                found[gv] = on_tensor_cores(functions[gv], role, architecture("sm_90a"))
                text = "on tensor cores, by TMA and wgmma"
            except ScheduleError as refused:
                text = f"It stays TVM's. {refused}"
                _log.warning("%s: %s", gv.name_hint, text)
            decisions.note("PagedCache", gv.name_hint, text, refused=gv not in found)
    return found


def _check_cache(creation: Any) -> None:
    """Raise ScheduleError for a cache of which the kernels do not know all.

    Keys of an inline rotation lie in it as they came, and pages of a disaggregated one in memory
    that others share, behind an offset.
    """
    if int(creation.args[_ROPE_MODE]) == RopeMode.INLINE:
        raise ScheduleError("Its keys are turned inside of the kernel.")
    if int(creation.args[_DISAGGREGATED]):
        raise ScheduleError("Its pages are shared with other processes.")


def creations(mod: tvm.IRModule) -> Iterator[Any]:
    """Calls of a module that make a paged cache."""
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            for call in nodes_in(func, relax.Call):
                given = call.args[0] if call.args else None
                if isinstance(given, relax.ExternFunc) and given.global_symbol == _CREATE:
                    yield call


def _functions_of(creation: Any) -> Iterator[Any]:
    """Names of the functions that a cache is made of, in order."""
    for given in creation.args[1:]:
        yield from _functions_in(given)


def _functions_in(given: Any) -> Iterator[Any]:
    parts = given.fields if isinstance(given, relax.Tuple) else [given]
    yield from (part for part in parts if isinstance(part, tvm.ir.GlobalVar))


def _promised(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function that assumes whole vectors at the beginning of its views."""
    if func.attrs.get(ops.IS_SCHEDULED, 0):
        return func
    known = []
    for param in func.params:
        offset = getattr(param.ty, "elem_offset", None)
        if isinstance(offset, tirx.Var) and len(param.shape) > 1:
            whole = divisible(offset, _ALIGNED // element_bytes(param))
            known.append(tirx.Evaluate(tirx.call_intrin("bool", ops.ASSUME, whole)))
    root = func.body.block
    body = sequence([*known, root.body])
    return func.with_body(realize_with(func.body, block_with(root, body=body)))
