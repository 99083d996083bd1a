"""``compile_torch``: a module of PyTorch as a function of torch tensors."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.target import Target

from ..._compat import has_gpu
from ...errors import ScheduleError, TargetError
from ...ir.annotations import TF32
from ...ir.diagnostics import reason
from ...ir.queries import size_of
from ...target import resolve
from ..default_schedule import DefaultSchedule, FunctionChoice
from ..pipeline import RelaxPipeline
from ..relax_values import NARROW_FLOATS
from ..tf32 import CONV, MATMUL, allow_tf32, has_tf32
from .export import exported
from .legal_sizes import LegalSizes
from .memory_apart import MEMORY, MemoryApart
from .mixed_precision import MixedPrecision

_log = logging.getLogger("tvm_layout_ext")
#: Bytes at whose multiples kernels expect a tensor to begin.
ALIGNMENT = 16
_TYPES = ("float32", TF32, *NARROW_FLOATS)
#: Operators that stop a run where a number is not as it was when the module was exported.
_CHECKS = (
    "aten._assert_scalar.default",
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range_for_size.default",
)
#: What is legal where experts count their tokens.
_NO_GROUPS = (
    " Experts of transformers are compiled by with_static_cache, and after"
    ' model.set_experts_implementation("batched_mm").'
)


def compile_torch(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dtype: str | None = None,
    dynamic_shapes: Any = None,
    cuda_graphs: bool = False,
    log: str | os.PathLike[str] | None = None,
    target: str | Target | None = None,
) -> TorchModule:
    """Compile a ``torch.nn.Module`` for a GPU, without tuning; call the result as the module.

    The module is exported by ``torch.export``, imported by TVM, and scheduled by
    :func:`tvm_layout_ext.relax_pipeline`; its weights become constants, and what it writes, as a
    cache of keys, is kept in ``buffers``. That needs no GPU.

    Parameters
    ----------
    module : torch.nn.Module
        In ``eval()``. It is left as it is.
    args, kwargs
        Inputs whose shapes and types are compiled for, as ``torch.export.export`` takes them.
    dtype : str, optional
        ``"float16"`` or ``"bfloat16"`` multiplies a module of ``float32`` in 16 bits by
        :class:`MixedPrecision`; inputs and results stay. ``"tf32"`` rounds to that what products
        and convolutions of ``float32`` multiply, and ``"float32"`` nothing. By default types are
        the module's own, be they of 16 bits, and ``float32`` is rounded where torch does: at
        convolutions, unless ``torch.backends.cudnn.allow_tf32`` is off, and at products after
        ``torch.set_float32_matmul_precision("high")``.
    dynamic_shapes : optional
        As of ``torch.export.export``; else every size is fixed.
    cuda_graphs : bool, optional
        Capture launches in CUDA graphs, where TVM can; it can not where sizes are dynamic.
    log : path, optional
        A tuning log, whose records go before the rules.
    target : str or tvm.target.Target, optional
        By default :func:`tvm_layout_ext.default_target`.

    Raises
    ------
    ScheduleError
        If torch cannot export the module, or TVM cannot import it, with the reason.

    Examples
    --------
    >>> fast = tlx.compile_torch(net.eval(), (x,), dtype="float16")  # doctest: +SKIP
    >>> fast(x.cuda())  # doctest: +SKIP
    """
    check_type(dtype)
    resolved = resolve(target)
    program = exported(module, args, kwargs, dynamic_shapes)
    sizes = LegalSizes(program)
    mod, state = imported(program)
    mod = _in_type(mod, state, module, dtype)
    schedule = DefaultSchedule(log)
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": cuda_graphs}):
        planned = [] if cuda_graphs else [MemoryApart()]
        pipeline = RelaxPipeline(resolved, schedule, planned)
        executable = tvm.compile(mod, target=resolved, relax_pipeline=pipeline)
    if dtype is None and has_tf32(resolved) and not _narrow_types(module):
        _tell_of_full_products(schedule.choices)
    return TorchModule(mod, executable, schedule.choices, program.call_spec, state, sizes)


def check_type(dtype: Any) -> None:
    """ScheduleError if a module is not multiplied in a type."""
    if dtype not in (None, *_TYPES):
        raise ScheduleError(f"dtype is one of {', '.join(_TYPES)}, not {dtype!r}.")


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
        What was compiled; the last parameters of its ``main`` are what its ``memory`` gives.
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
    ) -> None:
        self.mod, self.executable, self.choices = mod, executable, choices
        self.buffers = dict(state.buffers)
        self._spec, self._state, self._sizes = spec, state, sizes
        #: By GPU, what computes and what allocates its memory.
        self._mains: dict[int, tuple[Any, Any]] = {}
        #: Memory of calls that were captured, to which their graphs write.
        self._captured: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on tensors; ScheduleError or TargetError if they are not those compiled for."""
        tree = sys.modules["torch.utils._pytree"]
        wished = self._spec.in_spec
        _, names = tree.tree_unflatten([None] * wished.num_leaves, wished)
        kwargs = {name: kwargs[name] for name in names if name in kwargs} | kwargs
        found, spec = tree.tree_flatten((args, kwargs))
        if spec != wished:
            wanted, other = (
                tree.tree_unflatten(["*"] * one.num_leaves, one) for one in (wished, spec)
            )
            raise ScheduleError(f"Arguments are {other}, compiled for {wanted}; * is a tensor.")
        given = [_ready(one) for one in found]
        self._sizes.check(given)
        main, allocate = self._main(given)
        held = self._held(given[0].device)
        memory = self._memory(allocate, given[0])
        try:
            results = [*main(*held, *given, *memory)]
        except Exception as error:
            self._refuse([*held, *given], error)
            raise
        leaves = self._kept(results, held)
        return tree.tree_unflatten(leaves, self._spec.out_spec)

    def _memory(self, allocate: Callable[[], Any], given: Any) -> Any:
        """What a call writes to, which a graph that captures it writes to again."""
        capture = given.is_cuda and sys.modules["torch"].cuda.is_current_stream_capturing()
        try:
            memory = allocate()
        except Exception as error:
            if not capture:
                raise
            raise ScheduleError(
                "No memory is free for a call that a graph captures; call the module once right"
                f" before, outside of the graph: {reason(error)}"
            ) from error
        if capture:
            self._captured.append(memory)
        return memory

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
            self.buffers[name] = _ready(self.buffers[name].to(device))
        return [self.buffers[name] for name in names]

    def _main(self, given: Sequence[Any]) -> tuple[Any, Any]:
        """The function on the GPU that tensors lie on, and the one that allocates its memory."""
        if not has_gpu():
            raise TargetError("A compiled module runs on a CUDA GPU, of which TVM sees none here.")
        places = sorted({str(one.device) for one in given})
        if len(places) != 1 or given[0].device.type != "cuda":
            raise TargetError(f"Tensors lie on {', '.join(places)}; give those of one GPU.")
        index = given[0].device.index
        if index not in self._mains:
            machine = relax.VirtualMachine(self.executable, tvm.cuda(index))
            has_memory = machine.module.implements_function(MEMORY)
            self._mains[index] = machine["main"], machine[MEMORY] if has_memory else tuple
        return self._mains[index]

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


