"""``sch.auto_coalesce``: let neighbouring threads touch neighbouring memory, in wide accesses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import s_tir

from ... import decisions
from ..._compat import quick_type_checks
from ...coalesce.request import NAME
from ...errors import ScheduleError
from ...gpu.hardware import BANK_BYTES, MAX_ACCESS_BYTES
from ...ir.annotations import COALESCE, SWIZZLE
from ...transform.auto_coalesce import Outcome, Request, coalesce
from ..copy_conflicts import TileConflicts, UncountedTile, tile_conflicts

__all__ = ["auto_coalesce"]


def auto_coalesce(
    sch: Any,
    block: Any,
    *,
    num_threads: int | None = None,
    vector_bytes: int = MAX_ACCESS_BYTES,
    stage: str = "auto",
) -> Outcome:
    """Map the loops of a block to threads so that its requests to memory are full and wide.

    Called ``coalesce`` in Triton, where it chooses a layout. Only TVM's traced primitives are used,
    so that the schedule replays from its trace.

    ::

        # before                          # after
        for i in range(64):               for bx in T.thread_binding(2, "blockIdx.x"):
            for j in range(32):               for tx in T.thread_binding(256, "threadIdx.x"):
                B[i, j] = A[i, j]                 for v in T.vectorized(4):
                                                      B[...] = A[...]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; this function is also its method ``auto_coalesce``.
    block : SBlockRV or str
        A block whose loops are not bound; or a copy inside a kernel, which is then spread over the
        threads that the kernel has. Its body is stores and atomics on buffer elements
        (``atomicAdd`` and its like, ``T.cuda.atomic_add``, ``T.cuda.atomic_cas``, of which a lane
        takes one element at a time), also under ``if`` and with ``let`` (``T.bind``) statements; of
        a reduction, one store a result and ``let`` statements. What is to be staged stores one
        element an iteration, in each branch where there are some.
    num_threads : int, optional
        Threads of a block, a multiple of 32 up to 1,024; a staged block takes the power of two
        below that its tile can occupy.
    vector_bytes : int
        Bytes of the widest access of a thread: 1, 2, 4, 8 or 16.
    stage : str
        ``auto`` stages loads that want another order than the store through shared memory,
        ``shared`` every load, ``none`` no load.

    Returns
    -------
    Outcome
        What was done, with the sectors of each access before and after.

    Notes
    -----
    Of the possible mappings the one with the fewest sectors in all is taken, counted at sampled
    warps and with whole vectors; a vector that a condition cuts (a ragged end, the edge of a pad)
    runs element by element. A condition on indices counts where it holds.

    Shared tiles are laid out for whole vectors. Where a tile's end cuts some, and their elements
    meet in banks as they are put down one by one, ``text`` says how often in the launch, if all
    sizes are known.

    Loops that do not merge (rows of a slice, or with a stride) are fused, so that no lane idles, or
    spread over lanes and warps dimension by dimension as Triton's blocked layouts are, so that no
    row is cut between warps; the fewer sectors decide. What merges is one dimension, for which
    both are the same.

    A copy inside a kernel is spread over the kernel's threads; the layout of its shared tile is not
    its to choose, for others read the tile, and their loops may not be bound yet. ``swizzle(tile)``
    chooses it when the program is lowered, by all accesses. Of a tile that others read by columns
    it meets no bank twice if the copy is ``vector_bytes=4`` wide: wider vectors stay together.
    Where accesses of the tile meet banks again as it lies, ``text`` says how often in the whole
    launch, and how often once ``swizzle`` has laid it out; the program is lowered to count that.
    Where that cannot be counted, as of a tile whose size TVM does not bound, ``text`` says why.
    Of a reduction inside a kernel each thread sums results of its own. Registers (``local``) that
    are allotted around the loops of the threads are not filled by several: that is refused.

    Of a buffer that is read at several places (``a[i, j] + a[j, i]``, ``a[j, i] + a[j + 1, i]``)
    each read that disagrees with the store has a tile of its own, and those that agree have none.
    TVM's caches take the place of all reads of a buffer, and no traced primitive parts them. So the
    block is only marked then (``text`` begins with "when the program is lowered"), and pass
    ``AutoCoalesce`` parts the reads and maps it: its loops are as they were until then.

    A block that updates a buffer in place (``a[i] = a[i] * 2 + b[i]``) is only marked likewise, for
    TensorIR binds no loop of it. Each iteration must have an element of its own: the block reads of
    the buffer what it writes there, and no two iterations write at one place.

    A load that only a condition keeps inside of its buffer (the rows of a pad) has no tile, and nor
    has one in a branch that is chosen by what was loaded.

    What is under an ``if`` counts where its condition holds, and in as many of the iterations; a
    condition on what was loaded is taken to hold in all lanes, of either branch. Vectors are no
    longer than lets each condition hold for all of their elements or for none.

    A reduction to several results (``argmax``) loads each of its operands in vectors. Along rows,
    threads combine what they found, if TVM knows the reducer (as those of ``topi``), else a thread
    does each result by itself, as of any reduction with ``let`` statements that is to one result;
    there are no slabs and no partial results in shared memory. Of elements that compare equal,
    another one may win than in the order of the loop, unless the reducer decides.

    One loop that stands behind several iterators, as ``fuse`` leaves it, is mapped as it is, unless
    a load is to be staged: then the block is only marked, as above, and the pass gives it a loop
    for each iterator, where these are the digits of the loop's number. Of a reduction such a loop
    may stand behind results alone, and without a guard.

    Loads and stores of a direct mapping are equally wide. Where the rows of a copy, cast, pad or
    slice begin at another place inside a vector than those that they come from (a pad or a slice by
    an odd number), both still take whole vectors if ``path`` is ``shifted``: a lane loads the
    aligned vector in which its own begins, gets the next from the lane to its right by a shuffle,
    and shifts its elements out of the two; pass ``ShiftVectors`` writes that. A warp so requests
    each vector of the source once, and one more for its last lane. Shapes must be known and the
    buffers parameters of the function, and rows long enough to gain; else elements go one by one,
    and ``text`` says why. Rows of 8-byte elements that are all from the source gain no sectors.

    Full stores, of 16 bytes a lane, of permutations and of casts to wider types have the L2
    eviction policy ``evict_last`` where the target has one (``sm_80``); ``text`` says so. On an
    H200 that is 0.2 to 3% faster (:mod:`.store_policy` has the numbers),
    and what was written is still in L2 for the next kernel. ``eviction_policy`` called before on
    the block stands; with an empty string it leaves stores plain.

    Where a buffer's alignment, strides or element offset do not promise whole vectors, accesses are
    narrower; offsets are as aligned as their ``offset_factor`` says, strides as what multiplies
    them. Shapes and strides whose last element 32-bit indices cannot reach must be ``int64``.

    Raises
    ------
    ScheduleError
        If an argument is not legal or the block cannot be mapped; the program is unchanged.
    """
    request = Request(num_threads, vector_bytes, stage)
    found = _find(sch, block)
    before = sch.copy()
    with quick_type_checks():
        outcome = coalesce(sch, found, request)
    notes = sch.get(found).annotations
    if outcome.path != "copy" or SWIZZLE in notes or COALESCE in notes:
        return outcome
    left = _remarks(before, sch, found, request)
    if not left:
        return outcome
    decisions.note(NAME, str(sch.get(found).name_hint), "; ".join(left))
    return replace(outcome, text=f"{outcome.text.rstrip('.')}; {'; '.join(left)}.")


def _remarks(before: Any, sch: Any, block: Any, request: Request) -> list[str]:
    """Tell of each tile of a copy what bank conflicts it has, if any, or why nobody knows."""
    said: list[str] = []
    for one in tile_conflicts(sch, block):
        if isinstance(one, UncountedTile):
            said.append(str(one))
        elif one.now:
            said.append(_remark(before, block, one, request))
    return said


def _remark(before: Any, block: Any, left: TileConflicts, request: Request) -> str:
    """Tell the bank conflicts that a shared-out copy leaves, and what would spare them."""
    if left.swizzled == 0 or request.vector_bytes <= BANK_BYTES:
        return str(left)
    narrow = before.copy()
    with decisions.collect():
        coalesce(narrow, block, replace(request, vector_bytes=BANK_BYTES))
    tiles = [one for one in tile_conflicts(narrow, block) if one.buffer == left.buffer]
    words = [one for one in tiles if isinstance(one, TileConflicts)]
    if not words or words[0].swizzled >= left.swizzled:
        return str(left)
    spared = "none" if words[0].swizzled == 0 else "fewer"
    return f"{left}, and {spared} where the copy has vector_bytes={BANK_BYTES}, too"


def _find(sch: Any, block: Any) -> Any:
    if isinstance(block, str):
        try:
            return sch.get_sblock(block)
        except RuntimeError as error:
            raise ScheduleError(f"auto_coalesce finds no single block named {block!r}.") from error
    if not isinstance(block, s_tir.schedule.SBlockRV):
        raise ScheduleError(f"auto_coalesce needs a block or its name, not {block!r}.")
    return block
