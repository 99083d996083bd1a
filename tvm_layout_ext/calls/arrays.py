"""Arrays of NumPy, torch, CuPy, TVM or any library that speaks DLPack, there and back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..errors import ScheduleError, TargetError

#: DLPack's numbers of devices: the host's memory, and two kinds that the host can read.
_CPU, _CUDA, _PINNED = 1, 2, 3


@dataclass(frozen=True)
class Parameter:
    """What a kernel takes in one place."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}"


class Argument:
    """An array of a caller; ``data`` is a NumPy array, or a TVM tensor on a GPU without a copy.

    ``device`` is the number of the GPU that it lies on, None on the host.
    """

    __slots__ = ("data", "device", "dtype", "shape", "source")

    def __init__(self, source: Any, data: Any) -> None:
        # Read once: a call takes tens of microseconds.
        self.source, self.data = source, data
        self.shape, self.dtype = tuple(map(int, data.shape)), str(data.dtype)
        self.device = None if isinstance(data, np.ndarray) else int(data.device.index)


def read(what: str, array: Any) -> Argument:
    """See an array of any library as what kernels take.

    An array that is not row-major is copied. ScheduleError or TargetError, which begin with
    ``what``, if it is none, or none that a kernel can read.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise ScheduleError(f"{what} is a masked array, whose mask a kernel does not see; fill it.")
    if isinstance(array, np.ndarray):
        return Argument(array, np.ascontiguousarray(array))
    if not hasattr(array, "__dlpack__"):
        raise ScheduleError(
            f"{what} is a {type(array).__name__}; give an array of NumPy, torch, CuPy or TVM."
        )
    plain = array.detach() if hasattr(array, "detach") else array
    if hasattr(plain, "contiguous"):
        plain = plain.contiguous()
    kind = int(plain.__dlpack_device__()[0])
    if kind not in (_CPU, _CUDA, _PINNED):
        raise TargetError(f"{what} lies on DLPack's device {kind}; CUDA's and the host's are read.")
    try:
        tensor = tvm_ffi.from_dlpack(plain, require_alignment=16, require_contiguous=True)
    except (RuntimeError, ValueError, BufferError, TypeError):
        if kind == _CUDA:
            raise ScheduleError(
                f"{what} is not row-major from a multiple of 16 bytes on; give a copy of it."
            ) from None
        tensor = tvm_ffi.from_dlpack(plain)
    return Argument(array, tensor if kind == _CUDA else tensor.numpy())


def on_gpu(argument: Argument, device: Any) -> Any:
    """The array as a tensor on a GPU; one of the host is copied there."""
    if argument.device is None:
        return tvm.runtime.tensor(argument.data, device)
    return argument.data


def empty(like: Argument, shape: Sequence[int], dtype: str, device: Any) -> Any:
    """Room for a result on the GPU, in the caller's kind of array if that lies there.

    torch and CuPy keep what was freed; TVM asks the driver each time.
    """
    library = _library(like.source)
    if like.device is not None and library in ("torch", "cupy"):
        module = sys.modules[library]
        if library == "torch":
            place = like.source.device
            return module.empty(tuple(shape), dtype=getattr(module, dtype), device=place)
        return module.empty(tuple(shape), dtype=dtype)
    return tvm.runtime.empty(tuple(shape), dtype, device)


def give_back(like: Argument, result: Any) -> Any:
    """A result, of TVM or NumPy, as the caller's kind of array, where the caller's array lies."""
    library = _library(like.source)
    if _library(result) == library:
        return result
    if like.device is None and not isinstance(result, np.ndarray):
        result = result.numpy()
    if library == "numpy":
        return result
    tensor = tvm.runtime.tensor(result) if isinstance(result, np.ndarray) else result
    if library in ("tvm", "tvm_ffi"):
        return tensor
    return _reader(like.source)(tensor)


def _library(array: Any) -> str:
    return type(array).__module__.partition(".")[0]


def _reader(array: Any) -> Any:
    """``from_dlpack`` of an array's library; ScheduleError if that has none."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().from_dlpack
    library = sys.modules.get(_library(array))
    found = getattr(library, "from_dlpack", None)
    if found is None:
        raise ScheduleError(f"{_library(array)} has no from_dlpack, by which it takes a result.")
    return found
