"""Refuse blocks that the host of a GPU program would run over the memory of the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from ...errors import TargetError
from ...ir import ops
from ...ir.queries import is_among, is_call_of, loads_in, nodes_in
from ...ir.walk import is_launch, loop_kind, own_parts, walk
from ..base import is_marked
from ..mark_annotated import is_annotated

_GLOBAL = "global"
_NO_ACCESS = (ops.ADDRESS_OF, ops.ASSUME)
_KERNELS = ("blockIdx.", "threadIdx.", "cluster")


def _is_kernel(stmt: Any) -> bool:
    """Whether a loop or an attribute launches blocks or threads."""
    if isinstance(stmt, tirx.For):
        return loop_kind(stmt).startswith(_KERNELS)
    return is_launch(stmt) and str(stmt.node.thread_tag).startswith(_KERNELS)


def _has_kernel(func: tirx.PrimFunc) -> bool:
    return any(map(_is_kernel, nodes_in(func.body, tirx.For, tirx.AttrStmt)))


def _on_host(func: tirx.PrimFunc) -> list[tuple[str, str]]:
    """Innermost block and tensor of all accesses beside the kernels of a function."""

    def left_out(stmt: Any, mutator: Any) -> Any:
        return tirx.Evaluate(0) if _is_kernel(stmt) else mutator.default_mutate(stmt)

    rules = [(tirx.For, left_out), (tirx.AttrStmt, left_out)]
    touched: list[tuple[str, str]] = []
    for stmt, context in walk(tvm_ffi.structural_mutate(func.body, rules)):
        for part in own_parts(stmt):
            buffers = [store.buffer for store in nodes_in(part, tirx.BufferStore)]
            buffers += [load.source for load in _loads(part)]
            names = [str(buffer.name) for buffer in buffers if str(buffer.scope()) == _GLOBAL]
            touched += [(context.block, name) for name in names]
    return touched


def _loads(part: Any) -> list[Any]:
    """Loads of what a host computes; an address of an element is none."""
    calls = [call for call in nodes_in(part, ir.Call) if is_call_of(call, *_NO_ACCESS)]
    named = [load for call in calls for load in loads_in(call)]
    return [load for load in loads_in(part) if not is_among(load, named)]


def _is_for_cuda(func: tirx.PrimFunc) -> bool:
    target = func.attrs.get("target", None)
    return target is not None and str(target.kind.name) == "cuda"


def is_marked_for_cuda(func: Any) -> bool:
    """Whether this is a function with our annotations that is compiled for CUDA."""
    return is_marked(func) and _is_for_cuda(func)


def _stage(block: str, blocks: set[str]) -> str:
    """What a user calls a block: a sum that TE schedules is cut into two."""
    name = block.removesuffix("_init").removesuffix("_update")
    return name if {f"{name}_init", f"{name}_update"} <= blocks else block


def _refuse(name: str, func: tirx.PrimFunc) -> None:
    touched = _on_host(func)
    if not touched or not _has_kernel(func):
        return
    blocks = {stage for stage, _ in touched}
    touched = [(_stage(block, blocks), tensor) for block, tensor in touched]
    block = touched[0][0]
    tensors = dict.fromkeys(tensor for stage, tensor in touched if stage == block)
    what, call = "A statement", "bind a loop around it to blockIdx.x or threadIdx.x"
    if block not in ("", "root"):
        what = f"Block {block}"
        call = (
            f'{call}, or call sch.auto_coalesce("{block}"), of a stage s["{block}"].auto_coalesce()'
        )
    raise TargetError(
        f"{what} of function {name} is left on the host, which cannot touch {', '.join(tensors)} "
        f"in the memory of the device; {call}."
    )


def refuse_host_stages(mod: tvm.IRModule) -> None:
    """Do to functions without our annotations what :func:`CheckHostStages` does to the others."""
    for gv, func in _functions(mod):
        if _is_for_cuda(func) and not is_annotated(func):
            _refuse(gv.name_hint, func)


def refuse_unbound(name: str, func: Any) -> None:
    """Raise TargetError if a function launches nothing at all."""
    if isinstance(func, tirx.PrimFunc) and not _has_kernel(func):
        raise TargetError(
            f"Function {name} binds no GPU thread, so there is nothing to run on the device; bind "
            "at least one loop to threadIdx.x or blockIdx.x."
        )


def _functions(mod: tvm.IRModule) -> Iterable[tuple[Any, tirx.PrimFunc]]:
    return ((gv, f) for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc))


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.CheckHostStages")
def _check_host_stages(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
    for gv, func in _functions(mod):
        if is_marked_for_cuda(func):
            _refuse(gv.name_hint, func)
    return mod


def CheckHostStages() -> Any:
    """Create the pass that refuses an unbound block beside a kernel, in annotated functions.

    TVM makes it a loop of the host over pointers of the device, which ends the process at run time.
    """
    return _check_host_stages
