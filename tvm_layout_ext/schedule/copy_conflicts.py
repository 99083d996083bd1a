"""How often the accesses of a shared tile meet a bank again, as a schedule stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from tvm import tirx

from .. import decisions, pipeline
from .._compat import pass_name
from ..analysis.accesses import loops_in_use, read_shared_accesses
from ..analysis.bank_conflict import placement_of
from ..analysis.bank_requests import Requests, read_requests
from ..analysis.choose_shared import Choice, choose, cost
from ..analysis.nest import element_bytes
from ..errors import LayoutExtError
from ..ir.block_bindings import holder_of
from ..ir.pointers import is_unbounded, shape_of

__all__ = ["TileConflicts", "UncountedTile", "tile_conflicts"]

_SWIZZLE_PASS = "tvm_layout_ext.SwizzleSharedMemory"


@dataclass(frozen=True)
class TileConflicts:
    """Wavefronts over the least possible in which a kernel accesses a shared tile.

    Attributes
    ----------
    buffer : str
        The tile.
    now : int
        As it lies.
    swizzled : int
        As ``sch.swizzle(block)`` would lay it out.
    mode : str
        What ``sch.swizzle`` would choose.
    least : int
        Wavefronts without any conflict.
    is_exact : bool
        All requests of the launch were counted; else a sample of them, or of some size of it.
    """

    buffer: str
    now: int
    swizzled: int
    mode: str
    least: int
    is_exact: bool

    def __str__(self) -> str:
        if self.is_exact:
            count = f"meet banks again {self.now:,} times"
            fewer = f"{self.swizzled:,} times"
        else:
            count = f"take about {self._times(self.now)} times the wavefronts that they need"
            fewer = f"about {self._times(self.swizzled)} times"
        better = f"{fewer} with sch.swizzle, which chooses {self.mode}"
        if self.swizzled >= self.now:
            better = "and sch.swizzle finds nothing better"
        return f"accesses of {self.buffer} {count}, {better}"

    def _times(self, over: int) -> str:
        return f"{1 + over / max(1, self.least):.3g}"


@dataclass(frozen=True)
class UncountedTile:
    """A shared tile whose bank conflicts cannot be counted.

    Attributes
    ----------
    buffer : str
        The tile.
    why : str
        What is not known of it.
    """

    buffer: str
    why: str

    def __str__(self) -> str:
        return f"bank conflicts of {self.buffer} are not counted: {self.why}"


def tile_conflicts(sch: Any, block: Any) -> list[TileConflicts | UncountedTile]:
    """Count the bank conflicts of the shared tiles that a block reads or writes.

    All accesses of a tile are counted, those of other blocks, too, as the program would be lowered
    now.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Left as it is.
    block : SBlockRV

    Returns
    -------
    list of TileConflicts or UncountedTile
        Empty where the program cannot be lowered yet.
    """
    site = sch.get(block)
    names = [str(r.source.name) for r in [*site.reads, *site.writes] if _is_shared(r.source)]
    func = _lowered(sch, site) if names else None
    if func is None:
        return []
    return [_counted(name, _requests(func, name)) for name in dict.fromkeys(names)]


def _is_shared(buffer: Any) -> bool:
    return str(buffer.scope()).startswith("shared")


def _lowered(sch: Any, site: Any) -> Any:
    """Lower the function of a block as far as shared tiles are laid out."""
    holder = holder_of(sch.mod, site)
    if holder is None:
        return None
    passes = pipeline.lowering_passes()[0]
    end = next(i for i, one in enumerate(passes) if pass_name(one) == _SWIZZLE_PASS)
    # What passes decide on this way nobody asked for.
    with decisions.collect():
        try:
            mod = tvm.ir.transform.Sequential(passes[:end])(sch.mod)
        except (RuntimeError, ValueError, TypeError, LayoutExtError):
            return None
    return next((f for gv, f in mod.functions.items() if gv.name_hint == holder[0]), None)


def _requests(func: Any, name: str) -> list[Requests]:
    """Requests of all accesses of a tile; none where some are not known."""
    accesses = [one for one in read_shared_accesses(func) if str(one.buffer.name) == name]
    if any(not one.buffer.same_as(accesses[0].buffer) for one in accesses):
        return []
    found = [read_requests(access) for access in accesses]
    known = [_of_launch(requests) for requests in found if requests is not None]
    return known if len(known) == len(found) else []


def _of_launch(requests: Requests) -> Requests:
    """Count those of all blocks, also where they are alike."""
    used = loops_in_use(requests.access)
    same = [
        loop.extent
        for loop in requests.access.context.loops
        if loop.kind.startswith("blockIdx") and not any(loop is other for other in used)
    ]
    known = all(isinstance(extent, int | tirx.IntImm) for extent in same)
    times = prod(int(extent) for extent in same) if known else 1
    return replace(requests, total=requests.total * times, is_exact=requests.is_exact and known)


def _counted(name: str, requests: Sequence[Requests]) -> TileConflicts | UncountedTile:
    if not requests:
        return UncountedTile(name, "not all of its indices are known before the kernel runs")
    buffer = requests[0].access.buffer
    shape, now = shape_of(buffer), placement_of(buffer)
    if shape is None:
        return UncountedTile(name, _unbounded(buffer))
    if now is None:
        extents = ", ".join(str(extent) for extent in buffer.shape)
        return UncountedTile(name, f"its extents ({extents}) depend on a symbolic size")
    plain = cost(Choice("none", now), requests)
    try:
        best = choose(shape, 8 * element_bytes(buffer), requests)
    except LayoutExtError:
        best = plain
    return TileConflicts(
        name,
        plain.total - plain.least,
        best.total - best.least,
        best.name,
        plain.least,
        all(one.is_exact for one in requests),
    )


def _unbounded(buffer: Any) -> str:
    """Say which extents have no bound."""
    dims = [str(dim) for dim, extent in enumerate(buffer.shape) if is_unbounded(extent)]
    return (
        f"TVM knows no bound of its extent in dim {' and '.join(dims)}, which depends on a "
        "symbolic size, and allots it as if it had no end"
    )
