"""What a kernel does to shared memory, in one line, and its barriers taken out one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import ir, tirx

from tests.programs.kernels import SYNC, changed
from tvm_layout_ext.analysis.barriers.read_program import read_outside
from tvm_layout_ext.build import DeviceProgram, device_program, to_module
from tvm_layout_ext.ir.queries import is_call_of, loads_in, nodes_in
from tvm_layout_ext.simulate import Report, simulate

_NAMES = {
    "tirx.ptx.cp_async_commit_group": "commit",
    "tirx.ptx.cp_async_wait_group": "wait",
    "tirx.ptx.cp_async_ca": "copy",
    "tirx.ptx.cp_async_cg": "copy",
}


def marked(source: Any) -> tvm.IRModule:
    """The same program as a function with annotations of this package."""
    mod = to_module(source)
    done = {gv: func.with_attr("layout_ext.test", 1) for gv, func in mod.functions.items()}
    return tvm.IRModule(done, attrs=mod.attrs)


def outline(source: Any) -> str:
    """Stores ``S=``, loads ``=S``, copies, waits, barriers ``|``, loops and conditions, in order.

    Statements that touch no shared memory are left out, and repetitions of one thing.
    """
    (kernel,) = device_program(marked(source)).kernels.values()
    return " ".join(_outline(kernel.body))


def _outline(stmt: Any) -> Iterator[str]:
    parts: list[str] = []
    if isinstance(stmt, tirx.SeqStmt):
        parts = [token for part in stmt.seq for token in _outline(part)]
    elif isinstance(stmt, tirx.For):
        parts = _wrapped(stmt.loop_var.name, stmt.body)
    elif isinstance(stmt, tirx.IfThenElse):
        parts = _wrapped("if", stmt.then_case)
        if stmt.else_case is not None:
            parts += _wrapped("else", stmt.else_case)
    elif isinstance(stmt, tirx.AttrStmt):
        parts = list(_outline(stmt.body))
    elif isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, ir.Call):
        name = getattr(stmt.value.op, "name", "")
        if _is_barrier(stmt.value) or name == "tirx.cuda.cta_sync":
            yield "|"
            return
        parts = [_NAMES[name]] if name in _NAMES else _loads(stmt)
    elif isinstance(stmt, tirx.BufferStore | tirx.Bind):
        parts = _loads(stmt.value)
        if isinstance(stmt, tirx.BufferStore) and _is_shared(stmt.buffer):
            parts.append(f"{stmt.buffer.name}=")
    last = None
    for token in parts:
        if token != last or token == "|":
            yield token
        last = token


def _wrapped(name: str, body: Any) -> list[str]:
    inside = list(_outline(body))
    return [f"{name}{{", *inside, "}"] if inside else []


def _is_shared(buffer: Any) -> bool:
    return str(buffer.scope()).startswith("shared")


def _loads(expr: Any) -> list[str]:
    return sorted({f"={load.source.name}" for load in loads_in(expr) if _is_shared(load.source)})


def barriers(program: DeviceProgram) -> int:
    """Barriers of all kernels."""
    bodies = [kernel.body for kernel in program.kernels.values()]
    return sum(_is_barrier(one.value) for body in bodies for one in nodes_in(body, tirx.Evaluate))


def _is_barrier(call: Any) -> bool:
    """Whether a call is a barrier of the block; TVM's all-reduce has some of the warp."""
    return is_call_of(call, SYNC) and str(call.args[0].value) != "warp"


def needless(program: DeviceProgram, *arrays: Any) -> list[int]:
    """Barriers without which the simulated GPU sees no hazard either.

    Where a kernel loads global memory that it writes, barriers that were there stay; such kernels
    are passed over.
    """
    if any(read_outside(k, k.body).has_exchange for k in program.kernels.values()):
        return []
    return [
        which
        for which in range(barriers(program))
        if not simulate(
            changed(program, SYNC, lambda call: None, which, _is_barrier), *arrays, progress=False
        ).hazards
    ]


def check_minimal(source: Any, *arrays: Any) -> Report:
    """Report of the planned kernel, which has no hazard, and one if any barrier is taken out."""
    program = device_program(marked(source))
    report = simulate(program, *arrays, progress=False)
    assert report.hazards == []
    assert needless(program, *arrays) == []
    return report
