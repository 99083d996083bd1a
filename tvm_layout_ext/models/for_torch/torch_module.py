"""``TorchModule``: a compiled module as a function of torch tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx

from ..._compat import has_gpu
from ...errors import ScheduleError, TargetError
from ...ir.diagnostics import reason
from ...ir.queries import size_of
from ..default_schedule import FunctionChoice
from ..imported.legal_sizes import LegalSizes
from .memory_apart import MAIN, MEMORY
from .replays import Replays
from .state import State
from .weights import on_device

#: Bytes at whose multiples kernels expect a tensor to begin.
ALIGNMENT = 16


class TorchModule:
    """What :func:`compile_torch` gives: call it with tensors of a GPU, as the module.

    Kernels run on torch's current stream.

    Attributes
    ----------
    buffers : dict of str to torch.Tensor
        What the module writes, by name; each call leaves new values there. They are moved to the
        GPU by the first call. To begin anew fill them; modules that share such give them to one
        another: ``step.buffers = prompt.buffers``.
    mod : tvm.IRModule
        The Relax module before the pipeline, for ``tlx.tune_module(tlx.lower_relax(fast.mod))``.
    executable : tvm.relax.VMExecutable
        What was compiled; the last parameters of its ``main`` are large constants, and what its
        ``memory`` gives.
    choices : list of FunctionChoice
        How each function was scheduled, in a sentence.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        executable: Any,
        choices: list[FunctionChoice],
        spec: Any,
        state: State,
        sizes: LegalSizes,
        *,
        weights: Sequence[Any] = (),
        cuda_graphs: bool = False,
    ) -> None:
        self.mod, self.executable, self.choices = mod, executable, choices
        self.buffers: dict[str, Any] = dict(state.buffers)
        self._spec, self._state, self._sizes = spec, state, sizes
        self._weights, self._cuda_graphs = weights, cuda_graphs
        _, self._names = _unflattened(spec.in_spec, None)
        #: By GPU
        self._machines: dict[Any, TorchMachine] = {}
        #: Buffers as kernels take them
        self._placed = dict[str, Any]()
        #: Memory of calls that others captured, to which their graphs write.
        self._captured: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on tensors; ScheduleError or TargetError if they are not those compiled for."""
        tree, wished = sys.modules["torch.utils._pytree"], self._spec.in_spec
        kwargs = {name: kwargs[name] for name in self._names if name in kwargs} | kwargs
        found, spec = tree.tree_flatten((args, kwargs))
        if spec != wished:
            wanted, other = (_unflattened(one, "*") for one in (wished, spec))
            raise ScheduleError(f"Arguments are {other}, compiled for {wanted}; * is a tensor.")
        return tree.tree_unflatten(self.leaves(found), self._spec.out_spec)

    def leaves(self, inputs: Sequence[Any]) -> list[Any]:
        """Results one by one, in the order of ``torch.utils._pytree``, of inputs so."""
        given = [_ready(one) for one in inputs]
        self._sizes.check(given)
        machine, held = self._machine(given), self._held(given[0].device)
        run = partial(self._run, machine)
        if machine.replays is None or _is_captured(given[0]):
            results = run(held, given, self._memory(machine, given[0]))
        else:
            results = machine.replays(run, machine.allocate, held, given)
        _tell_of_writes(held)
        return results

    def _memory(self, machine: TorchMachine, given: Any) -> Any:
        """What a call writes to, which a graph that captures it writes to again."""
        try:
            memory = machine.allocate()
        except Exception as error:
            if not _is_captured(given):
                raise
            raise ScheduleError(
                "No memory is free for a call that a graph captures; call the module once right"
                f" before, outside of the graph: {reason(error)}"
            ) from error
        if _is_captured(given):
            self._captured.append(memory)
        return memory

    def _run(
        self, machine: TorchMachine, held: Sequence[Any], given: Sequence[Any], memory: Any
    ) -> list[Any]:
        """Launch all kernels."""
        try:
            results = [*machine.main(*held, *given, *machine.weights, *memory)]
        except Exception as error:
            self._refuse([*held, *given], error)
            raise
        return self._kept(results, held)

    def _kept(self, results: Sequence[Any], held: Sequence[Any]) -> list[Any]:
        """Keep what was written; what is returned, of which nothing lies in a buffer."""
        places = [(one.data_ptr(), one.nbytes) for one in held]

        def apart(result: Any) -> Any:
            """A result that may be what a buffer held, which is not to be overwritten before."""
            one = sys.modules["torch"].from_dlpack(result)
            inside = any(0 <= one.data_ptr() - begin < size for begin, size in places)
            return one.clone() if inside else one

        names, in_place = self._state.written, self._state.in_place
        pairs = zip(names, results, strict=False)
        written = {name: apart(one) for name, one in pairs if name not in in_place}
        leaves = [apart(one) for one in results[len(names) :]]
        for name, new in written.items():
            self.buffers[name].copy_(new)
        return leaves

    def _held(self, device: Any) -> list[Any]:
        """What the module writes, on the GPU that it runs on."""
        names = self._state.buffers
        if missing := [name for name in names if name not in self.buffers]:
            raise ScheduleError(f"buffers has no {', '.join(missing)}, which the module writes.")
        for name in names:
            one = self.buffers[name]
            if one.device != device or one is not self._placed.get(name):
                with sys.modules["torch"].inference_mode(False):  # Others write to them.
                    self.buffers[name] = self._placed[name] = _ready(one.to(device))
        return [self.buffers[name] for name in names]

    def _machine(self, given: Sequence[Any]) -> TorchMachine:
        """What runs on the GPU that tensors lie on."""
        if not has_gpu():
            raise TargetError("A compiled module runs on a CUDA GPU, of which TVM sees none here.")
        places = {one.device for one in given}
        device = given[0].device
        if len(places) != 1 or device.type != "cuda":
            told = ", ".join(sorted(map(str, places)))
            raise TargetError(f"Tensors lie on {told}; give those of one GPU.")
        if device not in self._machines:
            self._machines[device] = TorchMachine.of(self.executable, self._weights, device)
            if self._cuda_graphs:
                self._machines[device].replays = Replays()
        return self._machines[device]

    def _refuse(self, given: Sequence[Any], error: Exception) -> None:
        """Say which tensor is another than the one compiled for, if any is."""
        for param, one in zip(self.mod["main"].params, given, strict=True):
            dims, dtype = [*param.ty.shape.values], str(one.dtype).removeprefix("torch.")
            fits = len(dims) == one.ndim and all(
                not isinstance(want, tirx.IntImm) or int(want) == size
                for want, size in zip(dims, one.shape, strict=True)
            )
            if not fits or dtype != str(param.ty.dtype):
                wanted = f"{param.ty.dtype} of ({', '.join(map(str, map(size_of, dims)))})"
                raise ScheduleError(
                    f"{param.name} is {dtype} of {tuple(one.shape)}, compiled for {wanted}."
                ) from error

    def __repr__(self) -> str:
        rules = [one.rule for one in self.choices]
        told = ", ".join(f"{rules.count(one)} by {one}" for one in dict.fromkeys(rules))
        return f"<TorchModule: functions scheduled {told}>"


@dataclass
class TorchMachine:
    """What runs a module on a GPU: kernels, what allocates their memory, and weights."""

    main: Any
    allocate: Callable[[], Any] = tuple
    weights: Sequence[Any] = ()
    shared: Sequence[Any] = ()  #: The same weights, as torch has them
    replays: Replays | None = None

    @classmethod
    def of(cls, executable: Any, weights: Sequence[Any], device: Any) -> TorchMachine:
        """Put a module on a GPU."""
        machine = relax.VirtualMachine(executable, tvm.cuda(device.index))
        shared = [on_device(one, device) for one in weights]
        given = [tvm.runtime.from_dlpack(one) for one in shared]
        return cls(machine[MAIN], machine[MEMORY], given, shared)


def _unflattened(spec: Any, leaf: Any) -> Any:
    tree = sys.modules["torch.utils._pytree"]
    return tree.tree_unflatten([leaf] * spec.num_leaves, spec)


def _tell_of_writes(tensors: Sequence[Any]) -> None:
    """Let torch count a change, which it does not see where kernels write."""
    written = [one for one in tensors if not one.is_inference()]
    if written:
        sys.modules["torch"].autograd.graph.increment_version(written)


def _is_captured(tensor: Any) -> bool:
    """Whether launches beside a tensor go to a graph, and are not run now."""
    torch = sys.modules["torch"]
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _ready(tensor: Any) -> Any:
    """A tensor whose elements lie row by row, from where vectors can be loaded."""
    if not hasattr(tensor, "data_ptr"):
        raise ScheduleError(f"An argument is a {type(tensor).__name__}, not a tensor of torch.")
    plain = tensor.detach().contiguous()
    return plain if is_plain(plain) else plain.clone()


def is_plain(tensor: Any) -> bool:
    """Whether kernels read and write a tensor where it is."""
    return bool(tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0)
