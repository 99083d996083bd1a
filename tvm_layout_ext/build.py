"""From a schedule to flat TIR, to device functions, to code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.target import Target

from . import decisions, pipeline
from ._compat import assemble, split_host_device, tvm_version
from .analysis.device_limits import check_shared, launch_extents, shared_buffers
from .cubin import refusing_slow_products
from .errors import LayoutExtError, ScheduleError, TargetError
from .gpu import hardware
from .ir.device_program import DeviceProgram
from .target import resolve
from .text import lines_of
from .transform.launch.check_host_stages import refuse_host_stages, refuse_unbound
from .transform.pipeline.memory import most_stages

_SPLIT_PASS = "tirx.SplitHostDevice"
#: ``calling_conv`` of a function that is launched on the device.
_KERNEL = 2


def to_module(source: Any, args: Sequence[Any] | None = None, name: str = "main") -> tvm.IRModule:
    """Turn anything a user schedules with into an IRModule of TensorIR functions.

    ``args`` are the parameters of a TE-style schedule in order, by default its inputs and then its
    outputs; nothing else may have them. What has a method ``schedule``, as a tuner's result and its
    records, stands for what that gives.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ScheduleError(f"The name of a function is an identifier, not {name!r}.")
    materialise = getattr(source, "to_module", None)
    if materialise is not None:
        return materialise(args, name)
    if args is not None:
        raise ScheduleError(f"A {type(source).__name__} carries its own arguments; pass none.")
    if isinstance(source, s_tir.Schedule):
        return source.mod
    if isinstance(source, tirx.PrimFunc):
        return tvm.IRModule.from_expr(source)
    if isinstance(source, tvm.IRModule):
        return source
    if callable(scheduled := getattr(source, "schedule", None)):
        return to_module(scheduled())
    raise ScheduleError(
        f"Cannot lower a {type(source).__name__}; expected a schedule, a PrimFunc, an IRModule or "
        "the tuner's result."
    )


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn a failed check inside TVM's own passes into one sentence.

    TVM's checks of types raise TypeError, as lines of this package by mistake do; these come out.
    """
    try:
        yield
    except LayoutExtError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, TypeError) and _is_raised_here(error):
            raise
        text = lines_of(error)[0]
        reason = text.rpartition(" is false: ")[2].strip() or text.removeprefix("Check failed: ")
        raise ScheduleError(
            f"TVM {tvm_version()} cannot lower this program; it says: {reason.rstrip('.')}."
        ) from error


def _is_raised_here(error: Exception) -> bool:
    """Whether a line of this package raised an error, and not one of TVM below it."""
    *_, (frame, _line) = walk_tb(error.__traceback__)
    return Path(frame.f_code.co_filename).is_relative_to(Path(__file__).parent)


def _target_of(source: Any, target: str | Target | None) -> Target:
    """A target that is given, else that of a tuner's result or record, else the default."""
    return resolve(getattr(source, "target", None) if target is None else target)


def _bind_target(mod: tvm.IRModule, target: str | Target | None) -> tvm.IRModule:
    resolved = resolve(target)
    if resolved.host is None:
        resolved = resolved.with_host(Target("llvm" if tvm.runtime.enabled("llvm") else "c"))
    return tirx.transform.BindTarget(resolved)(mod)


def lower(
    source: Any,
    args: Sequence[Any] | None = None,
    *,
    name: str = "main",
    target: str | Target | None = None,
) -> tvm.IRModule:
    """Lower a schedule to flat loops: paddings, buffer versions and vectors are now explicit.

    What TVM's ``tvm.lower`` gave before 0.20. The result still prints as TVMScript, and ``build``,
    ``simulate`` and plain ``tvm.compile`` go on from it. Parameters are as of :func:`build`; what
    is not legal is a ScheduleError, a LayoutError or a TargetError.
    """
    mod = _bind_target(to_module(source, args, name), _target_of(source, target))
    refuse_host_stages(mod)
    with _plain_errors():
        mod = pipeline.run_first_half(mod)
    return _map_functions(mod, lambda func: func.with_attr(pipeline.LOWERED, 1))


def _map_functions(mod: tvm.IRModule, change: Any) -> tvm.IRModule:
    changed = {
        gv: change(f) if isinstance(f, tirx.PrimFunc) else f for gv, f in mod.functions.items()
    }
    return tvm.IRModule(changed, attrs=mod.attrs)


def device_program(
    source: Any, args: Sequence[Any] | None = None, target: str | Target | None = None
) -> DeviceProgram:
    """Lower all the way to the device functions that TVM's code generators are handed.

    The host side stops before MakePackedAPI, where the launches still show their arguments.
    Needs no compiler and no driver.

    Raises
    ------
    TargetError
        If a function launches nothing, because none of its loops is bound to a GPU thread, leaves a
        block beside a kernel on the host, or uses one shared buffer in several kernels.
    """
    resolved = _target_of(source, target)
    if resolved.kind.name != "cuda":
        raise TargetError(
            f"Device functions are those of a CUDA target, not of {resolved.kind.name}."
        )
    mod = to_module(source, args)
    bound = _bind_target(mod, resolved)
    refuse_host_stages(bound)
    with _plain_errors():
        parts = _split(bound)
    return DeviceProgram(parts.launches, parts.kernels, resolved, mod)


@dataclass(frozen=True)
class _Split:
    """A lowered module in parts: ``launches`` is the host's with launches that show arguments."""

    launches: tvm.IRModule
    host: tvm.IRModule
    device: dict[Target, tvm.IRModule]

    @property
    def kernels(self) -> dict[str, tirx.PrimFunc]:
        """Finalised device functions by name."""
        modules = self.device.values()
        return {gv.name_hint: func for one in modules for gv, func in one.functions.items()}


