"""What the rules for products share, and products that no other rule takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from tvm import s_tir, tirx

from ..analysis.contraction import Contraction
from ..errors import ScheduleError
from ..gpu.hardware import LAUNCH_LIMITS
from ..ir.evaluate import placeholder_extent
from ..ir.queries import loads_in, uses
from ..schedules._generic import inline, unbound
from ..tune.space.functions import blocks_of
from ..tune.space.off_tensor_cores import is_product
from .any_size.whole_tiles import WholeTiles, whole_tiles
from .rule import Scheduled


@dataclass(frozen=True)
class ModelProduct:
    """A product, whose sizes may be any."""

    what: Contraction
    has_any_size: bool


#: Schedules the product of a name and says how in a clause; None where another rule is for it.
Multiply = Callable[[s_tir.Schedule, str, ModelProduct], str | None]


class _Inlined(NamedTuple):
    func: tirx.PrimFunc
    schedule: s_tir.Schedule
    products: dict[str, Contraction]


_last: _Inlined | None = None


def inlined(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, dict[str, Contraction]]:
    """Make a schedule of a function as :func:`.inline` leaves it, and tell its products by block.

    The rules ask for the same function one after the other, so the last one is kept.
    """
    global _last
    if _last is None or not _last.func.same_as(func):
        schedule = s_tir.Schedule(func)
        _last = _Inlined(func, schedule, inline(schedule))
    return _last.schedule.copy(), dict(_last.products)


class Asked(NamedTuple):
    """The products of a function, and a schedule in which all else is inlined as far as it goes."""

    schedule: s_tir.Schedule
    products: dict[str, ModelProduct]
    whole: WholeTiles | None


def asked_products(
    func: tirx.PrimFunc, check: Callable[[tirx.PrimFunc], Any] | None = None
) -> Asked | None:
    """What is multiplied by :func:`scheduled_products`; None and raises as that does."""
    whole = whole_tiles(func)
    own = func if whole is None else whole.func
    if check is not None:
        check(own)
    sch, products = inlined(own)
    if not products or any(min(one.sizes[:2]) == 1 for one in products.values()):
        return None
    has_any_size = whole is not None and bool(whole.counts)
    models = {name: ModelProduct(what, has_any_size) for name, what in products.items()}
    return Asked(sch, models, whole)


def scheduled_products(
    func: tirx.PrimFunc, multiply: Multiply, check: Callable[[tirx.PrimFunc], Any] | None = None
) -> Scheduled | None:
    """Schedule the products of a function, and coalesce what else it has.

    None if it has no product, or one of a single row or column, which is a sum. ``check`` raises on
    what it is asked about before elementwise blocks are inlined.
    """
    asked = asked_products(func, check)
    if asked is None:
        return None
    sch, products, whole = asked
    told = []
    for name, product in products.items():
        how = multiply(sch, name, product)
        if how is None:
            return None
        told.append(f"{name} {how}")
    for name in sorted(unbound(sch)):
        told.append(f"{name} {sch.auto_coalesce(name).path}")
    return Scheduled(sch if whole is None else whole.schedule(sch), "; ".join(told))


def batch_of(product: Contraction) -> int:
    """How many products a batch has; ScheduleError if they are more than a grid may have."""
    batch = prod(product.extents[i] for i in product.batch)
    if batch > (most := LAUNCH_LIMITS["blockIdx.z"]):
        raise ScheduleError(
            f"A batch of {batch:,} products is larger than a grid may be, {most:,}."
        )
    return batch


def refuse_matrices(func: tirx.PrimFunc) -> None:
    """Raise ScheduleError for a product of several rows, columns and terms, also of windows.

    As a sum it would read each element of an operand once for each row, or column, of the other.
    """
    for _, block in blocks_of(func):
        if not is_product(block):
            continue
        m, n = _sides(block)
        if min(m, n) > 1 and _terms(block) > 1:
            raise ScheduleError(
                f"Block {block.name_hint} multiplies {m} rows by {n} columns; as a sum it would "
                "read its operands again and again."
            )


def _terms(block: Any) -> int:
    summed = (one for one in block.iter_vars if one.iter_type == tirx.IterVar.CommReduce)
    return prod(placeholder_extent(one.dom.extent) for one in summed)


def _sides(block: Any) -> list[int]:
    """How many results share an element of either factor, as if symbolic sizes were large."""
    store = block.body
    factors = [one for one in loads_in(store.value) if not one.source.same_as(store.buffer)]
    spatial = [one for one in block.iter_vars if one.iter_type == tirx.IterVar.DataPar]

    def without(factor: Any) -> int:
        apart = (one for one in spatial if not any(uses(at, one.var) for at in factor.indices))
        return prod(placeholder_extent(one.dom.extent) for one in apart)

    return [without(factor) for factor in reversed(factors)]
