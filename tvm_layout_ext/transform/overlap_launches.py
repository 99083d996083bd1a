"""Launch a kernel while the one before it is ending: programmatic dependent launch.

A function of several kernels (the sums of slabs and their sum, say) otherwise pays a whole launch
between two of them. From compute capability 9.0 on, a kernel that is marked is launched as soon as
the blocks of its predecessor begin to leave their multiprocessors, and ``griddepcontrol.wait`` at
its head stands until all of the predecessor is done and visible (PTX ISA, section
"Parallel Synchronization and Communication Instructions: griddepcontrol").
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from .. import decisions
from ..errors import TargetError
from ..hardware import architecture
from .mark_annotated import MARK

__all__ = ["OverlapLaunches"]

_NAME = "OverlapLaunches"
_LAUNCH = "tirx.call_ffi_kernel"
_TAGS = "tirx.kernel_launch_params"
#: TVM's own spelling.
_DEPENDENT = "tirx.use_programtic_dependent_launch"
#: TVM wants this tag to be the last.
_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"
#: First compute capability that has it.
_FIRST = (9, 0)


def _followers(body: Any) -> list[str]:
    """Kernels that are launched right after another one, by name."""
    found: list[str] = []

    def look(sequence: Any) -> None:
        names = [_launched(statement) for statement in sequence.seq]
        found.extend(b for a, b in pairwise(names) if a and b)

    tvm_ffi.structural_walk(body, [(tirx.SeqStmt, look)])
    return found


def _launched(statement: Any) -> str | None:
    if not isinstance(statement, tirx.Evaluate):
        return None
    call: Any = statement.value
    is_launch = getattr(getattr(call, "op", None), "name", "") == _LAUNCH
    return str(call.args[0].value) if is_launch else None


def _waiting(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    wait = tirx.Evaluate(T.ptx.griddepcontrol("wait", ""))
    tags = [str(tag) for tag in kernel.attrs[_TAGS]]
    at = tags.index(_DYNAMIC_SHARED) if _DYNAMIC_SHARED in tags else len(tags)
    tags.insert(at, _DEPENDENT)
    return kernel.with_body(tirx.SeqStmt([wait, kernel.body])).with_attr(_TAGS, tags)


def _can_wait(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel's target has dependent launches."""
    try:
        return architecture(str(kernel.attrs["target"].attrs["arch"])).capability >= _FIRST
    except (KeyError, TargetError):
        return False


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.OverlapLaunches")
def _overlap_launches(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
    functions = {gv: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    asked = [f for f in functions.values() if f.attrs.get(MARK, None) is not None]
    names = {name for func in asked for name in _followers(func.body)}
    waiting = {
        gv: _waiting(func)
        for gv, func in functions.items()
        if gv.name_hint in names and _can_wait(func)
    }
    if not waiting:
        return mod
    for gv in waiting:
        decisions.note(_NAME, gv.name_hint, "launched while the kernel before it ends")
    return tvm.IRModule({**dict(mod.functions.items()), **waiting}, attrs=mod.attrs)


def OverlapLaunches() -> Any:
    """Create the pass that overlaps the launches of the kernels of an annotated function.

    Runs on kernels that are split from their host function already. Each one that follows another
    kernel without host code between waits at its very head, so nothing that it does can come before
    the end of its predecessor, nor, as that waits alike, of any kernel before::

        # main_kernel_1                       # main_kernel_1, launched early
        B[c] = B_rf[0, c] + B_rf[1, c]        T.ptx.griddepcontrol("wait")
                                              B[c] = B_rf[0, c] + B_rf[1, c]

    The first kernel of a function is launched as ever, after all that was launched before it.

    Does not handle: targets before ``sm_90``, which have no such launches; functions without our
    annotations; kernels launched in branches or loops of the host. They are left as they are.
    """
    return _overlap_launches
