"""``load_torch``: a compiled module from a file."""

from __future__ import annotations

import os
import warnings

from ...errors import ScheduleError, TargetError
from ...ir.diagnostics import reason
from .torch_module import TorchModule


def load_torch(path: str | os.PathLike[str]) -> TorchModule:
    """Load what ``compile_torch(...).save(path)`` wrote, without compiling anything.

    Weights are read from the file when they go to the GPU. ``mod`` is None, and ``buffers`` are as
    they were saved.

    Parameters
    ----------
    path : path
        It holds code, as a library does: load what you trust.

    Raises
    ------
    ScheduleError
        If other versions of TVM or of this package wrote it, or there is no such file.
    TargetError
        If there is no CUDA driver.

    Examples
    --------
    >>> tlx.compile_torch(net, (x,)).save("net.tlx")  # doctest: +SKIP
    >>> fast = tlx.load_torch("net.tlx")  # doctest: +SKIP
    """
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # Of torch's own specs of arguments.
            found = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
    except (ScheduleError, TargetError):
        raise
    except FileNotFoundError as error:
        raise ScheduleError(f"There is no file {path}.") from error
    except ModuleNotFoundError as error:
        raise ScheduleError(f"{path} needs {error.name}, which is not installed.") from error
    except Exception as error:
        raise ScheduleError(f"{path} is no saved module: {reason(error)}") from error
    if not isinstance(found, TorchModule):
        raise ScheduleError(f"{path} holds a {type(found).__name__}, not what save() wrote.")
    return found
