"""The counters of :mod:`tvm_layout_ext.gpu.counts`, by their older name."""

from ..gpu.counts import *  # noqa: F403
from ..gpu.counts import __all__ as __all__
