"""``compile_torch``: a module of PyTorch as a function of torch tensors."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from ...errors import ScheduleError
from ...ir import ops
from ...ir.annotations import TF32
from ...target import resolve
from ..default_schedule import DefaultSchedule, FunctionChoice
from ..imported.export import exported
from ..imported.legal_sizes import LegalSizes
from ..imported.mixed_precision import MixedPrecision
from ..pipeline import RelaxPipeline
from ..quantised.pack_weights import BITS, PackWeights, check_weights
from ..relax_values import NARROW_FLOATS
from ..scheduled.answers import side_by_side
from ..tf32 import CONV, MATMUL, allow_tf32, has_tf32
from .all_cores import by_all_cores
from .memory_apart import MemoryApart
from .state import State, imported
from .torch_module import TorchModule
from .weights_apart import WeightsApart

_log = logging.getLogger("tvm_layout_ext")
_GRAPHS = "relax.backend.use_cuda_graph"
_TYPES = ("float32", TF32, *NARROW_FLOATS)


def compile_torch(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dtype: str | None = None,
    weights: str | None = None,
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
    weights : str, optional
        ``"int4"`` or ``"int8"`` packs constant matrices that 16 bits are multiplied by, as of
        linears: a group of 32 neighbours along K shares a scale of 16 bits. Tables that are
        gathered stay, and so does what kernels cannot unpack, of which a warning tells.
    dynamic_shapes : optional
        As of ``torch.export.export``; else every size is fixed.
    cuda_graphs : bool, optional
        Capture the launches of the third call, and replay them at later ones, with copies of inputs
        and results: what small modules wait for. Not where sizes are dynamic.
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
    check_weights(weights)
    if weights is not None:
        _check_narrow(module, dtype)
    resolved = resolve(target)
    schedule, apart = DefaultSchedule(log), WeightsApart()
    pack = None if weights is None else PackWeights(BITS[weights])
    pipeline = RelaxPipeline(resolved, schedule, [apart, MemoryApart()], pack)
    # Processes that schedule start while torch exports.
    with side_by_side(_size(module)):
        program = exported(module, args, kwargs, dynamic_shapes)
        sizes = LegalSizes(program)
        mod, state = imported(program)
        mod = _in_type(mod, state, module, dtype)
        with _context(mod), by_all_cores():
            executable = tvm.compile(mod, target=resolved, relax_pipeline=pipeline)
    if dtype is None and has_tf32(resolved) and not _narrow_types(module):
        _tell_of_full_products(schedule.choices)
    return TorchModule(
        mod,
        executable,
        schedule.choices,
        program.call_spec,
        state,
        sizes,
        arch=str(resolved.attrs["arch"]),
        weights=apart.weights,
        cuda_graphs=cuda_graphs and _can_be_captured(mod),
    )


def _size(module: Any) -> int:
    """Modules in a module, and operators of those that are graphs."""
    parts = [*module.modules()] if hasattr(module, "modules") else []
    return len(parts) + sum(len(one.graph.nodes) for one in parts if hasattr(one, "graph"))


def check_type(dtype: Any) -> None:
    """ScheduleError if a module is not multiplied in a type."""
    if dtype not in (None, *_TYPES):
        raise ScheduleError(f"dtype is one of {', '.join(_TYPES)}, not {dtype!r}.")


def _check_narrow(module: Any, dtype: str | None) -> None:
    """ScheduleError if products are of 32 bits, for which no kernel unpacks weights."""
    matrices = [one for one in module.state_dict().values() if one.ndim > 1]
    wide = any(str(one.dtype) == "torch.float32" for one in matrices)
    if wide and dtype not in NARROW_FLOATS and not _narrow_types(module):
        raise ScheduleError(
            'weights are packed for products of 16 bits; give dtype="float16" or "bfloat16", or a'
            " module of these."
        )


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


def _context(mod: tvm.IRModule) -> tvm.transform.PassContext:
    """How TVM compiles a module.

    A graph of TVM's would have no memory of its own. Of known sizes each function is given what it
    was compiled for: that each checks this at each call takes LLVM 1.4 of the 2 seconds that the
    host's code of a ResNet-50 takes. Of symbolic ones it holds what their kernels assume.
    """
    options = {_GRAPHS: False, ops.DISABLE_ASSERT: _has_known_sizes(mod)}
    return tvm.transform.PassContext(config=options)


def _has_known_sizes(mod: tvm.IRModule) -> bool:
    dims = [dim for one in mod["main"].params for dim in one.ty.shape.values]
    return all(isinstance(dim, tirx.IntImm) for dim in dims)


def _can_be_captured(mod: tvm.IRModule) -> bool:
    """Whether launches are the same at each call; a warning tells where they are not."""
    if _has_known_sizes(mod):
        return True
    _log.warning("Launches are not captured: sizes are dynamic.")
    return False


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