def _split(mod: tvm.IRModule) -> _Split:
    """Lower a module to host functions and finalised device functions."""
    mod = pipeline.run_first_half(mod)
    for gv, func in mod.functions.items():
        refuse_unbound(gv.name_hint, func)
    second = pipeline.lowering_passes()[1]
    cut = next(i for i, one in enumerate(second, 1) if pipeline.pass_name(one) == _SPLIT_PASS)
    split = tvm.ir.transform.Sequential(second[:cut])(mod)
    launches = tirx.transform.Filter(lambda f: f.attrs.get("calling_conv", 0) != _KERNEL)(split)
    host, device = split_host_device(tvm.ir.transform.Sequential(second[cut:])(split))
    _, finalize = pipeline.stock_finalizers(pipeline.stock_pipeline)
    _check_scopes(launches)
    return _Split(launches, host, {kind: finalize()(one) for kind, one in device.items()})


def _check_scopes(host: tvm.IRModule) -> None:
    for gv, func in host.functions.items():
        for name in shared_buffers(func):
            raise TargetError(
                f"Function {gv.name_hint} uses the shared buffer {name} in more than one kernel; "
                "shared memory ends with its kernel, so put the blocks that use it under one loop "
                "bound to a GPU thread."
            )


def build(
    source: Any,
    args: Sequence[Any] | None = None,
    target: str | Target | None = None,
    *,
    name: str = "main",
) -> Any:
    """Build an executable, after checking that the target can hold it.

    Parameters
    ----------
    source : tvm_layout_ext.te.Schedule, tvm.s_tir.Schedule, PrimFunc or IRModule
        What was scheduled, what ``lower`` gave, or the result or a record of the tuner.
    args : sequence of te.Tensor, optional
        Parameters of a TE-style schedule; by default its inputs and then its outputs.
    target : str or tvm.target.Target, optional
        By default that of a result or record, else :func:`tvm_layout_ext.default_target`.
    name : str
        Function name, for a TE-style schedule.

    Raises
    ------
    TargetError
        If a function for a GPU binds no thread, leaves a block beside a kernel on the host or
        shares a shared buffer between kernels, or a kernel needs more shared memory than a block
        of the target may have. Where fewer stages would do, the message names their number.
    PtxasError
        If ptxas spills registers of a kernel of ``wgmma``, or makes it wait for each product.
    """
    mod = to_module(source, args, name)
    resolved = _target_of(source, target)
    if resolved.kind.name != "cuda":
        return compile_lowered(mod, resolved)
    parts = _lower_checked(mod, resolved)
    with refusing_slow_products(str(resolved.attrs["arch"])):
        return _generated(parts)


def cuda_source(
    source: Any, args: Sequence[Any] | None = None, target: str | Target | None = None
) -> str:
    """The CUDA source of a schedule's kernels; parameters are as of :func:`build`.

    Needs a GPU as little as :func:`build` does. TargetError if the target is no CUDA GPU,
    ScheduleError if there is no kernel.
    """
    resolved = _target_of(source, target)
    if resolved.kind.name != "cuda":
        raise TargetError(f"CUDA source is for a CUDA target, not for {resolved.kind.name}.")
    kernels = build(source, args, resolved).mod.imports
    if not len(kernels):
        raise ScheduleError("The module launches no kernel, so that it has no CUDA source.")
    return str(kernels[0].inspect_source())


def _lower_checked(mod: tvm.IRModule, target: Target) -> _Split:
    """Lower, and say of a module that does not fit how many stages would."""
    lowered = lower(mod, target=target)
    try:
        return _checked(lowered, target)[0]
    except TargetError as error:
        if not (number := most_stages(mod, lambda fewer: _fits(fewer, target))):
            raise
        advice = f"num_stages={number} is the largest that fits"
        raise TargetError(f"{str(error).rstrip('.')}; {advice}.") from error


def _fits(mod: tvm.IRModule, target: Target) -> bool:
    with decisions.collect():  # Nobody asked for these.
        try:
            check_fits(lower(mod, target=target), target)
        except (ScheduleError, TargetError):
            return False
    return True


def compile_lowered(mod: tvm.IRModule, target: Target) -> Any:
    """Compile what :func:`lower` gave, or a module for another kind of target, without a check."""
    with _plain_errors():
        return tvm.compile(mod, target=target, tir_pipeline=pipeline.NAME)


def compile_checked(mod: tvm.IRModule, target: Target) -> tuple[Any, int]:
    """Compile what :func:`lower` gave for CUDA; the executable, and :func:`check_fits`'s answer.

    A check and a compilation by themselves would both lower it to the end.
    """
    parts, shared = _checked(mod, target)
    return _generated(parts), shared


def _checked(mod: tvm.IRModule, target: Target) -> tuple[_Split, int]:
    bound = _bind_target(mod, target)
    with _plain_errors():
        parts = _split(bound)
    return parts, _check_kernels(parts.kernels, target)


def _generated(parts: _Split) -> Any:
    finalize, _ = pipeline.stock_finalizers(pipeline.stock_pipeline)
    with _plain_errors():
        return assemble(finalize()(parts.host), parts.device)


def check_fits(mod: tvm.IRModule, target: Target) -> int:
    """Raise TargetError unless every kernel of a module fits; else say the most shared bytes."""
    return _check_kernels(device_program(mod, target=target).kernels, target)


def _check_kernels(kernels: Mapping[str, tirx.PrimFunc], target: Target) -> int:
    facts, most = hardware.architecture(str(target.attrs["arch"])), 0
    for name, kernel in kernels.items():
        if problem := hardware.launch_problem(launch_extents(kernel), facts.threads_per_block):
            raise TargetError(f"Kernel {name} {problem}.")
        most = max(most, check_shared(name, kernel))
    return most
