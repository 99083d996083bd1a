"""Thread maps for a block: one strategy a file, and the table of them.

A strategy looks at a :class:`~.subject.Subject` and lists what could be done; it decides nothing.
Of proposals that take equally long the first is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import ScheduleError
from ..strategy import Strategy
from ..subject import Subject
from .askew import askew
from .flat import flat
from .in_kernel import in_kernel
from .reduced import reduced
from .rows import rows
from .shifted import shifted
from .staged import staged
from .turned import turned

#: All strategies, in the order in which equally good proposals are taken.
STRATEGIES: tuple[Callable[[Subject], list[Strategy]], ...] = (
    in_kernel,
    reduced,
    askew,
    flat,
    rows,
    shifted,
    staged,
    turned,
)


def propose(subject: Subject) -> tuple[list[Strategy], list[str]]:
    """List what all strategies propose for a block, and why some refuse it."""
    found: list[Strategy] = []
    refusals: list[str] = []
    for strategy in STRATEGIES:
        try:
            found += strategy(subject)
        except ScheduleError as error:
            refusals.append(f"{strategy.__name__} is not possible: {str(error).rstrip('.')}")
    if subject.request.stage == "shared":
        # Where there is no load that a tile could hold, everything else is left.
        tiles = [one for one in found if one.path == "staged"]
        is_refused = any(one.startswith(staged.__name__) for one in refusals)
        found = tiles if tiles or is_refused else found
    return found, refusals
