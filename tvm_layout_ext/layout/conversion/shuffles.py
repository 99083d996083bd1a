"""Bring elements to other lanes of their warps, one exchange a register."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...gpu.hardware import WARP_SIZE
from ..f2 import Columns, combine, complement, rank
from ..linear import LinearLayout, log2

_LANE_BITS = log2(WARP_SIZE)


@dataclass(frozen=True)
class ShufflePlan:
    """As many exchanges as the result has registers; in each, every lane sends one register.

    ``send`` leads from (exchange, lane) to the register sent, ``source`` to the lane from which it
    takes, ``place`` from (register of the result, lane) to the exchange that brought it. A select
    does where that depends on one bit of the lane; registers are never indexed by it.
    """

    send: LinearLayout
    source: LinearLayout
    place: LinearLayout


def plan_shuffles(src: LinearLayout, dst: LinearLayout) -> ShufflePlan | None:
    """Plan the exchanges for a conversion inside warps.

    Suppose register r of lane l wants register ``A r + B l`` of lane ``D r + E l``. Let exchange k
    serve register ``k + X l``. Lane l then takes from lane ``D k + Z l`` with ``Z = D X + E``, and
    wants its register ``A k + (A X + B) l``. If ``Y Z = A X + B`` for some Y, the sender knows the
    register by itself: lane s sends ``(A + Y D) k + Y s``. So we look for an X with such a Y, both
    of rank 0 or 1, which means at most one select on each side.

    The layouts have registers without copies. None if elements cross warps, or one select on each
    side is not enough.
    """
    moves = dst.invert_and_compose(src)
    left = moves.without_identity(("block", "warp"))
    if {"block", "warp"} & {*left.in_dims, *left.out_names}:
        return None
    maps = _Maps(moves, src)
    return next((plan for x in maps.candidates() if (plan := maps.plan(x)) is not None), None)


class _Maps:
    """The matrices A, B, D, E as lists of columns, each packed into an integer."""

    def __init__(self, moves: LinearLayout, src: LinearLayout) -> None:
        def part(dim: str, out: str) -> list[int]:
            return moves.sublayout([dim], [out]).flat_basis(dim)

        self.a, self.b = part("register", "register"), part("lane", "register")
        self.d, self.e = part("register", "lane"), part("lane", "lane")
        copies = [1 << bit for bit, vector in enumerate(src.flat_basis("lane")) if not vector]
        self.e = _kept_apart(self.e, copies)
        self.registers = len(src.basis("register"))

    def candidates(self) -> Iterator[list[int]]:
        """Matrices X to try: none, then those with a single entry."""
        yield [0] * _LANE_BITS
        for bit in range(_LANE_BITS):
            for register in range(len(self.a)):
                yield [1 << register if i == bit else 0 for i in range(_LANE_BITS)]

    def plan(self, x: Sequence[int]) -> ShufflePlan | None:
        """Make the plan for one X, if there is one."""
        z = [combine(self.d, x_l) ^ e_l for x_l, e_l in zip(x, self.e, strict=True)]
        wanted = [combine(self.a, x_l) ^ b_l for x_l, b_l in zip(x, self.b, strict=True)]
        y = _left_quotient(wanted, z)
        if y is None or rank(y) > 1:
            return None
        sent = [a_k ^ combine(y, d_k) for a_k, d_k in zip(self.a, self.d, strict=True)]
        units = [1 << k for k in range(len(self.a))]
        return ShufflePlan(
            _map(sent, y, 1 << self.registers),
            _map(self.d, z, WARP_SIZE),
            _map(units, x, 1 << len(self.a)),
        )


def _kept_apart(sources: Sequence[int], copies: Sequence[int]) -> list[int]:
    """Let lanes that take from the same lane take from copies of it, their own if they may."""
    result = list(sources)
    redundant = [bit for bit in range(_LANE_BITS) if Columns(sources).free >> bit & 1]
    for own in (True, False):
        for bit in redundant:
            for copy in copies:
                moved = result[bit] ^ copy
                if (copy == 1 << bit) >= own and not Columns(result).spans(moved):
                    result[bit] = moved
                    break
    return result


def _left_quotient(product: Sequence[int], factor: Sequence[int]) -> list[int] | None:
    """Find Y with ``Y factor = product``, as columns; zero outside the image of ``factor``."""
    columns = Columns(factor)
    for bit, column in enumerate(factor):
        solution = columns.solve(column)
        if solution is None or combine(product, solution) != product[bit]:
            return None
    rest = complement(factor, _LANE_BITS)
    whole = Columns([*factor, *rest])
    images = [*product, *(0 for _ in rest)]
    return [combine(images, whole.solve(1 << bit) or 0) for bit in range(_LANE_BITS)]


def _map(registers: Sequence[int], lanes: Sequence[int], size: int) -> LinearLayout:
    bases = {"register": [(v,) for v in registers], "lane": [(v,) for v in lanes]}
    return LinearLayout.from_bases(bases, {"index": size}, surjective=False)
