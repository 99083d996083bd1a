"""Sums of windows that slide along rows of pixels: depthwise convolutions and pools, stored NHWC.

A thread has some neighbours of a row of the result, of two channels. For each row of the window it
loads the pixels that its neighbours read, each once, and multiplies and adds from registers: of a
window of 7 by 7 and 8 results it loads 14 pixels in place of 56. Lanes of a warp lie along
channels, whose runs are sectors; rows of a block share what they read in the first cache.

On an H200 depthwise convolutions of ConvNeXt and EfficientNet take 0.09 to 0.19 of cuDNN's time at
batch 16 and 64, and up to 0.75 at batch 1 (``h200_depthwise.json``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from math import ceil
from typing import Any

from tvm import s_tir, tirx

from tvm_layout_ext.analysis.contraction import window_of
from tvm_layout_ext.analysis.nest import element_bytes
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.ir.queries import loads_in
from tvm_layout_ext.tune.space.knobs import Config, knob

__all__ = ["KNOBS", "cut_of", "find_windows", "slide"]

#: Defaults are within 8% of the fastest of each of 15 shapes (geometric mean), 23% at worst.
KNOBS = (
    knob("columns", (1, 2, 4, 6, 7, 8), default=8),
    knob("channels", (1, 2, 4), default=2),
    knob("run_bytes", (32, 64, 128), default=64),
    knob("threads", (64, 128, 256), default=128),
)
#: Places of a row of a window that are unrolled at most, and blocks of threads along a row.
_WIDEST, _ACROSS = 32, 8


@dataclass(frozen=True)
class SlidingWindows:
    """What slides: a buffer, and positions of iterators of the block that adds up."""

    buffer: Any  #: What is read through windows
    column: int  #: Along a row of the result
    place: int  #: Along a row of the window
    channel: int  #: Neighbours in memory


def find_windows(block: Any) -> SlidingWindows | None:
    """Windows of a block, whose last index counts channels that are summed each for itself.

    None where it sums otherwise, or where neighbours share no pixel.
    """
    store = block.body
    if block.init is None or not isinstance(store, tirx.BufferStore):
        return None
    own = block.iter_vars
    at = [_position(own, index) for index in store.indices]
    if not at or -1 in at or own[at[-1]].iter_type != tirx.IterVar.DataPar:
        return None
    for load in loads_in(store.value):
        if load.source.same_as(store.buffer) or len(load.indices) < 2:
            continue
        if window_of(block, load.indices[-1]) != {at[-1]: 1}:
            continue
        found = _sliding(block, load.indices[-2])
        if found is not None:
            return SlidingWindows(load.source, *found, at[-1])
    return None


def _position(iter_vars: Any, index: Any) -> int:
    return next((i for i, one in enumerate(iter_vars) if one.var.same_as(index)), -1)


def _sliding(block: Any, index: Any) -> tuple[int, int] | None:
    """Iterators of the result and of the window of an index that slides."""
    own, terms = block.iter_vars, window_of(block, index)
    results = [i for i in terms if own[i].iter_type == tirx.IterVar.DataPar]
    places = [i for i in terms if own[i].iter_type == tirx.IterVar.CommReduce]
    if len(results) != 1 or len(places) != 1:
        return None
    wide = own[places[0]].dom.extent
    if not isinstance(wide, tirx.IntImm) or wide > _WIDEST:
        return None
    step, reach = terms[results[0]], terms[places[0]] * (int(wide) - 1)
    return (results[0], places[0]) if step <= reach else None


def slide(sch: s_tir.Schedule, name: str, config: Config) -> str:
    """Share windows out to threads, and say how; what follows element by element joins them.

    ScheduleError where the block has no windows, or where a row cannot be cut.
    """
    block = sch.get_sblock(name)
    found = find_windows(sch.get(block))
    if found is None:
        raise ScheduleError(f"Block {name} adds up no windows that slide along its columns.")
    node = sch.get(block)
    extent = {i: one.dom.extent for i, one in enumerate(node.iter_vars)}
    if not isinstance(extent[found.channel], tirx.IntImm):
        raise ScheduleError(
            f"Block {name} has {extent[found.channel]} channels; a number is legal."
        )
    columns = cut_of(extent[found.column], config)
    if columns == 1:
        raise ScheduleError(
            f"A thread has one of {extent[found.column]} results of a row of block {name}, which "
            "shares no pixel; two or more are legal."
        )
    copies, result = _operands(sch, block, found), _result(sch, block)
    kernel = _threads(sch, block, found, columns, config, _bytes_of(sch, block))
    for copy in copies:
        sch.compute_at(copy, kernel.row, preserve_unit_loops=True)
        _unrolled(sch, copy, kernel.outer + 1, kernel.channels)
    sch.set_scope(block, 0, "local")
    sch.reverse_compute_at(result, kernel.thread, preserve_unit_loops=True)
    _unrolled(sch, result, kernel.outer, kernel.channels)
    sch.decompose_reduction(block, kernel.row)
    return f"by windows: {columns} results of {kernel.channels} channels a thread"


@dataclass(frozen=True)
class _Kernel:
    thread: Any
    outer: int  #: Loops of blocks and of threads
    row: Any  #: The loop in which a row of a window is loaded
    channels: int  #: Of a thread


def _threads(
    sch: s_tir.Schedule,
    block: Any,
    found: SlidingWindows,
    columns: int,
    config: Config,
    element: int,
) -> _Kernel:
    """Cut and bind the loops of a block that reads elements of so many bytes."""
    own, loops = sch.get(block).iter_vars, sch.get_loops(block)
    cut = _cuts(own, found, columns, config, element)
    spatial = [i for i, one in enumerate(own) if one.iter_type == tirx.IterVar.DataPar]
    *outer, last = (loops[i] for i in spatial if i not in (found.column, found.channel))
    summed = [i for i in range(len(own)) if i not in (*spatial, found.place)]
    rows = [loops[i] for i in summed] or [sch.add_unit_loop(block)]
    x, across, each = sch.split(loops[found.column], [None, cut.across, columns])
    c, lane, vector = sch.split(loops[found.channel], [None, cut.lanes, cut.channels])
    y, down = sch.split(last, [None, cut.down])
    place = loops[found.place]
    if all(isinstance(own[i].dom.extent, tirx.IntImm) for i in spatial[1:]):
        blocks = [(*outer, y, x, c)]
    else:
        # A quotient by a symbolic size is 64 bits wide, and of some 40 instructions. Only
        # blockIdx.x may be over 65,535, as images times channels may.
        blocks = [(y,), (x,), (*outer, c)]
    sch.reorder(*chain(*blocks), down, across, lane, *rows, place, each, vector)
    for one, axis in zip(reversed(blocks), "xyz", strict=False):
        sch.bind(sch.fuse(*one), f"blockIdx.{axis}")
    thread = sch.fuse(down, across, lane)
    sch.bind(thread, "threadIdx.x")
    for loop in (place, each, vector):
        sch.unroll(loop)
    return _Kernel(thread, 1 + len(blocks), sch.fuse(*rows), cut.channels)


@dataclass(frozen=True)
class _Cuts:
    """Threads of a block down, across and along channels, and channels of a thread."""

    down: int
    across: int
    lanes: int
    channels: int


def _cuts(own: Any, found: SlidingWindows, columns: int, config: Config, element: int) -> _Cuts:
    count = int(own[found.channel].dom.extent)
    channels = _divisor(count, int(config["channels"]))
    run = int(config["run_bytes"]) // (channels * element)
    lanes = _divisor(count // channels, max(1, run))
    left = max(1, int(config["threads"]) // lanes)
    across = _divisor(ceil(_factor(own[found.column].dom.extent) / columns), min(_ACROSS, left))
    kept = (found.column, found.channel)
    spatial = [
        one.dom.extent
        for i, one in enumerate(own)
        if i not in kept and one.iter_type == tirx.IterVar.DataPar
    ]
    # A block whose last rows are idle is guarded: one shape took 4.7 times as long.
    down = _divisor(_factor(spatial[-1]), max(1, left // across))
    return _Cuts(down, across, lanes, channels)


def _factor(extent: Any) -> int:
    """A number of which an extent is known to be a multiple: itself, or what multiplies it."""
    if isinstance(extent, tirx.Mul):
        extent = extent.b
    return int(extent) if isinstance(extent, tirx.IntImm) else 1


def cut_of(columns: Any, config: Config) -> int:
    """How many neighbours a thread has of a row: few strips, of which the last is nearly full.

    Of a symbolic number of columns a thread has as many as it may.

    A strip takes the time of its results, and about that of two more for pixels of its neighbours.

    Examples
    --------
    >>> [cut_of(n, {"columns": 8}) for n in (56, 28, 17, 7, 1)]
    [8, 7, 6, 7, 1]
    """
    if not isinstance(columns, int | tirx.IntImm):
        return int(config["columns"])
    columns = int(columns)
    most = min(columns, int(config["columns"]))
    return min(range(most, 0, -1), key=lambda one: ceil(columns / one) * (one + 2))


def _divisor(count: int, most: int) -> int:
    """The largest divisor of a number, up to another one."""
    return next(one for one in range(max(1, min(count, most)), 0, -1) if count % one == 0)


def _operands(sch: s_tir.Schedule, block: Any, found: SlidingWindows) -> list[Any]:
    """Blocks that load what a block reads into registers; a pad or cast loads itself."""
    copies = []
    for at, region in enumerate(sch.get(block).reads):
        if region.source.same_as(sch.get(block).writes[0].source):
            continue
        made = [one for one in sch.get_producers(block) if _writes(sch, one, region.source)]
        if made and region.source.same_as(found.buffer):
            # A cast before a pad is one of what the pad loads.
            for one in sch.get_producers(made[0]):
                sch.compute_inline(one)
            sch.set_scope(made[0], 0, "local")
            copies.append(made[0])
        else:
            copies.append(sch.cache_read(block, at, "local"))
    return copies


def _bytes_of(sch: s_tir.Schedule, block: Any) -> int:
    """Bytes of an element in memory of what is copied for windows, before it is padded or cast."""
    found = find_windows(sch.get(block))
    copies = [
        one
        for one in sch.get_producers(block)
        if found is not None and _writes(sch, one, found.buffer)
    ]
    return min(element_bytes(region.source) for one in copies for region in sch.get(one).reads)


def _writes(sch: s_tir.Schedule, block: Any, buffer: Any) -> bool:
    return any(region.source.same_as(buffer) for region in sch.get(block).writes)


def _result(sch: s_tir.Schedule, block: Any) -> Any:
    """The block that stores results: what is computed from sums in one, or a copy of them."""
    later: list[Any] = []
    for one in sch.get_child_blocks(sch.get_sblock("root")):
        if later or sch.get(one).same_as(sch.get(block)):
            later.append(one)
    _, *between = later
    if not between:
        return sch.cache_write(block, 0, "local")
    *between, last = between
    for one in between:
        sch.compute_inline(one)
    return last


def _unrolled(sch: s_tir.Schedule, block: Any, outer: int, channels: int) -> None:
    """Unroll the loops of a copy inside of others; its last one is a vector of channels."""
    *loops, last = sch.get_loops(block)[outer:]
    for loop in loops:
        sch.unroll(loop)
    if channels > 1 and int(sch.get(last).extent) == channels:
        sch.vectorize(last)
    else:
        sch.unroll(last)
