"""Knobs: the names and values that a schedule leaves to the tuner."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import ScheduleError

Value = int | str
#: One value, an int or a str, for every knob of a schedule.
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Knob:
    """One choice that a schedule leaves open, which it reads as ``config[name]``.

    ``default`` is the value of trial 0. ``contiguous`` values came from a ``range``, so that a best
    one at the upper end asks for a longer range. ``before`` is what a schedule did before it had
    the knob: the value in configurations that lack it. Such knobs are listed last, and where this
    value is not legal, no other is. If ``apart``, configurations with other values come behind all
    others of a space, which records of sweeps name by their index.
    """

    name: str
    values: tuple[Value, ...]
    default: Value
    contiguous: bool = False
    before: Value | None = None
    apart: bool = False

    def of(self, config: Config) -> Any:
        """Its value in a configuration, which may be older than the knob.

        KeyError if the configuration lacks it, and there never was a schedule without it.
        """
        if self.before is None:
            return config[self.name]
        return config.get(self.name, self.before)

    def at_upper_edge(self, value: Value) -> bool:
        """Whether a value is the last of a range, so that a better one may lie beyond."""
        return self.contiguous and len(self.values) > 1 and value == self.values[-1]


class Refusal(NamedTuple):
    """Why a candidate is not legal: the rule it breaks, and one sentence with its numbers."""

    rule: str
    text: str


def knob(
    name: str,
    values: Iterable[Value],
    default: Value | None = None,
    before: Value | None = None,
    apart: bool = False,
) -> Knob:
    """Declare a knob by its name in the configuration and its values, each once.

    A ``range`` makes it contiguous; ``default`` is by default the first value; ``before`` and
    ``apart`` are as of :class:`Knob`.

    Examples
    --------
    >>> knob("offset", range(0, 9), default=1).values
    (0, 1, 2, 3, 4, 5, 6, 7, 8)
    """
    if not isinstance(name, str) or not name:
        raise ScheduleError(f"A knob's name is a word, not {name!r}.")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ScheduleError(f"Knob {name} needs a range or a list of values, not {values!r}.")
    listed = tuple(_value(name, one) for one in values)
    if not listed:
        raise ScheduleError(f"Knob {name} has no value; give at least one.")
    if len(set(listed)) < len(listed):
        raise ScheduleError(f"Knob {name} lists a value twice: {', '.join(map(str, listed))}.")
    chosen = listed[0] if default is None else _value(name, default)
    legal = ", ".join(map(str, listed))
    if chosen not in listed:
        raise ScheduleError(f"Default {chosen} of knob {name} is not one of its values {legal}.")
    if before is not None and _value(name, before) not in listed:
        raise ScheduleError(f"Knob {name} was {before} before, which is not one of {legal}.")
    return Knob(name, listed, chosen, isinstance(values, range), before, apart)


def _value(name: str, value: Any) -> Value:
    """A value as JSON and traces hold it: a str, or an int, NumPy's included."""
    if isinstance(value, str | bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise ScheduleError(
            f"Knob {name} cannot be {value!r}; a value is a whole number or a str."
        ) from None


def describe(config: Config) -> str:
    """Write a configuration on one line: ``tile_i=64 threads=256``."""
    return " ".join(f"{name}={value}" for name, value in config.items())