def _ready(tensor: Any) -> Any:
    """A tensor whose elements lie row by row, from where vectors can be loaded."""
    if not hasattr(tensor, "data_ptr"):
        raise ScheduleError(f"An argument is a {type(tensor).__name__}, not a tensor of torch.")
    plain = tensor.detach().contiguous()
    return plain if is_plain(plain) else plain.clone()


def is_plain(tensor: Any) -> bool:
    """Whether kernels read and write a tensor where it is."""
    return bool(tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0)


def _in_type(mod: tvm.IRModule, state: State, module: Any, dtype: str | None) -> tvm.IRModule:
    """A module of ``float32`` in the type that is asked for; ScheduleError if it cannot be."""
    narrow = _narrow_types(module)
    if dtype is None:
        return allow_tf32(mod, _rounded_by_torch())
    if narrow == {dtype}:
        return mod
    if narrow:
        raise ScheduleError(
            f"The module holds {', '.join(sorted(narrow))} and keeps its types; leave dtype out, or"
            " give module.float()."
        )
    if dtype == "float32":
        return mod
    if dtype in NARROW_FLOATS and state.writes_rows:
        raise ScheduleError(
            f"A module of float32 that writes rows is not brought to {dtype}; give"
            f" module.to(torch.{dtype}), and leave dtype out."
        )
    return tvm.transform.Sequential([MixedPrecision(dtype)])(mod)


