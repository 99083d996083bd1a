"""A kernel of fixed shapes that is called with arrays: on a GPU, else on the simulated one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from .._compat import has_gpu
from ..build import compile_lowered, device_program
from ..cubin import compiling_by, machine_code
from ..errors import ScheduleError, TargetError
from ..simulation import simulate
from ..target import cuda_target
from . import disk
from .arrays import Argument, Parameter, empty, give_back, on_gpu, read

_log = logging.getLogger("tvm_layout_ext")


class FixedKernel:
    """A lowered function as a Python function of arrays, its results the last parameters.

    ``results`` counts these; ``flops`` are arithmetic operations, 0 if unknown. It is compiled, or
    made ready for the simulator, when first called.
    """

    def __init__(
        self, name: str, module: tvm.IRModule, arch: str, results: int = 1, flops: int = 0
    ) -> None:
        self.name, self.module, self.arch, self.flops = name, module, arch, flops
        func = next(f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc))
        self.parameters = _parameters(func)
        self.inputs = self.parameters[: len(self.parameters) - results]
        self.results = self.parameters[len(self.inputs) :]

    def __repr__(self) -> str:
        taken, made = (", ".join(map(str, one)) for one in (self.inputs, self.results))
        return f"<{self.name}({taken}) -> {made}; {self.arch}>"

    @property
    def target(self) -> Target:
        """What it is compiled for."""
        return cuda_target(self.arch)

    @cached_property
    def executable(self) -> Any:
        """The compiled module; its machine code is kept on disk."""
        with compiling_by(partial(_machine_code, self.arch)):
            return compile_lowered(self.module, self.target)

    @cached_property
    def _main(self) -> Any:
        return self.executable["main"]

    @cached_property
    def _has_gpu(self) -> bool:
        return has_gpu()

    @cached_property
    def _program(self) -> Any:
        return device_program(self.module, target=self.target)

    def __call__(self, *arrays: Any) -> Any:
        """Run on arrays; the result, or a tuple of them, is of the first array's kind."""
        return self.run([read(f"{p.name} of {self.name}", a) for p, a in self._paired(arrays)])

    def _paired(self, arrays: Sequence[Any]) -> Iterator[tuple[Parameter, Any]]:
        if len(arrays) != len(self.inputs):
            raise ScheduleError(
                f"{self.name} takes {len(self.inputs)} arrays ({', '.join(map(str, self.inputs))}),"
                f" not {len(arrays)}."
            )
        return zip(self.inputs, arrays, strict=True)

    def run(self, arguments: Sequence[Argument]) -> Any:
        """Run on arrays that were read."""
        for parameter, one in zip(self.inputs, arguments, strict=True):
            if (one.shape, one.dtype) != (parameter.shape, parameter.dtype):
                given = Parameter(parameter.name, one.shape, one.dtype)
                raise ScheduleError(f"{self.name} takes {parameter}, not {given}.")
        results = (self._on_gpu if self._has_gpu else self._simulated)(arguments)
        back = tuple(give_back(arguments[0], one) for one in results)
        return back[0] if len(back) == 1 else back

    def _on_gpu(self, arguments: Sequence[Argument]) -> list[Any]:
        index = device_of(self.name, arguments)
        device = tvm.cuda(index)
        given = [on_gpu(one, device) for one in arguments]
        results = [empty(arguments[0], p.shape, p.dtype, device) for p in self.results]
        self._main(*given, *results)
        return results

    def _simulated(self, arguments: Sequence[Argument]) -> list[Any]:
        device_of(self.name, arguments)
        _say_once()
        report = simulate(self._program, *(one.data for one in arguments))
        if report.hazards:
            _log.warning("%s has hazards; the first: %s", self.name, report.hazards[0])
        return [report.outputs[one.name] for one in self.results]


def device_of(name: str, arguments: Sequence[Argument]) -> int:
    """The GPU that a call runs on; TargetError if arrays lie on several, or there is none."""
    places = sorted({one.device for one in arguments if one.device is not None})
    if len(places) > 1:
        raise TargetError(f"Arrays of {name} lie on the GPUs {places}; give those of one.")
    if places and not has_gpu():
        raise TargetError(f"An array of {name} lies on a GPU, of which TVM sees none here.")
    return places[0] if places else 0


@lru_cache(maxsize=1)
def _say_once() -> None:
    _log.warning(
        "No CUDA GPU here: kernels run on the simulated GPU, exactly but thousands of times slower."
    )


def _parameters(func: tirx.PrimFunc) -> list[Parameter]:
    return [
        Parameter(str(p.name), tuple(int(n) for n in getattr(p, "shape", ())), str(p.dtype))
        for p in func.params
    ]


def _machine_code(arch: str, source: str) -> bytes:
    """The machine code of CUDA source, which is kept on disk."""
    return disk.remembered(disk.image_key(source, arch), lambda: machine_code(source, arch).image)
