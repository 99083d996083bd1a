"""The rule for products that tensor cores would round: each thread multiplies and adds in full."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ..errors import ScheduleError
from ..schedules.matmul import NAMES, fitting, multiply, narrowed
from ..tune.space.functions import blocks_of
from ..tune.space.off_tensor_cores import is_product
from .products import ModelProduct, batch_of, scheduled_products
from .rule import Scheduled

#: Where rows, columns or terms are symbolic: :mod:`.any_size.whole_tiles` makes tiles of 64.
_OF_ANY_SIZE = dict(zip(NAMES, (64, 64, 8, 8, 16, 3, 1), strict=True))


def on_threads(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule products of ``float32``; None if none has several rows, columns, terms."""
    del target
    if not any(is_product(block) for _, block in blocks_of(func)):
        return None

    def multiplied(sch: s_tir.Schedule, name: str, product: ModelProduct) -> str | None:
        what = product.what
        if what.sizes[2] == 1:
            return None  # Its time is that of the stores; a tile would compute 16 terms.
        if (what.operand, what.sums) != ("float32", "float32"):
            raise ScheduleError(f"{name} multiplies {what.operand}, which tensor cores do.")
        batch = batch_of(what)
        if product.has_any_size:
            config = narrowed(_OF_ANY_SIZE, what.sizes[1])
        else:
            config = fitting(what.sizes, batch, what.b.k_major)
        multiply(sch, name, config)
        tile = f"{config['tile_m']}x{config['tile_n']}"
        return f"in float32, tiles of {tile}, {config['split_k']} slices of K"

    return scheduled_products(func, multiplied)
