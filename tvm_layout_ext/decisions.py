"""The record that passes write (what was chosen or refused, and why) and that reports read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

__all__ = ["Decision", "collect", "note"]


@dataclass(frozen=True)
class Decision:
    """One choice or refusal of a pass.

    Attributes
    ----------
    maker : str
        The pass or primitive that decided, e.g. ``InjectMultiStageBuffer``.
    subject : str
        What it decided about: a buffer, block or loop, by the user's name.
    text : str
        One sentence: what was chosen or refused, with the numbers.
    refused : bool
        True if the request was not carried out.
    record : object
        The same in a form that reports can draw, where the maker has one; hashable.
    """

    maker: str
    subject: str
    text: str
    refused: bool = False
    record: Any = None

    def __str__(self) -> str:
        mark = "refused" if self.refused else "chose"
        return f"{self.maker} {mark} for {self.subject}: {self.text}"


_sink: ContextVar[list[Decision] | None] = ContextVar("layout_ext_decisions", default=None)


@contextmanager
def collect() -> Iterator[list[Decision]]:
    """Gather the decisions that passes make inside the ``with`` block."""
    decisions: list[Decision] = []
    token = _sink.set(decisions)
    try:
        yield decisions
    finally:
        _sink.reset(token)


def note(maker: str, subject: str, text: str, *, refused: bool = False, record: Any = None) -> None:
    """Write one decision; without a collector it is dropped."""
    sink = _sink.get()
    if sink is not None:
        sink.append(Decision(maker, subject, text, refused, record))
