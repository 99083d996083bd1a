"""``MemoryApart``: a module's memory is a function of its own, so that a caller may keep it."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ..relax_values import name_of

#: Names of the function that allocates, and of the one that is given what it has allocated.
MEMORY, MAIN = "memory", "main"


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.MemoryApart")
class MemoryApart:
    """Give ``main`` the storages of known size that it allocates, as further parameters.

    ``memory`` allocates them. TVM's virtual machine hands storages to whoever asks next once a call
    has ended, be it for another module's weights. A graph of CUDA that was captured from the call
    writes to them at each replay, so whoever captures has to keep them.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite a module whose memory is planned."""
        main = mod[MAIN]
        bindings = [one for block in main.body.blocks for one in block.bindings]
        found = {one.var: one.value for one in bindings if _is_of_known_size(one.value)}
        mod = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
        mod[MEMORY] = _memory([*found.values()])
        mod[MAIN] = _given(main, found)
        return mod


def _is_of_known_size(call: Any) -> bool:
    if name_of(call) != "memory.alloc_storage":
        return False
    return all(isinstance(extent, tirx.IntImm) for extent in call.args[0].values)


def _memory(calls: list[relax.Call]) -> relax.Function:
    builder = relax.BlockBuilder()
    with builder.function(MEMORY, [], pure=False):
        made = [builder.emit(relax.Call(one.op, one.args, one.attrs, one.ty_args)) for one in calls]
        builder.emit_func_output(relax.Tuple(made))
    return builder.get()[MEMORY]


def _given(main: relax.Function, found: dict[Any, Any]) -> relax.Function:
    """The function without these allocations."""
    blocks = [
        relax.BindingBlock([one for one in block.bindings if one.var not in found])
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    return relax.Function([*main.params, *found], body, main.ret_ty, main.is_pure, main.attrs)
