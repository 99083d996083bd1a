"""Interprets the host function: binds arguments, allocates workspace, launches kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
from tvm import ir

from ...errors import NotModelled, SimulationError
from ...ir import ops
from ...ir.queries import is_call_of, op_name
from ..memory.arrays import View, check_offset, copy_in, elements_before, low_address
from ..memory.memory import Memory
from ..model.code import Code, constant
from ..model.places import handle, is_tensor_map
from ..model.values import numpy_type, split_type
from ..model.warp_batch import AXES, CLUSTER_AXIS, Geometry
from ..warpgroups.tensor_map import TensorMap
from .expressions import ExpressionCompiler

Launcher = Callable[[str, Geometry, list[Memory], list[Any]], None]
_ENCODE = "runtime.cuTensorMapEncodeTiled"
_DYNAMIC_SHARED = ops.USE_DYN_SHARED_MEMORY


@dataclass
class ArrayArgument:
    """An array argument."""

    name: str
    view: View
    memory: Memory

    def array(self) -> Any:
        """Present contents with their shape."""
        return self.view.of(self.memory.view(self.view.dtype)).copy()


def _names(params: Any) -> dict[int, str]:
    """Parameters' names by handles; where several are equal, each later one gets a number.

    Fused functions of Relax may return three tensors T_add: T_add, T_add_1, T_add_2, as printed.
    """
    found: dict[int, str] = {}
    for param in params:
        first = str(param.name)
        others = (f"{first}_{number}" for number in count(1))
        found[handle(param)] = next(n for n in chain([first], others) if n not in found.values())
    return found


class Host(ExpressionCompiler):
    """Runs one host function."""

    def __init__(self, function: Any, launch: Launcher, poisoned: bool) -> None:
        super().__init__()
        self.function = function
        #: Names of the parameters, by their handles.
        self.names = _names(function.params)
        self.arguments: list[ArrayArgument] = []
        self._launch = launch
        self._poisoned = poisoned
        self._memories: dict[int, Memory] = {}
        self._maps: dict[int, TensorMap] = {}

    def cached(self, code: Code) -> Code:
        """Host values are computed once anyway."""
        return code

    def _now(self, expr: Any) -> Any:
        return self.expr(expr).value(None, None)

    # Arguments.

    def bind_arguments(self, arrays: Sequence[Any], may_omit: Callable[[str], bool]) -> None:
        """Bind the caller's arrays and numbers to the parameters."""
        params = list(self.function.params)
        if len(arrays) > len(params):
            names = ", ".join(self.names.values())
            raise SimulationError(
                f"The function takes {len(params)} arguments ({names}) but {len(arrays)} were "
                "given."
            )
        given = [*arrays, *[None] * (len(params) - len(arrays))]
        pairs = list(zip(params, given, strict=True))
        for param, value in pairs:
            self._bind_given(param, value, may_omit)
        for param, value in pairs:
            if hasattr(param.ty, "shape"):
                self._add_argument(param, value)

    def _bind_given(self, param: Any, value: Any, may_omit: Callable[[str], bool]) -> None:
        name = self.names[handle(param)]
        if not hasattr(param.ty, "shape"):
            if value is None or np.ndim(value) != 0:
                raise SimulationError(
                    f"Parameter {name} is a number of type {param.ty.dtype}; got "
                    f"{'nothing' if value is None else f'an array of shape {np.shape(value)}'}."
                )
            dtype, _ = numpy_type(param)
            self._bind_variable(param, dtype.type(value), name)
            return
        if value is None:
            if not may_omit(name):
                raise SimulationError(f"Argument {name} is an input, so it needs an array.")
            return
        try:
            array = np.asarray(value)
        except (TypeError, ValueError):
            raise SimulationError(f"Argument {name} is no array: {value!r}.") from None
        self._match(param, array, name)

    def _match(self, param: Any, array: Any, name: str) -> None:
        dtype, _ = split_type(str(param.ty.dtype))
        shape = param.ty.shape
        wanted = f"({', '.join(map(str, shape))})"
        if array.dtype != dtype:
            raise SimulationError(
                f"Argument {name} has type {array.dtype}, but the function takes {dtype}."
            )
        if array.ndim != len(shape):
            raise SimulationError(
                f"Argument {name} has shape {array.shape}, but the function takes {wanted}."
            )
        for extent, size in zip(shape, array.shape, strict=True):
            if isinstance(extent, ir.Var):
                self._bind_variable(extent, numpy_type(extent)[0].type(size), name)
        if isinstance(offset := param.ty.elem_offset, ir.Var):
            before = elements_before(name, array, int(param.ty.offset_factor))
            self._bind_variable(offset, numpy_type(offset)[0].type(before), name)
        for stride, step in zip(param.ty.strides, array.strides, strict=False):
            if isinstance(stride, ir.Var):
                self._bind_variable(
                    stride, numpy_type(stride)[0].type(step // dtype.itemsize), name
                )

    def _bind_variable(self, var: Any, value: Any, name: str) -> None:
        known = self.scope.get(handle(var))
        if known is not None and known.value(None, None) != value:
            raise SimulationError(
                f"Argument {name} makes {var.name} = {int(value)}, but another argument makes it "
                f"{int(known.value(None, None))}."
            )
        self.scope[handle(var)] = constant(value)

    def _add_argument(self, param: Any, value: Any) -> None:
        name = self.names[handle(param)]
        dtype, _ = split_type(str(param.ty.dtype))
        shape = self._known(f"The shape of {name} follows", *param.ty.shape)
        strides = tuple(int(self._now(s)) for s in param.ty.strides) or None
        array = None if value is None else np.asarray(value)
        if array is not None and array.shape != shape:
            raise SimulationError(
                f"Argument {name} has shape {array.shape}, but the function takes {shape}."
            )
        wanted = self._known(f"The element offset of {name} follows", param.ty.elem_offset)[0]
        offset = check_offset(name, array, wanted) if wanted else 0
        view = View(shape, strides, offset, dtype)
        memory = self._device_copy(name, array, view, int(param.ty.data_alignment))
        self._memories[handle(param)] = memory
        self.arguments.append(ArrayArgument(name, view, memory))

    def _known(self, what: str, *exprs: Any) -> tuple[int, ...]:
        try:
            return tuple(int(self._now(expr)) for expr in exprs)
        except NotModelled:
            raise SimulationError(
                f"{what} from no argument that was given; pass an array."
            ) from None

    def _device_copy(self, name: str, array: Any, view: View, alignment: int) -> Memory:
        if array is not None:
            return copy_in(name, array, view, low_address(name, array, view.offset, alignment))
        memory = self._workspace(name, view.elements * view.dtype.itemsize, view.dtype)
        if memory.poison is not None and (view.strides is not None or view.offset):
            memory.poison[view.between(memory.cells)] = 0
        return memory

    def _workspace(self, name: str, size: int, dtype: np.dtype[Any]) -> Memory:
        if self._poisoned:
            return Memory.unwritten(name, size, dtype.itemsize, "global", size)
        return Memory(name, np.zeros(size, np.uint8), dtype.itemsize, "global", size)

    # Statements.

    def run(self) -> None:
        """Run the function."""
        self._run(self.function.body)

    def _run(self, statement: Any) -> None:
        handler = _STATEMENTS.get(type(statement).__name__)
        if handler is None:
            raise NotModelled(
                f"The simulated GPU does not model {type(statement).__name__} on the host."
            )
        handler(self, statement)

    def _run_sequence(self, statement: Any) -> None:
        for part in statement.seq:
            self._run(part)

    def _run_view(self, statement: Any) -> None:
        self._memories[handle(statement.buffer)] = self._pointed(statement.data)

    def _run_allocation(self, statement: Any) -> None:
        buffer = statement.buffer
        dtype, lanes = split_type(str(buffer.dtype))
        size = int(np.prod([int(self._now(e)) for e in buffer.shape], dtype=np.int64)) * lanes
        self._memories[handle(buffer)] = self._workspace(
            str(buffer.name), size * dtype.itemsize, dtype
        )

    def _run_bind(self, statement: Any) -> None:
        if is_tensor_map(statement.var):
            return
        self.scope[handle(statement.var)] = constant(self._now(statement.value))

    def _run_if(self, statement: Any) -> None:
        if self._now(statement.condition):
            self._run(statement.then_case)
        elif statement.else_case is not None:
            self._run(statement.else_case)

    def _run_for(self, statement: Any) -> None:
        first, extent = int(self._now(statement.min)), int(self._now(statement.extent))
        make = numpy_type(statement.loop_var)[0].type
        for i in range(first, first + extent):
            self.scope[handle(statement.loop_var)] = constant(make(i))
            self._run(statement.body)

    def _run_assert(self, statement: Any) -> None:
        if not self._now(statement.condition):
            text = "".join(str(part.value) for part in statement.message_parts)
            raise SimulationError(f"The program's own check failed: {text}")

    def _run_evaluate(self, statement: Any) -> None:
        call = statement.value
        if not isinstance(call, ir.Call):
            return
        name = op_name(call)
        if name == ops.ASSUME:
            if not self._now(call.args[0]):
                raise SimulationError(f"The program assumes {call.args[0]}, which does not hold.")
            return
        if name == ops.TVM_CALL_PACKED and str(call.args[0].value) == _ENCODE:
            self._encode(*call.args[1:])
            return
        if name != ops.CALL_FFI_KERNEL:
            raise NotModelled(f"The simulated GPU does not model {name} on the host.")
        self._run_launch(call)

    def _encode(self, var: Any, dtype: Any, rank: Any, pointer: Any, *numbers: Any) -> None:
        """Fill a tensor map."""
        given = [int(self._now(one)) for one in numbers]
        itemsize = split_type(str(dtype.value))[0].itemsize
        self._maps[handle(var)] = TensorMap.encode(
            self._pointed(pointer), itemsize, int(rank.value), given
        )

    def _run_launch(self, call: Any) -> None:
        axes = [str(axis) for axis in call.attrs.launch_params]
        kernel, *arguments = call.args
        passed, extents = arguments[: -len(axes)], arguments[-len(axes) :]
        memories: list[Memory] = []
        scalars: list[Any] = []
        for argument in passed:
            if (tensor := self._maps.get(handle(argument))) is not None:
                memories.append(tensor.memory)
                scalars.append(tensor)
            elif hasattr(argument.ty, "element_type"):
                memories.append(self._pointed(argument))
                scalars.append(None)
            else:
                scalars.append(self._now(argument))
        sizes = dict(zip(axes, (int(self._now(e)) for e in extents), strict=True))
        self._launch(str(kernel.value), _geometry(sizes), memories, scalars)

    def _pointed(self, pointer: Any) -> Memory:
        if is_call_of(pointer, ops.BUFFER_DATA):
            found = self._memories.get(handle(pointer.args[0]))
            if found is not None:
                return found
        raise NotModelled(f"Cannot tell which array the host pointer {pointer} means.")


def _geometry(sizes: dict[str, int]) -> Geometry:
    known = {f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in AXES}
    known |= {f"{CLUSTER_AXIS}{axis}" for axis in AXES}
    for axis in sizes:
        if axis not in known and axis != _DYNAMIC_SHARED:
            raise NotModelled(f"The simulated GPU does not model the launch parameter {axis}.")
    grid = tuple(sizes.get(f"blockIdx.{axis}", 1) for axis in AXES)
    block = tuple(sizes.get(f"threadIdx.{axis}", 1) for axis in AXES)
    for axis, blocks in zip(AXES, grid, strict=True):
        if blocks % (cluster := sizes.get(f"{CLUSTER_AXIS}{axis}", 1)):
            raise SimulationError(
                f"A grid of {blocks} blocks along {axis} is no multiple of a cluster of {cluster}."
            )
    clusters = [sizes.get(f"{CLUSTER_AXIS}{axis}", 1) for axis in AXES]
    along = clusters[0] if clusters[1:] == [1, 1] else 1
    return Geometry(grid, block, along)  # type: ignore[arg-type]


_STATEMENTS: dict[str, Callable[[Host, Any], None]] = {
    "SeqStmt": Host._run_sequence,
    "AttrStmt": lambda host, statement: host._run(statement.body),
    "DeclBuffer": Host._run_view,
    "AllocBuffer": Host._run_allocation,
    "Bind": Host._run_bind,
    "IfThenElse": Host._run_if,
    "For": Host._run_for,
    "AssertStmt": Host._run_assert,
    "Evaluate": Host._run_evaluate,
}