def _tell_of_full_products(choices: Sequence[FunctionChoice]) -> None:
    """Say what torch.compile does of products of ``float32``, too."""
    if full := [one.name for one in choices if one.rule == "threads"]:
        _log.warning(
            "float32 is multiplied in full, without tensor cores, by %s. It is rounded to tf32 by"
            ' dtype="tf32", or after torch.set_float32_matmul_precision("high"); with'
            ' dtype="float32" this is not told.',
            ", ".join(full),
        )


def _rounded_by_torch() -> list[str]:
    """Kinds of products whose ``float32`` torch rounds to tf32 on this GPU, as it is set now."""
    backends = sys.modules["torch"].backends
    settings = {MATMUL: backends.cuda.matmul, CONV: getattr(backends.cudnn, "conv", backends.cudnn)}
    return [
        kind
        for kind, one in settings.items()
        if (one.fp32_precision == TF32 if hasattr(one, "fp32_precision") else one.allow_tf32)
    ]


def _narrow_types(module: Any) -> set[str]:
    """Types of 16 bits that parameters and buffers have."""
    found = {str(one.dtype).removeprefix("torch.") for one in module.state_dict().values()}
    return found & {*NARROW_FLOATS}


@dataclass
class State:
    """What a module writes: buffers in the order of inputs, and names in that of results."""

    buffers: dict[str, Any]
    written: list[str]
    in_place: frozenset[str]  #: Those whose result is the input itself
    writes_rows: bool  #: Whether functions of TIR write rows, here or elsewhere


def imported(program: Any) -> tuple[tvm.IRModule, State]:
    """A decomposed program in Relax, and its state; ScheduleError if TVM cannot import it.

    ``main`` takes the state before the inputs, and gives a tuple of the new state and the results.
    """
    # TVM's importer of torch imports torch.
    from .importer import Importer

    names = dict(program.graph_signature.buffers_to_mutate)
    outputs = {name: out for out, name in names.items()}
    specs = program.graph_signature.input_specs
    importer = Importer({x.arg.name: outputs[x.target] for x in specs if x.target in outputs})
    buffers, written = _as_inputs(program)
    _drop_checks(program.graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mod = importer.from_exported_program(program, False, False, False, None)
        except Exception as error:
            how = _NO_GROUPS if "grouped_mm" in str(error) else ""
            raise ScheduleError(f"TVM cannot import the module: {reason(error)}{how}") from error
    results, spec = mod["main"].ret_ty, program.call_spec.out_spec
    tensors = [one for one in results.fields if isinstance(one, relax.TensorType)]
    if len(tensors) - len(buffers) != spec.num_leaves:
        raise ScheduleError(
            f"The module gives {spec.num_leaves} values, of which {len(tensors) - len(buffers)} are"
            " tensors; leave out what is None."
        )
    in_place = frozenset(name for out, name in names.items() if out in importer.in_place)
    return mod, State(buffers, written, in_place, importer.writes_rows)


def _drop_checks(graph: Any) -> None:
    """Leave out what only checks read: they are not kept, and TVM does not know all of it."""
    for node in [*graph.nodes]:
        if str(node.target) in _CHECKS and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _as_inputs(program: Any) -> tuple[dict[str, Any], list[str]]:
    """Make the buffers that a program writes inputs and results; gives values, names of results."""
    import torch
    from torch.export.graph_signature import InputKind, OutputKind

    values = {**dict(program.named_buffers()), **program.constants}
    signature, found = program.graph_signature, dict[str, Any]()
    written = {*signature.buffers_to_mutate.values()}
    for one in signature.input_specs:
        if one.kind is InputKind.BUFFER and one.target in written:
            plain = values[one.target].detach()
            found[one.target] = plain.clone(memory_format=torch.contiguous_format)
            # TVM's importer would bind it as a constant.
            program.constants.pop(one.target, None)
            one.kind, one.target = InputKind.USER_INPUT, None
    results = [one for one in signature.output_specs if one.kind is OutputKind.BUFFER_MUTATION]
    for one in results:
        one.kind = OutputKind.USER_OUTPUT
    return found, [one.target for one in results]
