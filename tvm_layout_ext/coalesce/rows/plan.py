"""How many threads share a row, how many rows a block has, and where threads keep their part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import gcd, prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...analysis.nest import element_bytes
from ...errors import ScheduleError
from ...gpu.hardware import (
    MAX_ACCESS_BYTES,
    MULTIPROCESSORS,
    WARP_SIZE,
    Architecture,
    blocks_per_sm,
)
from ...ir.pointers import strides_of
from ...ir.queries import substitute
from .chain import NAME, RowChain, RowLoad, RowStore

KEEPS = ("auto", "registers", "shared", "none")
_THREADS = (64, 128, 256, 512, 1024)
#: Registers of a thread beside its part of the row: indices, sums, operands of a step.
_OTHER_REGISTERS = 28
#: Bytes on their way that keep a multiprocessor's share of DRAM busy: 4.8 TB/s of 132 for 0.8 us.
_BYTES_BUSY = 32 << 10
#: Vectors that a thread loads together where it goes along the row in a loop.
_TOGETHER = 4
#: Elements of a thread that are written out one by one; more make code that no cache holds.
_MOST_ELEMENTS = 64


@dataclass(frozen=True)
class RowPlan:
    """Numbers of a kernel over rows.

    Attributes
    ----------
    lanes : int
        Threads of a row, a power of two.
    rows : int
        Rows that a block has side by side.
    each : int
        Rows of a thread, one beside the other.
    vector : int
        Elements of a step of a thread.
    registers, shared : int
        Steps whose elements are kept in registers, and in shared memory; the rest are read again.
    steps : int
        Of a thread along its row.
    """

    lanes: int
    rows: int
    each: int
    vector: int
    registers: int
    shared: int
    steps: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.rows

    def numbers(self) -> list[int]:
        """Write it for an annotation."""
        return [self.lanes, self.rows, self.each, self.vector, self.registers, self.shared]

    def text(self) -> str:
        """Tell it in a sentence."""
        rows = self.rows * self.each
        steps = {
            "in registers": self.registers,
            "in shared memory": self.shared,
            "read again": self.steps - self.registers - self.shared,
        }
        where = ", ".join(f"{n} {place}" for place, n in steps.items() if n)
        return (
            f"{rows} row{'s' * (rows > 1)} a block of {self.threads} threads, {self.lanes} lanes a "
            f"row; of {self.steps} vector{'s' * (self.steps > 1)} of {self.vector} a thread {where}"
        )


@dataclass(frozen=True)
class Wishes:
    """What a user fixes of a plan; 0 leaves a number open."""

    lanes: int = 0
    threads: int = 0
    vector_bytes: int = MAX_ACCESS_BYTES
    keep: str = "auto"

    def __post_init__(self) -> None:
        for name, most in (("lanes", 1024), ("num_threads", 1024)):
            value = self.lanes if name == "lanes" else self.threads
            if value and (not isinstance(value, int) or value & (value - 1) or value > most):
                raise ScheduleError(
                    f"{NAME} needs {name} to be a power of two up to {most}, not {value!r}."
                )
        if self.vector_bytes not in (1, 2, 4, 8, 16):
            raise ScheduleError(
                f"{NAME} needs vector_bytes to be 1, 2, 4, 8 or 16, not {self.vector_bytes!r}."
            )
        if self.keep not in KEEPS:
            raise ScheduleError(
                f"{NAME} needs keep to be one of {', '.join(KEEPS)}, not {self.keep!r}."
            )


class RowTraffic:
    """What a chain's elements take: vectors, registers, bytes that are kept and moved."""

    def __init__(self, chain: RowChain, vector_bytes: int = MAX_ACCESS_BYTES) -> None:
        self.chain = chain
        self._most_bytes = vector_bytes
        self.stores = [
            s for b in chain.blocks if b.kind == "elements" for s in b.stores if chain.is_output(s)
        ]

    @cached_property
    def kept(self) -> list[RowLoad]:
        """Loads of rows, as against those that all rows share."""
        return [load for load in self.chain.loads if load.by_row]

    @cached_property
    def vector(self) -> int:
        """Elements of a step: what every row's accesses may take at once."""
        rows = [(x.buffer, x.indices) for x in [*self.kept, *self.stores]]
        most = min((self._most_bytes // element_bytes(b) for b, _ in rows), default=1)
        return min((self.width(b, i, max(most, 1)) for b, i in rows), default=1)

    def width(self, buffer: Any, indices: Any, most: int) -> int:
        """Elements along a row that one access may take, a power of two."""
        chain, width = self.chain, gcd(most, self.chain.length)
        element = element_bytes(buffer)
        width = min(width, MAX_ACCESS_BYTES // element) if str(buffer.dtype) != "bool" else 1
        group, part = (tirx.Var(n, chain.type) for n in ("group", "part"))
        while width > 1:
            analyzer = tvm.sym.Analyzer()
            analyzer.bind(group, tvm.ir.Range(0, chain.length // width))
            analyzer.bind(part, tvm.ir.Range(0, width))
            values = dict(
                zip(chain.column_vars, unravel(group * width + part, chain.columns), strict=True)
            )
            at = [substitute(i, values) for i in indices]
            offset = sum(i * s for i, s in zip(at, strides_of(buffer), strict=True))
            offset = analyzer.simplify(offset + buffer.ty.elem_offset)
            first = analyzer.simplify(substitute(offset, {part: tirx.const(0, part.ty)}))
            runs = analyzer.can_prove_equal(offset - first, part)
            known = analyzer.modular_set(first)
            aligned = known.coeff % width == 0 and known.base % width == 0
            if runs and aligned and int(buffer.ty.data_alignment) % (width * element) == 0:
                break
            width //= 2
        return width

    @cached_property
    def held(self) -> list[RowStore]:
        """Elements that are computed once and stay in registers: dear ones asked for again."""
        found = []
        for block in self.chain.blocks:
            if block.kind == "elements":
                found += [
                    s for s in block.stores
                    if is_dear(s.value) and [n for n in self.chain.used_at(s.name) if n > block.level]
                ]  # fmt: skip
        return found

    def registers_an_element(self, *, kept: bool = True) -> float:
        """Registers that an element takes at the level where most are alive."""
        most = 0.0
        for level in range(self.chain.levels):
            loads = [x for x in self.kept if any(n >= level for n in self.chain.used_at(x.name))]
            made = [s for s in self.held if self._alive(s, level)]
            alive = sum(element_bytes(x.buffer) for x in ([*loads] if kept else [])) / 4
            # While one replaces the other, elements of both are there in turn.
            most = max(
                most, alive if not made else max(alive, _sum(made) + _sum_after(self, level))
            )
        return most

    def _alive(self, store: RowStore, level: int) -> bool:
        return any(n >= level for n in self.chain.used_at(store.name))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row that are kept."""
        return self.chain.length * sum(element_bytes(x.buffer) for x in self.kept)

    @cached_property
    def stored_bytes(self) -> int:
        """Bytes of a row that are stored."""
        return self.chain.length * sum(element_bytes(s.buffer) for s in self.stores)


def _sum(stores: Any) -> float:
    return sum(element_bytes(s.buffer) for s in stores) / 4


def _sum_after(traffic: RowTraffic, level: int) -> float:
    loads = [x for x in traffic.kept if any(n > level for n in traffic.chain.used_at(x.name))]
    return sum(element_bytes(x.buffer) for x in loads) / 4


def is_dear(value: Any) -> bool:
    """Whether a value is rather kept than computed again: it has a call or a quotient in it."""
    found: list[Any] = []
    nodes = [(tvm.ir.Call, found.append), (tirx.Div, found.append)]
    tvm_ffi.structural_walk(value, nodes)
    return bool(found)


def unravel(index: Any, extents: Any) -> list[Any]:
    """Take a number apart into indices of some extents."""
    parts = []
    for i, extent in enumerate(extents):
        rest = prod(extents[i + 1 :]) if i + 1 < len(extents) else 1
        part = index if is_one(rest) else tirx.floordiv(index, rest)
        parts.append(part if i == 0 else tirx.floormod(part, extent))
    return parts


def is_one(value: Any) -> bool:
    """Whether a number is 1."""
    return isinstance(value, int | tirx.IntImm) and int(value) == 1


def plan_rows(chain: RowChain, wishes: Wishes, facts: Architecture) -> RowPlan:
    """Choose the plan of the least modelled time.

    Raises
    ------
    ScheduleError
        If no plan is as the user wishes.
    """
    plans = ranked_plans(chain, facts, wishes)
    if not plans:
        raise ScheduleError(
            f"{NAME} finds no way to share rows of {chain.length} elements among "
            f"{wishes.lanes or 'any number of'} lanes in blocks of {wishes.threads or 'any number of'} "
            f"threads with keep={wishes.keep!r}; fewer vectors a thread or other numbers may fit."
        )
    return plans[0]


def ranked_plans(
    chain: RowChain, facts: Architecture, wishes: Wishes | None = None
) -> list[RowPlan]:
    """All plans that a GPU holds, those of the least modelled time first."""
    wishes = wishes or Wishes()
    traffic = RowTraffic(chain, wishes.vector_bytes)
    timed = [
        (modelled_time(traffic, p, facts), i, p)
        for i, p in enumerate(_plans(traffic, wishes, facts))
    ]
    return [plan for time, _, plan in sorted(timed, key=lambda one: one[:2]) if time < float("inf")]


def _plans(traffic: RowTraffic, wishes: Wishes, facts: Architecture) -> Iterator[RowPlan]:
    vector, length = traffic.vector, traffic.chain.length
    groups = length // vector
    for threads, each in product(_THREADS, (1, 2, 4)):
        if wishes.threads and threads != wishes.threads:
            continue
        lanes = 1
        while lanes <= threads:
            steps = -(-groups // lanes)
            wanted = lanes == wishes.lanes or (not wishes.lanes and _suits(lanes, groups))
            if wanted and (each == 1 or each * steps * vector <= _MOST_ELEMENTS // 2):
                for registers, shared in _places(traffic, steps, threads, each, wishes, facts):
                    yield RowPlan(lanes, threads // lanes, each, vector, registers, shared, steps)
            lanes *= 2


def _suits(lanes: int, groups: int) -> bool:
    """Whether lanes have something to do each, and neighbours read a line together."""
    return lanes == 1 if groups == 1 else lanes < 2 * groups and lanes >= min(8, groups // 2 + 1)


def _places(
    traffic: RowTraffic, steps: int, threads: int, each: int, wishes: Wishes, facts: Architecture
) -> Iterator[tuple[int, int]]:
    """Steps in registers, and in shared memory."""
    keep, vector = wishes.keep, traffic.vector
    element = sum(x for x in (element_bytes(load.buffer) for load in traffic.kept))
    step_bytes = threads * each * vector * element
    if traffic.chain.levels == 1 and keep == "auto":
        keep = "registers" if steps * vector * each <= _MOST_ELEMENTS else "none"
    most = min(steps, _MOST_ELEMENTS // (vector * each))
    if keep == "registers":
        options = [steps] if steps * vector * each <= 4 * _MOST_ELEMENTS else []
    elif keep != "auto":
        options = [0]
    else:
        options = sorted({most, steps // 2 if steps // 2 <= most else most, most // 2, 0})
    for registers in options:
        fits = (facts.shared_per_block - 4096) // max(step_bytes, 1)
        rest = steps - registers
        shares = {0} if keep in ("registers", "none") or not rest else {0, min(rest, fits)}
        if keep == "shared":
            shares = {min(rest, fits)}
        yield from ((registers, shared) for shared in shares)


def registers_of(traffic: RowTraffic, plan: RowPlan) -> int:
    """Registers that a thread needs, about."""
    held = plan.registers * plan.vector * plan.each * traffic.registers_an_element()
    looped = 0.0
    if plan.registers < plan.steps:
        size = _TOGETHER * plan.vector * plan.each
        looped = size * sum(element_bytes(x.buffer) for x in traffic.kept) / 4
    return int(held + looped) + _OTHER_REGISTERS


def resident_blocks(traffic: RowTraffic, plan: RowPlan, facts: Architecture) -> int:
    """Blocks that a multiprocessor holds at a time; 0 if it holds none."""
    registers = registers_of(traffic, plan)
    element = sum(element_bytes(load.buffer) for load in traffic.kept)
    shared = plan.shared * plan.threads * plan.each * plan.vector * element
    if registers > min(facts.registers_per_thread, facts.registers_per_sm // plan.threads):
        return 0
    return blocks_per_sm(facts, plan.threads, registers, shared)


def modelled_time(traffic: RowTraffic, plan: RowPlan, facts: Architecture) -> float:
    """Time of a plan relative to one that only moves the bytes; orders plans, no more."""
    chain = traffic.chain
    count = [int(n) for n in chain.rows if isinstance(n, int | tirx.IntImm)]
    rows = prod(count) if len(count) == len(chain.rows) else 1 << 20
    blocks = -(-rows // (plan.rows * plan.each))
    resident = resident_blocks(traffic, plan, facts)
    if not resident:
        return float("inf")
    busy = min(resident, -(-blocks // MULTIPROCESSORS))
    # What a block has on its way: all that is in registers, and a batch of each loop.
    batch = plan.registers or min(plan.steps, _TOGETHER)
    moving = traffic.row_bytes // max(chain.length, 1) * plan.vector * plan.each * batch
    moving *= busy * min(plan.threads, plan.lanes * rows)
    # Blocks of a multiprocessor fill each other's gaps: where one adds up, another one loads.
    gaps = 1 + 0.3 / busy + 0.1 * max(0.0, _BYTES_BUSY / max(moving, 1) - 1)
    waves = blocks / (MULTIPROCESSORS * resident)
    if waves > 1:
        gaps *= 1 + 0.25 * (-(-blocks // (MULTIPROCESSORS * resident)) / waves - 1)
    kept = traffic.row_bytes
    again = kept * (chain.levels - 1) * (plan.steps - plan.registers - plan.shared) / plan.steps
    moved = max(kept + traffic.stored_bytes, 1)
    idle = plan.steps * plan.lanes * plan.vector / chain.length
    work = 0.02 * plan.shared / plan.steps + 0.05 * (idle - 1)
    if traffic.held:
        work += 0.04 * (plan.steps - plan.registers) / plan.steps
    # Each doubling of the lanes is a shuffle more, and warps of a row wait for one another.
    steps = plan.lanes.bit_length() - 1
    work += 0.004 * steps * 16 / max(plan.vector * plan.steps, 16) + 0.01 * (plan.lanes > WARP_SIZE)
    work += 0.01 * abs(plan.threads.bit_length() - 9) * (plan.lanes <= 256)
    return gaps * (1 + 0.5 * again / moved) + work
