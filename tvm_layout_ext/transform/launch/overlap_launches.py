"""Launch a kernel while the one before it is ending: programmatic dependent launch.

From compute capability 9.0 on, a kernel that is marked is launched as soon as all blocks of its
predecessor have issued ``griddepcontrol.launch_dependents`` or are done, and
``griddepcontrol.wait`` at its head stands until all of the predecessor is done and visible (PTX
ISA, "griddepcontrol").

The predecessor issues the former at its head: its last blocks have their places by then. On an H200
the column sums of 32768x4096 halves took 65.5 us so in 16 slabs, and 65.9 where the launch waits
for the blocks to end; in 32 slabs 65.9 and 66.3. A step of four layers of Qwen3-0.6B, 75 kernels,
took 196 us with all launches overlapped and 216 with those of a function alone; with weights that
are loaded before the wait 192, beside 198 without.

A kernel that waits lets the next one begin behind its wait: where it did so at its head, 300 of 300
replays of a graph gave other results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from ... import decisions
from ...ir import ops
from ...ir.annotations import CONSTANTS, IN_SEQUENCE
from ...ir.queries import is_among, is_call_of, nodes_in
from ...target import capability
from ..base import is_marked
from .constants import names_one_of, put_behind_constants, views_of

_NAME = "OverlapLaunches"
_WAIT, _START = "wait", "launch_dependents"
_TAGS = ops.KERNEL_LAUNCH_PARAMS
#: TVM's own spelling.
_DEPENDENT = ops.USE_PROGRAMTIC_DEPENDENT_LAUNCH
#: TVM wants this tag to be the last.
_DYNAMIC_SHARED = ops.USE_DYN_SHARED_MEMORY
#: First compute capability that has it.
_FIRST = (9, 0)


def _pairs(body: Any) -> list[tuple[str, str]]:
    """Kernels and those that are launched right after them, by name."""
    named = [
        [_told(one, ops.CALL_FFI_KERNEL) for one in sequence.seq]
        for sequence in nodes_in(body, tirx.SeqStmt)
    ]
    return [(a, b) for names in named for a, b in pairwise(names) if a and b]


def _launched(body: Any) -> list[str]:
    """Kernels that a function launches, by name."""
    return [
        name for one in nodes_in(body, tirx.Evaluate) if (name := _told(one, ops.CALL_FFI_KERNEL))
    ]


def _constants(
    host: tirx.PrimFunc, kernels: Mapping[str, tirx.PrimFunc]
) -> dict[str, list[tirx.Var]]:
    """Parameters of each kernel that a function launches which nothing writes, by its name."""
    given = views_of(host.body, [host.params[int(n)] for n in host.attrs.get(CONSTANTS, ())])
    found: dict[str, list[tirx.Var]] = {}
    for call in (one.value for one in nodes_in(host.body, tirx.Evaluate)):
        if is_call_of(call, ops.CALL_FFI_KERNEL):
            name, values = str(call.args[0].value), call.args[1:]
            pairs = zip(kernels[name].params, values, strict=False) if name in kernels else ()
            own = [param for param, value in pairs if names_one_of(value, given)]
            found[name] = [one for one in own if is_among(one, found.get(name, own))]
    return found


def _can_wait(kernel: tirx.PrimFunc) -> bool:
    return capability(kernel.attrs.get("target", None)) >= _FIRST


def _told(statement: Any, name: str) -> str:
    """First argument, a text, of the call of this name that a statement is, or nothing."""
    call: Any = statement.value if isinstance(statement, tirx.Evaluate) else None
    return str(call.args[0].value) if is_call_of(call, name) else ""


def _overlapped(
    kernel: tirx.PrimFunc, constants: Sequence[Any], *, waits: bool, starts: bool
) -> tirx.PrimFunc:
    """Make a kernel wait for those before it, let the next be launched, or both."""
    start = [_control(_START)] if starts else []
    if not waits:
        return kernel.with_body(tirx.SeqStmt([*start, kernel.body]))
    controls = [_control(_WAIT), *start]
    kernel = kernel.with_attr(_TAGS, _tags(kernel))
    body = put_behind_constants(kernel.body, constants, controls)
    if body is None:
        return kernel.with_body(tirx.SeqStmt([*controls, kernel.body]))
    # Of pointers without `__restrict__`, which this attribute gives, nvcc makes plain loads. ptxas
    # moves those that it takes for loads of constant memory (`ld.global.nc`) behind the wait.
    return kernel.without_attr(ops.NOALIAS).with_body(body)


def _tags(kernel: tirx.PrimFunc) -> list[str]:
    tags = [str(tag) for tag in kernel.attrs[_TAGS]]
    at = tags.index(_DYNAMIC_SHARED) if _DYNAMIC_SHARED in tags else len(tags)
    return [*tags[:at], _DEPENDENT, *tags[at:]]


def _control(action: str) -> Any:
    return tirx.Evaluate(T.ptx.griddepcontrol(action, ""))


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.OverlapLaunches")
def _overlap_launches(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
    kernels = {gv.name_hint: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    able = {name for name, f in kernels.items() if _can_wait(f)}
    asked = [f for f in kernels.values() if is_marked(f)]
    pairs = [(a, b) for f in asked for a, b in _pairs(f.body) if a in kernels and b in able]
    # What has kernels of others before and behind it is one of each pair there.
    called = [f for f in kernels.values() if f.attrs.get(IN_SEQUENCE, False)]
    pairs += [(one, one) for f in called for one in _launched(f.body) if one in able]
    if not pairs:
        return mod
    constants = {name: found for f in called for name, found in _constants(f, kernels).items()}
    starting, waiting = ({one[n] for one in pairs} for n in (0, 1))
    for name in dict.fromkeys(b for _, b in pairs):
        decisions.note(_NAME, name, "launched while the kernel before it runs")
    changed = {
        name: _overlapped(
            kernels[name],
            constants.get(name, ()),
            waits=name in waiting,
            starts=name in starting,
        )
        for name in starting | waiting
    }
    functions = {gv: changed.get(gv.name_hint, f) for gv, f in mod.functions.items()}
    return tvm.IRModule(functions, attrs=mod.attrs)


def OverlapLaunches() -> Any:
    """Create the pass that overlaps the launches of the kernels of an annotated function.

    Each kernel that follows another without host code between waits at its head, so nothing that it
    does comes before the end of any kernel before. The first one is launched as ever, but for
    functions of a model, which follow one another: there all kernels wait, behind the loads of
    constants that they begin with (:mod:`.constants`). A kernel of others that is launched between
    them starts when the one before it has ended, as ever.

    Leaves alone: targets before ``sm_90``, which have no such launches; kernels launched in
    branches or loops of the host by a function that stands alone.
    """
    return _overlap_launches
