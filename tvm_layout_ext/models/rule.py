"""What a rule of :mod:`.rules` is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.target import Target


@dataclass(frozen=True)
class Scheduled:
    """A function that a rule has scheduled, and how, in one clause."""

    schedule: s_tir.Schedule
    text: str

    @property
    def function(self) -> tirx.PrimFunc:
        """The function with its schedule."""
        return self.schedule.mod["main"]


#: ``rule(func, target)`` gives None for a function that is no case for it: the next one is asked,
#: and nothing is told. Where it is one and cannot be scheduled, it raises with the reason.
Apply = Callable[[tirx.PrimFunc, Target], Scheduled | None]
