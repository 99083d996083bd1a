"""Any permutation of dims; as an operator (B, S, H, D) to (B, H, S, D), which attention needs.

Where the innermost dim stays innermost, whole rows move in vectors. Elsewhere a swizzled tile in
shared memory turns them round; see ``nchw_to_nhwc``. The transpose of a matrix is the order (1, 0);
``transpose`` is the same by hand, for the tuner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.schedules._coalesced import memory_bound
from tvm_layout_ext.tune.space.operator import Operator


def permuted(shape: Sequence[int], dtype: str, order: Sequence[int]) -> list[Any]:
    """``B = A.transpose(order)``: dim d of B is dim ``order[d]`` of A."""
    A = te.placeholder(tuple(shape), dtype, name="A")
    where = [list(order).index(dim) for dim in range(len(order))]
    B = te.compute(
        tuple(shape[dim] for dim in order),
        lambda *index: A[tuple(index[place] for place in where)],
        name="B",
    )
    return [A, B]


def permutation(name: str, dims: tuple[str, ...], order: Sequence[int]) -> Operator:
    """Make an operator of one permutation."""
    return memory_bound(
        name,
        dims,
        lambda shape, dtype: permuted(shape, dtype, order),
        lambda a: np.ascontiguousarray(a.transpose(order)),
    )


OPERATOR = permutation("permute", ("B", "S", "H", "D"), (0, 2, 1, 3))
