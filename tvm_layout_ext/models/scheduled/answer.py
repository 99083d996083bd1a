"""``Answer``: what became of a function, as bytes that another process reads."""

from __future__ import annotations

import logging
import pickle
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import tvm
from tvm import tirx
from tvm.target import Target

from ... import decisions
from ..._compat import read_json
from ...decisions import Decision
from ...ir import lowered_once
from .choose import RuleChoice, choose

_LOGGER = logging.getLogger("tvm_layout_ext")


class Answer(NamedTuple):
    """The rule that was chosen, and the function by it, as scheduled and as lowered.

    ``told`` are decisions of its lowering, and ``said`` levels and texts of messages.
    """

    choice: RuleChoice
    function: tirx.PrimFunc | None
    lowered: tirx.PrimFunc | None
    told: tuple[Decision, ...]
    said: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, func: tirx.PrimFunc, target: Target) -> Answer:
        """Ask the rules."""
        # What is told while rules try, and count what they would take, is not what is done.
        with target, decisions.collect(), _messages() as said:
            choice, found = choose(func, target)
        if found is None:
            return cls(choice, None, None, (), tuple(said))
        made = lowered_once.made_of(found.function)
        lowered, told = (None, ()) if made is None else (made.lowered, made.told)
        return cls(choice, found.function, lowered, told, tuple(said))

    def to_bytes(self) -> bytes:
        """All of it; what cannot be pickled raises an error."""
        functions = tvm.ir.save_json([self.function, self.lowered])
        return zlib.compress(pickle.dumps((self.choice, functions, self.told, self.said)), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """What :meth:`to_bytes` gave."""
        choice, functions, told, said = pickle.loads(zlib.decompress(data))
        if not isinstance(choice, RuleChoice):
            raise ValueError("A rule's choice is not there.")
        function, lowered = read_json(functions)
        return cls(choice, function, lowered, told, said)

    def repeat(self) -> None:
        """Tell and keep what asking the rules here would have."""
        for level, text in self.said:
            _LOGGER.log(level, "%s", text)
        if self.function is not None and self.lowered is not None:
            lowered_once.keep(self.function, self.lowered, self.told)


@contextmanager
def _messages() -> Iterator[list[tuple[int, str]]]:
    """Gather what this package's logger is told in this thread."""
    said, thread = list[tuple[int, str]](), threading.get_ident()

    class Gather(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                said.append((record.levelno, record.getMessage()))

    handler = Gather()
    _LOGGER.addHandler(handler)
    try:
        yield said
    finally:
        _LOGGER.removeHandler(handler)


class ScheduleRequest(NamedTuple):
    """A function, its target and the options of passes, as they are asked of a process."""

    text: str  #: JSON of function and target
    options: tuple[Any, ...]
    level: int  #: Of messages that are told

    @classmethod
    def of(cls, func: tirx.PrimFunc, target: Target) -> ScheduleRequest:
        """A request under the present options."""
        context = tvm.transform.PassContext.current()
        passes = [*map(str, context.required_pass)], [*map(str, context.disabled_pass)]
        options = int(context.opt_level), *passes, dict(context.config)
        return cls(tvm.ir.save_json([func, target]), options, _LOGGER.getEffectiveLevel())

    def answered(self) -> bytes:
        """The answer, in a process that nothing else uses."""
        _LOGGER.setLevel(self.level)
        func, target = read_json(self.text)
        level, required, disabled, config = self.options
        with tvm.transform.PassContext(level, required, disabled, config=config):
            return Answer.of(func, target).to_bytes()
