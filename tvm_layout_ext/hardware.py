"""The facts of :mod:`.hardware`, by their older name."""

from .gpu.hardware import *  # noqa: F403
from .gpu.hardware import __all__ as __all__
