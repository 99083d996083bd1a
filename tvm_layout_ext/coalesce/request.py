"""What a user asks of ``auto_coalesce``, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..checks import is_one_of
from ..errors import ScheduleError
from ..gpu.hardware import LAUNCH_LIMITS, MAX_ACCESS_BYTES, WARP_SIZE

NAME = "auto_coalesce"
_STAGES = ("auto", "shared", "none")
_MAX_THREADS = LAUNCH_LIMITS["threadIdx.x"]


@dataclass(frozen=True)
class Request:
    """What a user asks for."""

    num_threads: int | None = None  #: Threads of a block
    vector_bytes: int = MAX_ACCESS_BYTES  #: Bytes of the widest access of a thread
    #: ``auto``, ``shared`` (stage every load) or ``none`` (use no shared memory).
    stage: str = "auto"

    def __post_init__(self) -> None:
        threads, width = self.num_threads, self.vector_bytes
        if threads is not None and not _is_int(threads):
            raise ScheduleError(f"{NAME} needs an int num_threads, not {threads!r}.")
        if threads is not None and (
            threads % WARP_SIZE or not WARP_SIZE <= threads <= _MAX_THREADS
        ):
            raise ScheduleError(
                f"{NAME} needs num_threads to be a multiple of 32 from 32 to 1,024, not {threads}."
            )
        if not _is_int(width) or width not in (1, 2, 4, 8, 16):
            raise ScheduleError(f"{NAME} needs vector_bytes to be 1, 2, 4, 8 or 16, not {width!r}.")
        if not is_one_of(self.stage, _STAGES):
            raise ScheduleError(
                f"{NAME} needs stage to be one of {', '.join(_STAGES)}, not {self.stage!r}."
            )

    def as_annotation(self) -> list[Any]:
        """Write it as :func:`request_of` reads it."""
        return [self.num_threads or 0, self.vector_bytes, self.stage]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def request_of(value: Any, block: str) -> Request:
    """Read the annotation ``[num_threads or 0, vector_bytes, stage]`` of a block.

    Raises ScheduleError if it has another form, or a value in it is not legal.
    """
    try:
        threads, width, stage = value
        parts = int(threads) or None, int(width), str(stage)
    except (TypeError, ValueError) as error:
        raise ScheduleError(
            f"Block {block} asks {NAME} by {value}; it takes [num_threads or 0, vector_bytes, "
            "stage]."
        ) from error
    return Request(*parts)
