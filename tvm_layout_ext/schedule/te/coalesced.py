"""What a TE-style ``auto_coalesce`` gives before, and after, its schedule is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ScheduleError
from ...transform.auto_coalesce import Outcome

if TYPE_CHECKING:
    from .records import StageRecord


class Coalesced:
    """The mapping of a stage, chosen each time that its schedule is applied."""

    def __init__(self, stage: StageRecord) -> None:
        self._stage = stage

    @property
    def outcome(self) -> Outcome:
        """What was done when the schedule was last applied; ScheduleError before that."""
        if self._stage.outcome is None:
            raise ScheduleError(f"{self!r}.")
        return self._stage.outcome

    def __repr__(self) -> str:
        found = self._stage.outcome
        if found is None:
            return (
                f"Stage {self._stage.name} will be mapped when the schedule is applied, by s.sch, "
                "tlx.explain or tlx.build"
            )
        return f"{self._stage.name}: {found.text}"
