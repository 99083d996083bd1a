"""Choose the numbers of a kernel of attention by a model of its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from ...analysis.attention import Attention
from ...gpu.hardware import MULTIPROCESSORS, Architecture
from .plan import ALIGNED, PANEL, PER_ROW, STEP, AttentionPlan, checked, why_no_room
from .turns import as_blocks_end, order_of

#: Keys of the smallest tile that is chosen.
_FEWEST_KEYS = 64
#: Bytes in a microsecond of what parts leave and what reads it; microseconds of a second kernel.
_BYTES, _SECOND_KERNEL = 3.0e6, 3.0
#: Part of the whole time that sharing has to gain. Every loop then ends at a number that only the
#: block knows: 8x32x4096x128, which gains nothing else, takes 2.8% longer (float16, H100).
_WORTH = 0.04
#: Rows up to which parts have one tile: 16 heads on 8 by 1024 keys take 5.8 us, 6.4 by two (H200).
_STEP_ROWS = 8
#: Stages of K and V where they fit: 16x12x1024x64 takes 129 us by three, 135 by two (H100).
_STAGES = 3


def fit_attention(
    attention: Attention,
    gpu: Architecture,
    *,
    keys: int = 0,
    stages: int = 0,
    consumers: int = 0,
    most_rows: int = 0,
) -> AttentionPlan:
    """Take the tiles that registers and shared memory have room for; 0 leaves a number open.

    A symbolic number of rows is promised to be at most ``most_rows``, if that is not 0.

    Raises ScheduleError if the kernel is not legal.
    """
    _, count, depth, width = attention.sizes
    scores = attention.scores
    biased, curved = scores.bias is not None, scores.curve is not None
    known = count if isinstance(count, int) else None
    keys = keys or keys_of(depth, width, known, biased, curved)
    # Of three warpgroups a thread has no registers for what becomes of scores, too.
    fits = max(depth, width) <= PANEL and not biased and not curved
    begun = AttentionPlan(attention, keys, stages or 2, 1, most_rows=most_rows)
    usual = [n for n in PER_ROW if n < 3 or fits]
    plans = [
        found
        for n in ([consumers] if consumers else usual)
        for found in _spread(replace(begun, consumers=n), gpu)
    ]
    # Where none is legal, what is wrong with the fastest is told.
    legal = [one for one in plans if why_no_room(one[1], gpu) is None]
    _, best = min(legal or plans, key=lambda one: one[0])
    deeper = replace(best, stages=_STAGES)
    # Nothing hides the way of the tiles to one warpgroup but more of them; blocks in turns begin a
    # tile with what came under the one before.
    waits = best.consumers == 1 or best.resident
    if not stages and waits and deeper.shared_bytes + ALIGNED <= gpu.shared_per_block:
        best = deeper
    return checked(best, gpu)


def keys_of(
    depth: int, width: int, count: int | None = None, biased: bool = False, curved: bool = False
) -> int:
    """Keys of a tile, where nobody asks for others: ``count`` of them fill as many tiles evenly.

    Beside tiles of 96 keys of 192 columns there is no room for one of what is added to scores, and
    beside 64 of 256 columns ptxas spills 14 registers for a cap.
    """
    most = 128 if max(depth, width) <= 128 else 96 if max(depth, width) <= 192 else 64
    most = 64 if biased and most == 96 else most
    most = 48 if curved and max(depth, width) > 192 else most
    if count is None:
        return most
    even = ceil(count / ceil(count / most))
    return min(most, max(_FEWEST_KEYS, ceil(even / STEP) * STEP))


def _spread(plan: AttentionPlan, gpu: Architecture) -> Iterator[tuple[float, AttentionPlan]]:
    """Ways to spread the tiles over blocks, each with its modelled microseconds."""
    tiles = plan.usual_heads * plan.modelled_tiles
    alone = as_blocks_end(plan.in_turns, plan.most)
    splits, whole = _shared(plan)
    yield alone, plan if whole else replace(plan, splits=splits)
    if whole:
        left = tiles - whole
        gain = _last_round(plan, left, 1) - _last_round(plan, left, splits)
        yield (alone - gain) * (1 + _WORTH), replace(plan, splits=splits, whole=whole)
    turned = replace(plan, resident=MULTIPROCESSORS)
    fits = turned.shared_bytes <= gpu.shared_per_block
    # One warpgroup leaves room for several blocks, which hide each other's ends.
    if plan.consumers > 1 and tiles > MULTIPROCESSORS and fits:
        yield order_of(turned.in_turns, turned.most).time, turned


def _shared(plan: AttentionPlan) -> tuple[int, int]:
    """Blocks that share the keys of a tile, and how many tiles before those have a block each.

    They may where tiles leave most multiprocessors idle: all of them by one warpgroup, or those of
    the last round. Each block has at least two tiles of keys, or one where rows are as few as in a
    step of decoding, and all but the last as many as one another.
    """
    bounds = plan.bounds
    # Of an unknown number of keys a block might have none.
    ends = [plan.attention.sizes[1], *(one.offset for one in bounds)]
    known = all(isinstance(one, int) for one in ends)
    if not known or any(one.slope or not one.is_upper for one in bounds):
        return 1, 0
    tiles, count = plan.usual_heads * plan.modelled_tiles, ceil(plan.attention.sizes[1] / plan.keys)
    count = max(1, min([count, *(one.offset // plan.keys + 1 for one in bounds)]))
    left = tiles if tiles <= MULTIPROCESSORS else tiles % MULTIPROCESSORS
    most = max(1, count // 2)
    if plan.consumers == 1 and left == tiles:
        is_step = most > 1 and plan.modelled_rows <= _STEP_ROWS
        most = max(1, min(MULTIPROCESSORS // left, count if is_step else most))
        return ceil(count / ceil(count / most)), 0
    if left in (0, tiles) or not isinstance(plan.parts, int):
        return 1, 0
    ways = sorted({ceil(count / ceil(count / n)) for n in range(1, most + 1)})
    best = min(ways, key=lambda n: _last_round(plan, left, n))
    return (best, tiles - left) if best > 1 else (1, 0)


def _last_round(plan: AttentionPlan, left: int, splits: int) -> float:
    """Microseconds of the tiles that are left for the last round, by blocks that share keys."""
    _, keys, _, width = plan.attention.sizes
    alone = plan.step_time * keys / plan.keys
    if splits == 1:
        return alone
    moved = 2 * left * splits * plan.rows * width * 4
    rounds = ceil(left * splits / MULTIPROCESSORS) / splits
    return alone * rounds + _SECOND_KERNEL + moved / _BYTES
