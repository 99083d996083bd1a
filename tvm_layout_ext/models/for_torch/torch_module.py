"""``TorchModule``: a compiled module as a function of torch tensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tvm
from tvm import relax

from ..._compat import has_gpu
from ...errors import ScheduleError, TargetError
from ...gpu.hardware import architecture
from ...ir.diagnostics import reason
from ...ir.queries import size_of
from ...tune.records.files import replacing
from ..default_schedule import FunctionChoice
from ..imported.legal_sizes import LegalSizes
from .library import check_versions, executable_of, library_of, versions
from .memory_apart import MAIN, MEMORY
from .replays import Replays
from .state import State
from .weights import on_device

#: Attributes that are saved as they are.
_KEPT = ("choices", "_spec", "_sizes", "_arch", "_cuda_graphs", "_params")
#: Bytes at whose multiples kernels expect a tensor to begin.
ALIGNMENT = 16


class TorchModule:
    """What :func:`compile_torch` gives: call it with tensors of a GPU, as the module.

    Kernels run on torch's current stream. It may be pickled, as ``save`` does.

    Attributes
    ----------
    buffers : dict of str to torch.Tensor
        What the module writes, by name; each call leaves new values there. They are moved to the
        GPU by the first call. To begin anew fill them; modules that share such give them to one
        another: ``step.buffers = prompt.buffers``.
    mod : tvm.IRModule
        The Relax module before the pipeline, for ``tlx.tune_module(tlx.lower_relax(fast.mod))``;
        there weights are not packed. None if it was loaded.
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
        arch: str,
        weights: Sequence[Any] = (),
        cuda_graphs: bool = False,
    ) -> None:
        self.mod, self.executable, self.choices = mod, executable, choices
        self._library = b""
        self._spec, self._state, self._sizes = _Trees(spec.in_spec, spec.out_spec), state, sizes
        self._arch, self._weights, self._cuda_graphs = arch, weights, cuda_graphs
        self._params = [*map(_Param.of, mod["main"].params)]
        self._begin()

    def _begin(self) -> None:
        """Be as a module that was not called."""
        self.buffers: dict[str, Any] = dict(self._state.buffers)
        _, self._names = _unflattened(self._spec.in_spec, None)
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all to a file, from which :func:`tvm_layout_ext.load_torch` makes the module again.

        It has machine code of one architecture, weights, and ``buffers`` as they are now.
        TargetError where there is no CUDA driver, without which there is no machine code, or no C++
        compiler, which links it.
        """
        # What was loaded from the path may still read its weights there.
        with replacing(Path(path)) as fresh:
            sys.modules["torch"].save(self, fresh)

    def __copy__(self) -> TorchModule:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __getstate__(self) -> dict[str, Any]:
        torch = sys.modules["torch"]
        buffers = {name: self.buffers[name].detach().cpu() for name in self._buffer_names()}
        return {
            "versions": versions(),
            "library": self._library or library_of(self.executable),
            "weights": [torch.from_dlpack(one) for one in self._weights],
            "state": replace(self._state, buffers=buffers),
            "others": {name: getattr(self, name) for name in _KEPT},
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        check_versions(saved["versions"])
        self.mod, self.executable = None, executable_of(saved["library"])
        #: A loaded library cannot be written again.
        self._library = saved["library"]
        self._weights, self._state = saved["weights"], saved["state"]
        self.__dict__.update(saved["others"])
        self._begin()

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
        names = self._buffer_names()
        for name in names:
            one = self.buffers[name]
            if one.device != device or one is not self._placed.get(name):
                with sys.modules["torch"].inference_mode(False):  # Others write to them.
                    self.buffers[name] = self._placed[name] = _ready(one.to(device))
        return [self.buffers[name] for name in names]

    def _buffer_names(self) -> list[str]:
        """Names of what the module writes, all of which ``buffers`` has."""
        names = [*self._state.buffers]
        if missing := [name for name in names if name not in self.buffers]:
            raise ScheduleError(f"buffers has no {', '.join(missing)}, which the module writes.")
        return names

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
            _check_capability(self._arch, device)
            self._machines[device] = TorchMachine.of(self.executable, self._weights, device)
            if self._cuda_graphs:
                self._machines[device].replays = Replays()
        return self._machines[device]

    def _refuse(self, given: Sequence[Any], error: Exception) -> None:
        """Say which tensor is another than the one compiled for, if any is."""
        for param, one in zip(self._params, given, strict=True):
            if not param.takes(one):
                dims = ", ".join(map(str, param.dims))
                raise ScheduleError(
                    f"{param.name} is {_type_of(one)} of {tuple(one.shape)}, compiled for"
                    f" {param.dtype} of ({dims})."
                ) from error

    def __repr__(self) -> str:
        rules = [one.rule for one in self.choices]
        told = ", ".join(f"{rules.count(one)} by {one}" for one in dict.fromkeys(rules))
        return f"<TorchModule: functions scheduled {told}>"


class _Trees(NamedTuple):
    """How arguments and results are nested."""

    in_spec: Any
    out_spec: Any


class _Param(NamedTuple):
    """A parameter of ``main``; symbolic dims by name."""

    name: str
    dtype: str
    dims: list[int | str]

    @classmethod
    def of(cls, param: Any) -> _Param:
        """That of Relax."""
        dims = map(size_of, param.ty.shape.values)
        told = [dim if isinstance(dim, int) else str(dim) for dim in dims]
        return cls(str(param.name), str(param.ty.dtype), told)

    def takes(self, tensor: Any) -> bool:
        """Whether it may be a tensor, as far as symbolic dims do not matter."""
        sizes = tensor.shape
        return (
            _type_of(tensor) == self.dtype
            and len(sizes) == len(self.dims)
            and all(dim in (size, str(dim)) for dim, size in zip(self.dims, sizes, strict=True))
        )


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


def _check_capability(arch: str, device: Any) -> None:
    """TargetError if a GPU does not run what is compiled for an architecture."""
    have, wanted = sys.modules["torch"].cuda.get_device_capability(device), architecture(arch)
    if not wanted.runs_on(have):
        raise TargetError(
            f"The module is compiled for {arch} and runs on {wanted.runs_on_text}; {device} has"
            f" compute capability {have[0]}.{have[1]}."
        )


def _type_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


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
