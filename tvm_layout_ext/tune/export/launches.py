"""What a host function does, as plain data: arguments, workspace, kernel launches in order."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from ...build import device_program
from ...errors import ScheduleError
from ...ir import ops
from ...ir.walk import walk

_SHARED = ops.USE_DYN_SHARED_MEMORY
_AXES = "xyz"
#: Extents of a launch along each axis.
_KINDS = ("blockIdx", "threadIdx", "clusterCtaIdx")
#: What the exported function calls other things.
_RESERVED = frozenset(("arguments", "code", "given", "int", "launch", "one", "stream", "stream_"))


@dataclass(frozen=True)
class KernelBuffer:
    """A parameter of the function, or workspace that its kernels share; the name is C's."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * int(tvm.DataType(self.dtype).itemsize)


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel launch: the buffers that it is given, and extents along x, y and z.

    ``shared_bytes`` are of dynamic shared memory, ``cluster`` are blocks launched together.
    """

    kernel: str
    pointers: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int = 0
    cluster: tuple[int, ...] = (1, 1, 1)


@dataclass(frozen=True)
class HostPlan:
    """A host function whose launches do not depend on values."""

    arguments: tuple[KernelBuffer, ...]
    workspace: tuple[KernelBuffer, ...]
    launches: tuple[KernelLaunch, ...]


def host_plan(module: tvm.IRModule, target: Any) -> HostPlan:
    """Read the host side of a scheduled function.

    ScheduleError if a shape is symbolic, or the host does more than to allocate and to launch.
    TargetError if the function launches nothing.
    """
    functions = device_program(module, target=target).host.functions_items()
    if len(functions) != 1:
        raise ScheduleError(f"One function is exported; the module has {len(functions)}.")
    ((_, function),) = functions
    names: dict[Any, str] = {}
    workspace, launches = [], []
    arguments = tuple(_argument(param, names) for param in function.params)
    for statement, _ in walk(function.body):
        if isinstance(statement, tirx.SeqStmt | tirx.AttrStmt):
            continue
        if isinstance(statement, tirx.AllocBuffer):
            workspace.append(_argument(statement.buffer, names))
        elif isinstance(statement, tirx.DeclBuffer):
            names[statement.buffer] = _named(statement.data, names)
        elif isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tvm.ir.Call):
            launches.append(_launch(statement.value, names))
        elif isinstance(statement, tirx.Bind) and "TensorMap" in str(statement.var.ty):
            raise _unknown("tensor maps, which kernels of wgmma take")
        elif not isinstance(statement, tirx.Evaluate):
            raise _unknown(type(statement).__name__)
    return HostPlan(arguments, tuple(workspace), tuple(launches))


def _argument(buffer: Any, names: dict[Any, str]) -> KernelBuffer:
    if not all(isinstance(extent, tirx.IntImm) for extent in getattr(buffer, "shape", [None])):
        raise ScheduleError(
            f"Parameter {buffer.name} is no buffer whose shape is all numbers; only such functions "
            "are exported."
        )
    taken = _RESERVED | set(names.values())
    name = re.sub(r"\W", "_", str(buffer.name))
    while name in taken:
        name += "_"
    names[buffer] = name
    return KernelBuffer(name, str(buffer.dtype), tuple(int(extent) for extent in buffer.shape))


def _named(pointer: Any, names: dict[Any, str]) -> str:
    if isinstance(pointer, tvm.ir.Call) and pointer.op.name == ops.BUFFER_DATA:
        found = next((n for buffer, n in names.items() if buffer.same_as(pointer.args[0])), None)
        if found is not None:
            return found
    raise _unknown(f"the pointer {pointer}")


def _launch(call: Any, names: dict[Any, str]) -> KernelLaunch:
    if getattr(call.op, "name", "") != ops.CALL_FFI_KERNEL:
        raise _unknown(str(getattr(call.op, "name", call.op)))
    parameters = [str(one) for one in call.attrs.launch_params]
    kernel, *rest = call.args
    pointers, extents = rest[: -len(parameters)], rest[-len(parameters) :]
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        raise _unknown("a launch whose extents are no numbers")
    sizes = dict(zip(parameters, map(int, extents), strict=True))
    known = {f"{kind}.{axis}" for kind in _KINDS for axis in _AXES}
    if others := set(sizes) - known - {_SHARED}:
        raise _unknown(f"the launch parameter {min(others)}")
    return KernelLaunch(
        str(kernel.value),
        tuple(_named(pointer, names) for pointer in pointers),
        tuple(sizes.get(f"blockIdx.{axis}", 1) for axis in _AXES),
        tuple(sizes.get(f"threadIdx.{axis}", 1) for axis in _AXES),
        sizes.get(_SHARED, 0),
        tuple(sizes.get(f"clusterCtaIdx.{axis}", 1) for axis in _AXES),
    )


def _unknown(what: str) -> ScheduleError:
    return ScheduleError(
        f"The function's host side has {what}; only allocations and launches of known sizes are "
        "exported."
    )
