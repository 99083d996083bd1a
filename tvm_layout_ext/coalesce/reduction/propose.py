"""All ways to share out a reduction."""

from __future__ import annotations

from typing import Any

from ...analysis.nest import Nest
from ..request import Request
from ..strategy import Strategy
from .apply import schedule_reduction, schedule_thread_per_output


def propose_reduction(nest: Nest, request: Request) -> list[Strategy]:
    """List the ways."""
    threads, width = request.num_threads, request.vector_bytes

    def shared(sch: Any, block: Any) -> tuple[str, list[Any]]:
        return schedule_reduction(sch, block, nest, threads, width)

    def alone(sch: Any, block: Any) -> tuple[str, list[Any]]:
        return schedule_thread_per_output(sch, block, nest, threads, width)

    return [Strategy("reduction", shared), Strategy("reduction", alone)]
