"""The record that passes write (what was chosen or refused, and why) and that reports read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decision:
    """One choice or refusal of a pass or primitive, in a sentence with the numbers.

    ``subject`` is a buffer, block or loop by the user's name. ``record`` says the same in a form
    that reports can draw; it is hashable.
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


def repeat(made: Sequence[Decision]) -> None:
    """Write decisions that were made before, for whoever uses their result again."""
    sink = _sink.get()
    if sink is not None:
        sink.extend(made)
