"""``Replays``: calls of a module as graphs of CUDA."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ScheduleError
from ...ir.diagnostics import reason
from .workspaces import keep_workspaces

_log = logging.getLogger("tvm_layout_ext")
#: Calls before one is captured: memory and workspaces are there.
_FIRST = 3
#: Captures of which a warning tells, as each takes some 0.1 s.
_MANY = 8
#: Bytes that are free for workspaces of 4 KB, beside those that a graph has.
_LEAST = 1 << 26
#: Runs a module, given what it writes, its inputs and its memory; gives its results.
_Run = Callable[[Sequence[Any], Sequence[Any], Any], list[Any]]


class Replays:
    """Calls of a module on a GPU: some first ones, and then replays of one that was captured.

    A replay reads copies of the inputs and gives copies of the results, as a graph reads and writes
    the same memory each time. What the module writes lies where it is; if it lies elsewhere for two
    calls, the second one is captured again.
    """

    def __init__(self) -> None:
        self._calls, self._captures, self._is_off = 0, 0, False
        self._graph: _Capture | None = None
        #: Where the last call wrote.
        self._places: list[Any] = []

    def __call__(
        self,
        run: _Run,
        allocate: Callable[[], Any],
        held: Sequence[Any],
        given: Sequence[Any],
    ) -> list[Any]:
        """Run or replay a call."""
        before, self._places = self._places, _places(held)
        if self._graph is not None and self._graph.fits(self._places, given):
            return self._graph(given)
        results = run(held, given, allocate())
        self._calls += 1
        if self._is_off or self._calls < _FIRST or before != self._places:
            return results
        self._graph = None  # Its memory is free before there is a new one.
        self._captures += 1
        if self._captures == _MANY:
            _log.warning("Calls were captured %d times, as what they write is moved.", _MANY)
        outer = sys.exc_info()[1]
        try:
            self._graph = _Capture.of(run, allocate(), held, given)
        except Exception as error:  # Calls run all the same.
            self._is_off = True
            _log.warning("Launches are not captured: %s", reason(_first(error, outer)))
        return results


@dataclass(eq=False)
class _Capture:
    """A call that was captured, with the memory that it reads and writes."""

    graph: Any
    inputs: Sequence[Any]
    results: Sequence[Any]
    places: Sequence[Any]
    memory: Any
    lock: Any = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, run: _Run, memory: Any, held: Sequence[Any], given: Sequence[Any]) -> _Capture:
        """Capture a call; another one has just run."""
        torch = sys.modules["torch"]
        inputs, device = _copied(given), given[0].device
        # Torch does not leave the stream of a capture that fails, and stops other threads' calls.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream(device)  # Torch's own is one of the first GPU.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                results = run(held, inputs, memory)
            made = cls(graph, inputs, results, _places(held), memory)
            if torch.cuda.mem_get_info(device)[0] < _LEAST:  # TVM would end the process.
                raise ScheduleError(f"Less than {_LEAST >> 20} MB of the GPU's memory are free.")
            keep_workspaces(made, device.index)
        return made

    def fits(self, places: Sequence[Any], given: Sequence[Any]) -> bool:
        """Whether inputs are such, and what the module writes lies where the graph has it."""
        return self.places == places and all(
            own.shape == new.shape and own.dtype == new.dtype
            for own, new in zip(self.inputs, given, strict=True)
        )

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        with self.lock:
            for own, new in zip(self.inputs, given, strict=True):
                own.copy_(new)
            self.graph.replay()
            return [one.clone() for one in self.results]


def _copied(tensors: Sequence[Any]) -> list[Any]:
    """Copies to which a call may write, be it in inference mode or not."""
    with sys.modules["torch"].inference_mode(False):
        return [one.clone() for one in tensors]


def _first(error: Exception, outer: BaseException | None) -> Exception:
    """The error that came before others, as that a graph cannot be ended, but not an outer one."""
    while isinstance(error.__context__, Exception) and error.__context__ is not outer:
        error = error.__context__
    return error


def _places(tensors: Sequence[Any]) -> list[Any]:
    return [(one.data_ptr(), one.shape, one.dtype) for one in tensors]
