"""How many threads share a row, how many rows a block has, and where threads keep their part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from tvm import tirx

from ...checks import whole
from ...errors import ScheduleError
from ...gpu.hardware import (
    MAX_ACCESS_BYTES,
    MULTIPROCESSORS,
    WARP_SIZE,
    Architecture,
    blocks_per_sm,
)
from .chain import NAME, RowChain
from .traffic import RowTraffic

KEEPS = ("auto", "registers", "shared", "none")
_THREADS = (64, 128, 256, 512, 1024)
#: Vectors that a thread loads together where it goes along the row in a loop.
TOGETHER = 4
#: Registers of a thread beside its part of the row: indices, sums, operands of a step.
_OTHER_REGISTERS = 28
#: Bytes on their way that keep a multiprocessor's share of DRAM busy: 4.8 TB/s of 132 for 0.8 us.
_BYTES_BUSY = 32 << 10
#: Elements of a thread that are written out one by one; more make code that no cache holds.
_MOST_ELEMENTS = 64
#: Shared memory that is left to the sums of warps.
_BOARDS = 4096
#: Rows that a symbolic number stands for.
_MANY_ROWS = 1 << 20


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
            "kept in registers": self.registers,
            "kept in shared memory": self.shared,
            "read again": self.steps - self.registers - self.shared,
        }
        where = " and ".join(f"{n} {place}" for place, n in steps.items() if n)
        return (
            f"{rows} row{'s' * (rows > 1)} a block of {self.threads} threads, {self.lanes} "
            f"lane{'s' * (self.lanes > 1)} a row; of {self.steps} "
            f"vector{'s' * (self.steps > 1)} of {self.vector} that a lane has, {where}"
        )


@dataclass(frozen=True)
class Wishes:
    """What a user fixes of a plan; 0 leaves a number open."""

    lanes: int = 0
    num_threads: int = 0
    vector_bytes: int = MAX_ACCESS_BYTES
    keep: str = "auto"

    def __post_init__(self) -> None:
        for name, least in (("lanes", 1), ("num_threads", _THREADS[0])):
            number = whole(getattr(self, name))
            if number is None or (
                number and (number & (number - 1) or not least <= number <= _THREADS[-1])
            ):
                raise ScheduleError(
                    f"{NAME} needs {name} to be 0 or a power of two from {least} to 1,024, "
                    f"not {getattr(self, name)!r}."
                )
        if whole(self.vector_bytes) not in (1, 2, 4, 8, 16):
            raise ScheduleError(
                f"{NAME} needs vector_bytes to be 1, 2, 4, 8 or 16, not {self.vector_bytes!r}."
            )
        if self.keep not in KEEPS:
            raise ScheduleError(
                f"{NAME} needs keep to be one of {', '.join(KEEPS)}, not {self.keep!r}."
            )


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
            f"{NAME} finds no plan for rows of {chain.length:,} elements with lanes={wishes.lanes}, "
            f"num_threads={wishes.num_threads} and keep={wishes.keep!r}: a thread of it would need "
            f"more registers, or a block more shared memory, than {facts.name} has, or more lanes "
            "than threads."
        )
    return plans[0]


def ranked_plans(
    chain: RowChain, facts: Architecture, wishes: Wishes | None = None
) -> list[RowPlan]:
    """All plans that a GPU holds, those of the least modelled time first."""
    wishes = wishes or Wishes()
    traffic = RowTraffic(chain, wishes.vector_bytes)
    held = [plan for plan in _plans(traffic, wishes, facts) if _resident(traffic, plan, facts)]
    return sorted(held, key=lambda plan: modelled_time(traffic, plan, facts))


def _plans(traffic: RowTraffic, wishes: Wishes, facts: Architecture) -> Iterator[RowPlan]:
    vector = traffic.vector
    groups = traffic.chain.length // vector
    powers = [1 << n for n in range(_THREADS[-1].bit_length())]
    for threads, each, lanes in product(_THREADS, (1, 2, 4), powers):
        if wishes.num_threads not in (0, threads) or wishes.lanes not in (0, lanes):
            continue
        # Lanes have something to do each, and neighbours read a line together.
        suits = min(8, groups // 2 + 1) <= lanes < max(2 * groups, 2)
        steps = -(-groups // lanes)
        is_long = each > 1 and each * steps * vector > _MOST_ELEMENTS // 2
        if lanes > threads or is_long or not (suits or wishes.lanes):
            continue
        for registers, shared in _places(traffic, steps, threads * each, each, wishes.keep, facts):
            yield RowPlan(lanes, threads // lanes, each, vector, registers, shared, steps)


def _places(
    traffic: RowTraffic, steps: int, parts: int, each: int, keep: str, facts: Architecture
) -> Iterator[tuple[int, int]]:
    """Steps that are kept in registers, and in shared memory, by ``parts`` rows' lanes."""
    size = traffic.vector * each
    fits = (facts.shared_per_block - _BOARDS) // max(parts * traffic.vector * traffic.kept_bytes, 1)
    most = min(steps, _MOST_ELEMENTS // size)
    if keep == "registers":
        yield from [(steps, 0)] * (steps * size <= 4 * _MOST_ELEMENTS)
    elif keep == "shared":
        yield from [(0, steps)] * (steps <= fits)
    elif keep == "none" or traffic.chain.levels == 1:
        yield (steps if keep == "auto" and steps == most else 0), 0
    else:
        for registers in sorted({most, min(most, steps // 2), most // 2, 0}):
            yield from ((registers, n) for n in {0, min(steps - registers, fits)})


def _registers(traffic: RowTraffic, plan: RowPlan) -> int:
    """Registers that a thread needs, about."""
    held = plan.registers * plan.vector * plan.each * traffic.registers_an_element
    is_looped = plan.registers < plan.steps
    batch = TOGETHER * plan.vector * plan.each * traffic.kept_bytes / 4 if is_looped else 0
    return int(held + batch) + _OTHER_REGISTERS


def _resident(traffic: RowTraffic, plan: RowPlan, facts: Architecture) -> int:
    """Blocks that a multiprocessor holds at a time; 0 if it holds none."""
    registers = _registers(traffic, plan)
    shared = plan.shared * plan.threads * plan.each * plan.vector * traffic.kept_bytes
    if registers > min(facts.registers_per_thread, facts.registers_per_sm // plan.threads):
        return 0
    return blocks_per_sm(facts, plan.threads, registers, shared)


def modelled_time(traffic: RowTraffic, plan: RowPlan, facts: Architecture) -> float:
    """Time of a plan relative to one that only moves the bytes; orders plans, no more."""
    chain = traffic.chain
    known = all(isinstance(n, int | tirx.IntImm) for n in chain.rows)
    rows = prod(map(int, chain.rows)) if known else _MANY_ROWS
    blocks = -(-rows // (plan.rows * plan.each))
    resident = _resident(traffic, plan, facts)
    busy = min(resident, -(-blocks // MULTIPROCESSORS))
    # What a block has on its way: all that is in registers, or a batch of a loop.
    batch = plan.registers or min(plan.steps, TOGETHER)
    moving = busy * plan.threads * plan.each * batch * plan.vector * max(traffic.kept_bytes, 1)
    moving *= min(1.0, blocks / MULTIPROCESSORS)
    # Blocks of a multiprocessor fill each other's gaps: where one adds up, another one loads.
    gaps = 1 + 0.3 / busy + 0.1 * max(0.0, _BYTES_BUSY / moving - 1)
    waves = blocks / (MULTIPROCESSORS * resident)
    if waves > 1:
        gaps *= 1 + 0.25 * (-(-blocks // (MULTIPROCESSORS * resident)) / waves - 1)
    again = (plan.steps - plan.registers - plan.shared) / plan.steps * (chain.levels - 1)
    again *= traffic.kept_bytes / max(traffic.moved_bytes, 1)
    work = 0.02 * plan.shared / plan.steps
    work += 0.05 * (plan.steps * plan.lanes * plan.vector / chain.length - 1)
    if traffic.held:
        work += 0.04 * (plan.steps - plan.registers) / plan.steps
    # Each doubling of the lanes is a shuffle more, and warps of a row wait for one another.
    doublings = plan.lanes.bit_length() - 1
    work += 0.064 * doublings / max(plan.vector * plan.steps, 16) + 0.01 * (plan.lanes > WARP_SIZE)
    work += 0.01 * abs(plan.threads.bit_length() - 9) * (plan.lanes <= 256)
    return gaps * (1 + 0.5 * again) + work
