"""``InSequence``: say of each function of a model what others around it leave to its kernels."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.annotations import CONSTANTS, IN_SEQUENCE
from ...ir.queries import is_call_of, nodes_of

_CALLS = ("relax.call_tir", "relax.call_tir_inplace")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.InSequence")
class InSequence:
    """Tell ``OverlapLaunches`` which functions are called in turn, and what of theirs are weights.

    A parameter is one if each call gives it a constant of the module: no kernel ever writes it.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Set two attributes of all functions of TIR."""
        constants = _constants(mod)
        functions = dict(mod.functions.items())
        for gv, one in functions.items():
            if isinstance(one, tirx.PrimFunc):
                numbers = sorted(constants.get(gv.name_hint, ()))
                functions[gv] = one.with_attr({IN_SEQUENCE: True, CONSTANTS: numbers})
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _constants(mod: tvm.IRModule) -> dict[str, set[int]]:
    """Of each function that is called, by name, the parameters that are always constants."""
    found: dict[str, set[int]] = {}
    nodes = (one for func in mod.functions.values() for one in nodes_of(func))
    for call in (one for one in nodes if is_call_of(one, *_CALLS)):
        written = {int(n) for n in getattr(call.attrs, "inplace_indices", ())}
        given = {n for n, one in enumerate(call.args[1]) if isinstance(one, tvm.ir.Constant)}
        given -= written
        name = call.args[0].name_hint
        found[name] = found.get(name, given) & given
    return found
