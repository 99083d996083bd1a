"""Operators made from a function, as the tuner knows them; the schedules are in ``schedules/``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from .functions import bare
from .knobs import Knob
from .operator import Operator

#: What makes an operator of a function; ``schedules/`` names it.
_MAKERS: list[Callable[..., Operator]] = []


def register_maker(make: Callable[..., Operator]) -> None:
    """Say what makes an operator of a function from now on."""
    _MAKERS[:] = [make]


def digest_of(func: tirx.PrimFunc) -> str:
    """Eight hex digits that tell functions apart, in every process; attributes do not count."""
    return hashlib.sha256(bare(func).script().encode()).hexdigest()[:8]


def operator_of(
    func: Any,
    schedule: Callable[..., Any] | None = None,
    knobs: Sequence[Knob] = (),
    **options: Any,
) -> Operator:
    """Make an operator of a function: :func:`._generic.operator_of`."""
    return _MAKERS[0](func, schedule, knobs, **options)
