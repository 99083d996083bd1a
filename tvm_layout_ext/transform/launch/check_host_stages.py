"""Refuse blocks that the host of a GPU program would run over the memory of the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm_ffi import WalkResult

from ...errors import TargetError
from ...ir import ops
from ..base import is_marked
from ..mark_annotated import is_annotated

_GLOBAL = "global"
_NO_ACCESS = (ops.ADDRESS_OF, ops.ASSUME)


def _is_kernel(node: Any) -> bool:
    if isinstance(node, tirx.AttrStmt):
        return str(node.attr_key) == "thread_extent"
    if node.kind != tirx.ForKind.THREAD_BINDING:
        return False
    return str(node.thread_binding.thread_tag).startswith(("blockIdx.", "threadIdx.", "cluster"))


class _Host:
    """What a function does outside of its kernels."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.has_kernel = False
        #: Innermost block and tensor of each access.
        self.touched: list[tuple[str, str]] = []
        self._look(func.body, "")

    def _look(self, body: Any, block: str) -> None:
        def kernel(node: Any) -> Any:
            found = _is_kernel(node)
            self.has_kernel = self.has_kernel or found
            return WalkResult.SKIP if found else WalkResult.ADVANCE

        def inner(node: Any) -> Any:
            for part in (node.init, node.body):
                if part is not None:
                    self._look(part, str(node.name_hint))
            return WalkResult.SKIP

        def call(node: Any) -> Any:
            is_access = getattr(node.op, "name", "") not in _NO_ACCESS
            return WalkResult.ADVANCE if is_access else WalkResult.SKIP

        def touch(buffer: Any) -> Any:
            if str(buffer.scope()) == _GLOBAL:
                self.touched.append((block, str(buffer.name)))
            return WalkResult.ADVANCE

        looks = [
            (tirx.For, kernel),
            (tirx.AttrStmt, kernel),
            (s_tir.SBlock, inner),
            (ir.Call, call),
            (ir.TensorLoad, lambda node: touch(node.source)),
            (tirx.BufferStore, lambda node: touch(node.buffer)),
        ]
        tvm_ffi.structural_walk(body, looks, order="pre")


def _is_for_cuda(func: tirx.PrimFunc) -> bool:
    target = func.attrs.get("target", None)
    return target is not None and str(target.kind.name) == "cuda"


def is_marked_for_cuda(func: Any) -> bool:
    """Whether this is a function with our annotations that is compiled for CUDA."""
    return is_marked(func) and _is_for_cuda(func)


def _refuse(name: str, func: tirx.PrimFunc) -> None:
    host = _Host(func)
    if not host.has_kernel or not host.touched:
        return
    block = host.touched[0][0]
    tensors = dict.fromkeys(tensor for stage, tensor in host.touched if stage == block)
    what, call = "A statement", "bind a loop around it to blockIdx.x or threadIdx.x"
    if block not in ("", "root"):
        what = f"Block {block}"
        call = f'{call}, or call sch.auto_coalesce("{block}")'
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
    if isinstance(func, tirx.PrimFunc) and not _Host(func).has_kernel:
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

    TVM writes such a block as a loop of the host over pointers of the device, which ends the
    process at run time. ``lower``, ``build``, ``device_program`` and ``simulate`` refuse it
    elsewhere, too.

    Raises
    ------
    TargetError
        With the block and its tensors.
    """
    return _check_host_stages
