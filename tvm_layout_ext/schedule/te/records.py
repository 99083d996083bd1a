"""What a user asked for, as plain data; :mod:`.materialise` applies it to TensorIR later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm.tirx import IterVar

if TYPE_CHECKING:
    from .factoring import Factored
    from .stage import Stage

__all__ = [
    "Attach",
    "CacheRead",
    "CacheWrite",
    "Fuse",
    "LoopMark",
    "Move",
    "RFactor",
    "Reorder",
    "Rewrite",
    "Split",
    "StorageAlign",
]


@dataclass(frozen=True)
class Split:
    """``parent`` becomes ``outer`` and ``inner``; one of ``factor`` and ``nparts`` is None."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: Any
    nparts: Any


@dataclass(frozen=True)
class Fuse:
    """Neighbouring ``axes`` become ``fused``; no axes at all give a loop of one iteration."""

    axes: tuple[IterVar, ...]
    fused: IterVar


@dataclass(frozen=True)
class Reorder:
    """``axes`` take, in this order, the places that they now have."""

    axes: tuple[IterVar, ...]


Move = Split | Fuse | Reorder


@dataclass(frozen=True)
class LoopMark:
    """What one loop becomes: ``kind`` is bind, vectorize, unroll, parallel or tensorize.

    ``value`` is the thread axis of ``bind`` and the intrinsic of ``tensorize``.
    """

    kind: str
    value: Any = None

    def __str__(self) -> str:
        return f"bound to {self.value.thread_tag}" if self.kind == "bind" else _DONE[self.kind]


_DONE = {
    "vectorize": "vectorized",
    "unroll": "unrolled",
    "parallel": "parallel",
    "tensorize": "tensorized",
}


@dataclass(frozen=True)
class Attach:
    """Compute a stage inside the loop ``axis`` of ``stage``."""

    stage: Stage
    axis: IterVar


@dataclass(frozen=True)
class StorageAlign:
    """Stride of buffer dimension ``dim`` is ``offset`` modulo ``factor`` elements."""

    dim: int
    factor: int
    offset: int


@dataclass(frozen=True)
class CacheRead:
    """``readers`` read output ``value_index`` of ``source`` through ``cache``."""

    source: Stage
    cache: Stage
    readers: tuple[Stage, ...]
    value_index: int


@dataclass(frozen=True)
class CacheWrite:
    """``cache`` computes what ``target`` then copies."""

    target: Stage
    cache: Stage


@dataclass(frozen=True)
class RFactor:
    """``partial`` keeps one result for each iteration of ``axis``; ``target`` combines them.

    ``root`` and ``moves`` are those of the target from before, ``parts`` the operations after.
    """

    target: Stage
    partial: Stage
    axis: IterVar
    factor_axis: int
    root: tuple[IterVar, ...]
    moves: tuple[Move, ...]
    parts: Factored


Rewrite = CacheRead | CacheWrite | RFactor
