"""The counters of :mod:`.counts`, by their older name."""

from ...gpu.counts import *  # noqa: F403
from ...gpu.counts import __all__ as __all__
