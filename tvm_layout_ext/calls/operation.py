"""``op("gemm")(a, b)``: the ready operators as functions of arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import tvm

from .._compat import read_json
from ..build import lower
from ..checks import path_of
from ..errors import ScheduleError
from ..target import cuda_target, default_arch
from ..tune.records.log import Log
from ..tune.space.operator import Operator, find_operator, known_operators
from ..tune.space.recognise import BORDER, PROBES, probe, shape_of
from ..tune.space.task import make_task
from . import disk
from .arrays import Argument, Parameter, read
from .chosen import chosen
from .fixed import FixedKernel


class Operation:
    """A ready operator as a function of arrays: ``op("softmax")(x)``.

    Arrays may be of NumPy, torch, CuPy, TVM or any library that speaks DLPack; the result is of the
    first one's kind and lies where that lies. A kernel is made for each new combination of shapes,
    and kept, also on disk, in ``~/.cache/tvm_layout_ext`` or the folder that
    ``TVM_LAYOUT_EXT_CACHE`` names. Without a GPU it runs on the simulated one.

    Parameters
    ----------
    operator : Operator
    log : path, optional
        A log of :func:`tvm_layout_ext.tune`, whose nearest record gives the configuration; by
        default those that come with the package. Where no shape is near, the default is taken.
    """

    def __init__(self, operator: Operator, log: str | os.PathLike[str] | None = None) -> None:
        self.operator = operator
        self._log = None if log is None else os.path.abspath(log)
        self._kernels: dict[Any, FixedKernel] = {}

    @property
    def name(self) -> str:
        """The operator's."""
        return self.operator.name

    def __call__(self, *arrays: Any) -> Any:
        """Compute; ScheduleError or TargetError, one sentence, if arrays do not fit."""
        arguments = self._read(arrays)
        return self._kernel(arguments).run(arguments)

    def kernel(self, *arrays: Any) -> FixedKernel:
        """The kernel for arrays of these shapes and types, of which none is read."""
        return self._kernel(self._read(arrays))

    @cached_property
    def _names(self) -> list[str]:
        tensors, count, _ = probe(self.operator, self.operator.dtypes[0])
        return [str(one.op.name) for one in tensors[:count]]

    @cached_property
    def _arch(self) -> str:
        return default_arch()

    def _read(self, arrays: Sequence[Any]) -> list[Argument]:
        names = self._names
        if len(arrays) != len(names):
            raise ScheduleError(
                f"{self.name} takes {len(names)} arrays ({', '.join(names)}), not {len(arrays)}."
            )
        return [read(f"{n} of {self.name}", a) for n, a in zip(names, arrays, strict=True)]

    def _kernel(self, arguments: Sequence[Argument]) -> FixedKernel:
        key = tuple((one.shape, one.dtype) for one in arguments)
        if key not in self._kernels:
            shape, dtype = _workload(self.operator, arguments)
            self._kernels[key] = _made(self.operator, shape, dtype, self._arch, self._log)
        return self._kernels[key]

    def __repr__(self) -> str:
        inputs = ", ".join(_told(p) for p in _symbolic(self.operator))
        return f"<{self.name}({inputs}); {', '.join(self.operator.dtypes)}>"


def op(name: str, *, log: str | os.PathLike[str] | None = None) -> Operation:
    """A ready operator as a function of arrays.

    Parameters
    ----------
    name : str
        One of :func:`operators`.
    log : path, optional
        As of :class:`Operation`.

    Examples
    --------
    >>> op("transpose")(np.zeros((64, 32), "float32")).shape
    (32, 64)
    """
    if not isinstance(name, str):
        raise ScheduleError(f"op takes the name of an operator, not {name!r}.")
    folder = None if log is None else path_of("A log", log, ScheduleError)
    return Operation(find_operator(name), folder)


def operators() -> dict[str, Operation]:
    """The ready operators by name; each says which arrays of which types it takes.

    Examples
    --------
    >>> operators()["gemm_nt"]
    <gemm_nt(A[M, K], B[N, K]); float16, bfloat16, float32, int8, uint8, float8_e4m3fn, ...>
    """
    return _Listed({name: op(name) for name in known_operators()})


class _Listed(dict[str, Operation]):
    """Operations by name, printed one a line."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values()))


def _made(
    operator: Operator, shape: Sequence[int], dtype: str, arch: str, log: str | None
) -> FixedKernel:
    """Lower an operator, unless it was: the program is kept on disk."""
    task = make_task(operator, shape, dtype, target=cuda_target(arch))

    def lowered() -> bytes:
        module = lower(task.module(chosen(task, log)), target=cuda_target(arch))
        return tvm.ir.save_json(module).encode()

    key = disk.key_of(operator.name, task.shape, dtype, arch, log and Log(log).stamp())
    module = read_json(disk.remembered(f"{key}.json", lowered).decode())
    tensors, inputs, _ = probe(operator, dtype)
    return FixedKernel(
        operator.name, module, arch, len(tensors) - inputs, operator.flops(task.shape)
    )


def _symbolic(operator: Operator) -> list[Parameter]:
    """The inputs with names of dimensions in the place of extents."""
    names = dict(zip(PROBES, operator.dims, strict=False))

    def told(extent: int) -> str:
        prime = next((p for p in names if 0 <= extent - p < BORDER), None)
        if prime is None:
            # Such as 2, or a part of a dimension.
            return "..."
        return names[prime] + (f" + {extent - prime}" if extent > prime else "")

    tensors, count, _ = probe(operator, operator.dtypes[0])
    return [
        Parameter(str(t.op.name), tuple(told(int(n)) for n in t.shape), str(t.dtype))  # type: ignore[misc]
        for t in tensors[:count]
    ]


def _told(parameter: Parameter) -> str:
    return f"{parameter.name}[{', '.join(map(str, parameter.shape))}]"


def _workload(operator: Operator, arguments: Sequence[Argument]) -> tuple[tuple[int, ...], str]:
    """The shape and element type at which an operator takes some arrays; ScheduleError if none."""
    given = [one.shape for one in arguments]
    shape = shape_of(operator, operator.dtypes[0], given)
    if shape is None:
        empty = "" if all(n > 0 for one in given for n in one) else ", none of them empty"
        raise ScheduleError(
            f"{operator.name} takes {', '.join(map(_told, _symbolic(operator)))}{empty}; the "
            f"arrays given are {', '.join(str(list(one)) for one in given)}."
        )
    types = [one.dtype for one in arguments]
    for dtype in operator.dtypes:
        tensors, count, _ = probe(operator, dtype)
        if [str(one.dtype) for one in tensors[:count]] == types:
            return shape, dtype
    raise ScheduleError(
        f"{operator.name} takes arrays of one type ({', '.join(operator.dtypes)}), not of "
        f"{', '.join(types)}."
    )
