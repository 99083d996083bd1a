"""Loops whose copies run ahead: versions of shared buffers, registers loaded a step before."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.golden.programs.program import Program
from tests.programs import prefetched
from tests.programs.pipelined import Stream
from tests.transform.pipeline import test_programs

__all__ = ["programs"]


def _stream(stages: Any, loads: int = 1, *, ragged: bool = False, **more: Any) -> Any:
    dtype = more.pop("dtype", "float32")
    return Stream(loads, ragged, dtype).schedule(stages, **more)


_STREAMS: dict[str, Any] = {
    **{f"{n}-versions": partial(_stream, n) for n in (1, 2, 3, 4, 6)},
    **{f"{n}-versions-of-two": partial(_stream, n, 2) for n in (2, 3, 4)},
    **{f"{n}-versions-plain": partial(_stream, n, async_copy=False) for n in (2, 3)},
    **{f"{n}-versions-ragged": partial(_stream, n, ragged=True) for n in (2, 4)},
    "2-and-4-versions": partial(_stream, (2, 4), 2),
    "3-versions-of-halves": partial(_stream, 3, dtype="float16"),
    "3-versions-of-three": partial(_stream, 3, 3),
}


def programs() -> Iterator[Program]:
    for name, made in _STREAMS.items():
        yield Program(f"pipeline/{name}", made)
    yield Program("pipeline/3-versions-sm_75", partial(_stream, 3), arch="sm_75")
    for index, data in ((1, 1), (2, 2), (2, 3), (3, 2)):
        made = partial(test_programs.gather, index, data, 7)
        yield Program(f"pipeline/indirect-{index}-{data}", made)
    for stages in (1, 2, 3):
        for prefetch in (False, True):
            name = f"pipeline/row-sums-{stages}{'-prefetched' if prefetch else ''}"
            yield Program(name, partial(prefetched.scheduled, 4, 4, stages, prefetch=prefetch), 1)
    yield Program("pipeline/any-chunks", partial(prefetched.scheduled, "n", 4, 3))
