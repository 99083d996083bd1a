"""The public entry of the simulated GPU: anything that can be lowered runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.target import Target

from .analysis.device_limits import check_shared
from .build import device_program
from .checks import whole_number
from .errors import SimulationError
from .ir.device_program import DeviceProgram
from .simulate import Report, run_program

__all__ = ["simulate"]


def simulate(
    source: Any,
    *arrays: Any,
    args: Sequence[Any] | None = None,
    target: str | Target | None = None,
    grid_sample: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Report:
    """Run a GPU program on the CPU, with its memory accesses counted and checked.

    Products that nvcc joins with a sum are rounded once, with it; the documentation says which.

    Parameters
    ----------
    source : tvm_layout_ext.te.Schedule, tvm.s_tir.Schedule, PrimFunc, IRModule or DeviceProgram
        What was scheduled, or what :func:`tvm_layout_ext.lower` or
        :func:`tvm_layout_ext.build.device_program` gave.
    *arrays : numpy.ndarray, int, float or None
        The function's arguments in order; bfloat16 and float8 arrays have the types of
        ``ml_dtypes``. An output may be None or, at the end, left out: it then starts as memory
        that nobody wrote. An array that is given is initialised memory, also for an output; it is
        not changed, results are in the report.
    args : sequence of te.Tensor, optional
        Parameters of a TE-style schedule; by default its inputs and then its outputs.
    target : str or tvm.target.Target, optional
        By default :func:`tvm_layout_ext.default_target`.
    grid_sample : int, optional
        Run only this many blocks of each launch, chosen at random with the first and the last
        among them. Counts are exact for these; the outputs are masked arrays in which what no
        simulated block wrote is masked, and poison of global memory is not tracked.
    seed : int
        Of the random choice.
    progress : bool, optional
        False keeps quiet; by default simulations of more than two seconds say how far they are.

    Raises
    ------
    SimulationError
        If the arguments do not fit, or the program accesses memory out of bounds or misaligned.
    NotModelled
        If the program has anything that the simulator does not know.
    TargetError
        If the program has no kernel, or one needs more shared memory than a block of its target
        may have.

    Examples
    --------
    >>> report = simulate(schedule, a, b)                              # doctest: +SKIP
    >>> report.outputs["C"], report.bank_conflicts, report.hazards     # doctest: +SKIP
    """
    seed = whole_number("seed", seed, 0, SimulationError)
    if grid_sample is not None:
        grid_sample = whole_number("grid_sample, in blocks,", grid_sample, 1, SimulationError)
    if not isinstance(progress, bool | None):
        raise SimulationError(f"progress is True, False or None, not {progress!r}.")
    is_program = isinstance(source, DeviceProgram)
    program = source if is_program else device_program(source, args, target)
    for name, kernel in program.kernels.items():
        check_shared(name, kernel)
    return run_program(program, arrays, grid_sample=grid_sample, seed=seed, progress=progress)
