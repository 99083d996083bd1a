"""The facts of :mod:`.hardware`, by their older name."""

from collections.abc import Mapping as _Mapping
from inspect import isfunction as _isfunction

from .gpu import hardware as _hardware
from .gpu.hardware import *  # noqa: F403
from .gpu.hardware import __all__ as __all__
from .signatures import typed as _typed

_KINDS = (int, str, _Mapping, _hardware.Architecture)
globals().update(
    {
        n: _typed(it, *_KINDS)
        for n, it in vars(_hardware).items()
        if n in __all__ and _isfunction(it)
    }
)
