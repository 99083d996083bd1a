"""Functions that were lowered to see whether they can be, for whoever builds them next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tvm
from tvm import tirx

from .. import decisions
from ..decisions import Decision


class Made(NamedTuple):
    """A function and what it became, under which options, and what passes told."""

    source: tirx.PrimFunc
    lowered: tirx.PrimFunc
    context: tvm.transform.PassContext
    told: tuple[Decision, ...]


#: The latest, by the handles of their bodies; each is given once.
_MADE: dict[int, Made] = {}
#: More than any model has; a denoiser has some 200 functions, of which rules lower some twice.
_MOST = 512


def keep(source: tirx.PrimFunc, lowered: tirx.PrimFunc, told: Sequence[Decision]) -> None:
    """Keep what a function became in the first half of the pipeline, and what its passes told."""
    key = source.body.__chandle__()
    _MADE.pop(key, None)
    _MADE[key] = Made(source, lowered, tvm.transform.PassContext.current(), tuple(told))
    if len(_MADE) > _MOST:
        del _MADE[next(iter(_MADE))]


def made_of(func: tirx.PrimFunc) -> Made | None:
    """What is kept of a function."""
    return _MADE.get(func.body.__chandle__())


def take(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """What a function that has its target became under these options; None if nobody lowered it."""
    one = made_of(func)
    if one is None or not _is(one, func):
        return None
    del _MADE[func.body.__chandle__()]
    decisions.repeat(one.told)
    made, target = one.lowered, one.lowered.attrs["target"]
    if func.attrs["target"].host is not None:
        target = target.with_host(func.attrs["target"].host)
    for key, value in {**dict(func.attrs), "target": target}.items():
        made = made.with_attr(key, value)
    return made


def _is(one: Made, func: tirx.PrimFunc) -> bool:
    """Whether a function is the same but for its attributes, and lowered as it would be now."""
    source, target = one.source, func.attrs.get("target", None)
    return (
        source.body.same_as(func.body)
        and len(source.params) == len(func.params)
        and all(a.same_as(b) for a, b in zip(source.params, func.params, strict=True))
        and target is not None
        and target.attrs.get("arch", "") == one.lowered.attrs["target"].attrs.get("arch", "")
        and one.context.same_as(tvm.transform.PassContext.current())
    )
