"""``Replays``: calls of a module as graphs of CUDA."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.diagnostics import reason
from .workspaces import keep_workspaces

_log = logging.getLogger("tvm_layout_ext")
#: Calls before one is captured: memory and workspaces are there.
_FIRST = 3
#: Runs a module, given what it writes, its inputs, and where to keep a graph's memory.
_Run = Callable[[Sequence[Any], Sequence[Any], list[Any]], list[Any]]


class Replays:
    """Calls of a module on a GPU: some first ones, and then replays of one that was captured.

    A replay reads copies of the inputs and gives copies of the results, as a graph reads and writes
    the same memory each time. What the module writes lies where it is; if it lies elsewhere, the
    call is captured again.
    """

    def __init__(self) -> None:
        self._calls, self._is_off = 0, False
        self._graph: _Graph | None = None

    def __call__(self, run: _Run, held: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """Run or replay a call."""
        if self._graph is not None and self._graph.fits(held, given):
            return self._graph(given)
        results = run(held, given, [])
        self._calls += 1
        if self._is_off or self._calls < _FIRST:
            return results
        # The graph is to have the memory of these.
        results = [one.clone() for one in results]
        self._graph = None
        try:
            self._graph = _Graph.of(run, held, given)
        except Exception as error:  # Calls run all the same.
            self._is_off = True
            _log.warning("Launches are not captured: %s", reason(error))
        return results


@dataclass(eq=False)
class _Graph:
    """A call that was captured, with the memory that it reads and writes."""

    graph: Any
    inputs: Sequence[Any]
    results: Sequence[Any]
    places: Sequence[int]
    memory: Sequence[Any]

    @classmethod
    def of(cls, run: _Run, held: Sequence[Any], given: Sequence[Any]) -> _Graph:
        """Capture a call; another one has just run."""
        torch, memory = sys.modules["torch"], list[Any]()
        inputs, device = [one.clone() for one in given], given[0].device
        with torch.cuda.device(device):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                results = run(held, inputs, memory)
            made = cls(graph, inputs, results, _places(held), memory)
            keep_workspaces(made, device.index)
        return made

    def fits(self, held: Sequence[Any], given: Sequence[Any]) -> bool:
        """Whether inputs are such, and what the module writes lies where the graph has it."""
        return self.places == _places(held) and all(
            own.shape == new.shape and own.dtype == new.dtype
            for own, new in zip(self.inputs, given, strict=True)
        )

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        for own, new in zip(self.inputs, given, strict=True):
            own.copy_(new)
        self.graph.replay()
        return [one.clone() for one in self.results]


def _places(tensors: Sequence[Any]) -> list[int]:
    return [one.data_ptr() for one in tensors]
