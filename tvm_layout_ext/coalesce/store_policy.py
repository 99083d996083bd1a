"""Which stores ``auto_coalesce`` lets the L2 cache keep: those of permutations and of casts.

Of tensors of 16384 x 16384 elements and with cold caches an H200 (driver 580.159.04) went so from
4.12 to 4.26 TB/s for NCHW to NHWC of float16, from 4.07 to 4.17 back, from 4.15 to 4.20 for BSHD to
BHSD, from 4.00 to 4.07 for an int8 transpose, from 4.08 to 4.10 and 4.13 to 4.14 for float16 and
float32, and from 4.148 to 4.157 for a cast of float16 to float32. A plain copy went from 4.239 to
4.235: it is left alone, and so is what nobody measured. Loads lose by any hint (evict_first,
no_allocate, .cs: 2%), so they have none. Size makes no rule: what fits in L2 is kept there anyway.
"""

from __future__ import annotations

from typing import Any

from ..analysis.nest import Access, Loop, Nest
from ..gpu.hardware import MAX_ACCESS_BYTES
from ..ir.annotations import AUTO, EVICTION_POLICY
from ..ir.evaluate import placeholder_extent
from .mapping import own_order

_TEXT = ", stores evict_last in L2"


def keep_stores(sch: Any, block: Any, stored: Any, width: int) -> str:
    """Ask for full stores to be kept in L2, unless the user asked for something else.

    A policy that ``block`` has, as the user knows it, goes to ``stored``, which now stores
    ``width`` bytes at once to global memory. Returns what to add to the report.
    """
    asked = sch.get(block).annotations.get(EVICTION_POLICY, None)
    if asked is not None:
        sch.unannotate(block, EVICTION_POLICY)
        sch.annotate(stored, EVICTION_POLICY, str(asked))
        return ""
    if width != MAX_ACCESS_BYTES:
        return ""
    sch.annotate(stored, EVICTION_POLICY, AUTO)
    return _TEXT


def keep_gaining_stores(sch: Any, block: Any, nest: Nest, vector: int) -> str:
    """Keep the stores of a block in L2 where it permutes or widens what it reads; say so."""
    stores = [access for access in nest.of_scope("global") if access.kind == "store"]
    if not stores or not _gains(nest, stores[0]):
        return ""
    return keep_stores(sch, block, block, vector * stores[0].bytes)


def _gains(nest: Nest, store: Access) -> bool:
    return any(
        load.bytes < store.bytes or _is_permuted(nest, load, store) for load in nest.global_loads()
    )


def _is_permuted(nest: Nest, load: Access, store: Access) -> bool:
    """Whether a load runs through its loops in another order than the store does."""
    own, there = (
        [loop for loop in own_order(access, nest, nest.loops) if _moves(nest, load, loop)]
        for access in (load, store)
    )
    return any(a is not b for a, b in zip(own, there, strict=True))


def _moves(nest: Nest, access: Access, loop: Loop) -> bool:
    step = nest.step(access, loop)
    return loop.size != 1 and step is not None and placeholder_extent(step) != 0
