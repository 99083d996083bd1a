"""How many threads share a row, how many rows a block has, and where threads keep their part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from itertools import product
from math import ceil, log2, prod

from tvm import tirx

from ...checks import is_one_of, whole
from ...errors import ScheduleError
from ...gpu.hardware import (
    CLUSTER_BLOCKS,
    CLUSTERS_SINCE,
    CP_ASYNC_SINCE,
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
_CLUSTERS = tuple(1 << n for n in range(CLUSTER_BLOCKS.bit_length()))
#: Nanoseconds of a lane's vector behind its first, where rows are too few to hide it: layer_norm of
#: 16x768 float32 takes 2.6 us by six vectors a lane and 1.9 by one, of 264x1024 2.8 and 1.9 (H100).
_STEP = 120.0
#: Bytes of the shortest row that clusters share, and lanes of their smallest blocks, by default.
_LONG_BYTES, _CLUSTER_LANES = 32768, 128
#: Vectors that a thread loads together where it goes along the row in a loop.
TOGETHER = 4
#: Registers of a thread beside its part of the row: indices, sums, operands of a step.
_OTHER_REGISTERS = 28
#: Elements of a thread that are written out one by one; more make code that no cache holds.
_MOST_ELEMENTS = 64
#: Shared memory that is left to the sums of warps.
_BOARDS = 4096
#: Rows that a symbolic number stands for.
_MANY_ROWS = 1 << 20
#: Bytes of rows that the second-level cache keeps.
_CACHE = 16 << 20
#: Steps whose weights the compiler loads ahead.
_AHEAD = 2


@dataclass(frozen=True)
class _Speeds:
    """What the model counts with, fitted to times of an H200; what costs more does so as a part."""

    #: Bytes a ns of the second-level cache for each multiprocessor, and of one of them while the
    #: others rest; instructions of its threads, and how many of them keep it busy.
    l2: float
    burst: float
    issued: float
    busy: int
    #: ns of a load, of a round of sums, and what it takes longer between blocks of a cluster.
    latency: float
    round: float
    exchange: float
    sharpness: float  #: How sharply the slowest part decides
    shared: float  #: What a row in shared memory costs: its loops, and cache that it takes
    #: Blocks of a cluster of which half find what all rows share in the first-level cache.
    cached: float = 0.0
    ahead: float = 0.0  #: What asynchronous copies gain in clusters
    long: float = 0.0  #: What each doubling of a thread's elements beyond its registers' costs


#: Bytes a ns of DRAM for each multiprocessor; ns between two blocks that one begins: blocks of 64
#: threads with a vector each reach 0.76 of a copy.
_DRAM, _BEGIN = 32.0, 84.0
_SHORT_ROWS = _Speeds(100.0, 110.0, 224.0, 1024, 700.0, 300.0, 700.0, 8, 0.04)
_LONG_ROWS = _Speeds(45.0, 52.0, 180.0, 512, 215.0, 340.0, 760.0, 6.6, 0.16, 5.0, 0.07, 0.12)


@dataclass(frozen=True)
class RowPlan:
    """Numbers of a kernel over rows."""

    lanes: int  #: Threads of a row in a block, a power of two
    rows: int  #: Rows of a block
    vector: int  #: Elements of a step of a thread
    #: Steps whose elements are kept in registers, and in shared memory; the rest are read again.
    registers: int
    shared: int
    hold: int  #: 1 keeps dear elements of the steps in registers, 0 computes them again
    resident: int = 0  #: Blocks that a multiprocessor should hold
    cluster: int = 1  #: Blocks that share a row, each of which has no other
    #: 1 copies what goes to shared memory asynchronously, 2 also what all rows share.
    ahead: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.rows

    @property
    def across(self) -> int:
        """Threads of a row."""
        return self.lanes * self.cluster

    def steps(self, chain: RowChain) -> int:
        """Steps of a thread along its row, which may begin at the end of a vector."""
        return _steps(chain, self.vector, self.across)

    def numbers(self) -> list[int]:
        """Write it for an annotation."""
        return list(astuple(self))

    def text(self, chain: RowChain) -> str:
        """Tell it in a sentence."""
        steps = self.steps(chain)
        parts = {
            "kept in registers": self.registers,
            "kept in shared memory": self.shared,
            "read again": steps - self.registers - self.shared,
        }
        where = " and ".join(f"{n} {place}" for place, n in parts.items() if n)
        clusters = f"cluster of {self.cluster} blocks" if self.cluster > 1 else "block"
        return (
            f"{_count(self.rows, 'row')} a {clusters} of {self.threads} threads, "
            f"{_count(self.across, 'lane')} a row; of {_count(steps, 'vector')} of {self.vector} "
            f"that a lane has, {where}"
        )


def _steps(chain: RowChain, vector: int, lanes: int) -> int:
    before = 0 if chain.length % vector == 0 else vector - 1
    return -(-(chain.length + before) // (vector * lanes))


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number > 1)}"


@dataclass(frozen=True)
class Wishes:
    """What a user fixes of a plan; 0 leaves a number open."""

    lanes: int = 0
    num_threads: int = 0
    vector_bytes: int = MAX_ACCESS_BYTES
    keep: str = "auto"
    cluster: int = 0

    def __post_init__(self) -> None:
        for name, legal in (
            ("lanes", (0, *(1 << n for n in range(11)))),
            ("num_threads", (0, *_THREADS)),
            ("vector_bytes", (1, 2, 4, 8, 16)),
            ("keep", KEEPS),
            ("cluster", (0, *_CLUSTERS)),
        ):
            value = getattr(self, name)
            if not is_one_of(value if name == "keep" else whole(value), legal):
                listed = ", ".join(map(str, legal))
                raise ScheduleError(f"{NAME} needs {name} to be one of {listed}, not {value!r}.")


def plan_rows(chain: RowChain, wishes: Wishes, facts: Architecture) -> RowPlan:
    """Choose the plan of the least modelled time.

    Raises ScheduleError if no plan is as the user wishes.
    """
    if wishes.cluster > 1 and facts.capability < CLUSTERS_SINCE:
        major, minor = CLUSTERS_SINCE
        raise ScheduleError(
            f"{NAME} is asked for clusters of {wishes.cluster} blocks, which {facts.name} does not "
            f"launch; they need compute capability {major}.{minor}."
        )
    plans = ranked_plans(RowTraffic(chain, wishes.vector_bytes), facts, wishes)
    if not plans:
        raise ScheduleError(
            f"{NAME} finds no plan for {chain.length:,} elements with lanes={wishes.lanes}, "
            f"num_threads={wishes.num_threads}, keep={wishes.keep!r} and cluster={wishes.cluster}: "
            f"it has more lanes than threads, or fewer in a cluster, or needs more registers or "
            f"shared memory than {facts.name} has."
        )
    return plans[0]


def ranked_plans(
    traffic: RowTraffic, facts: Architecture, wishes: Wishes | None = None
) -> list[RowPlan]:
    """All plans that a GPU holds, those of the least modelled time first."""
    plans = [plan for plan in _plans(traffic, wishes or Wishes(), facts) if plan.resident]
    return sorted(plans, key=lambda plan: modelled_time(traffic, plan))


def _plans(traffic: RowTraffic, wishes: Wishes, facts: Architecture) -> Iterator[RowPlan]:
    vector = traffic.vector
    for cluster, threads, lanes in _shapes(traffic, wishes, facts):
        rows, steps = threads // lanes, _steps(traffic.chain, vector, lanes * cluster)
        bare = RowPlan(lanes, rows, vector, 0, 0, 0, cluster=cluster)
        for registers, shared in _places(traffic, steps, bare, wishes.keep, facts):
            holds = {0, int(registers > 0 and bool(traffic.dear))}
            for hold, ahead in product(holds, _aheads(traffic, shared, cluster, facts)):
                plan = replace(bare, registers=registers, shared=shared, hold=hold, ahead=ahead)
                yield replace(plan, resident=_resident(traffic, plan, facts))


def _shapes(
    traffic: RowTraffic, wishes: Wishes, facts: Architecture
) -> Iterator[tuple[int, int, int]]:
    """Blocks of a cluster, threads of a block, and lanes of a row in it."""
    groups = -(-traffic.chain.length // traffic.vector)
    asked = (wishes.cluster, wishes.num_threads, wishes.lanes)
    for shape in product(_CLUSTERS, _THREADS, (1 << power for power in range(11))):
        cluster, threads, lanes = shape
        is_other = any(n not in (0, own) for n, own in zip(asked, shape, strict=True))
        # Lanes have something to do each, and neighbours read a line together.
        suits = min(8, groups // 2 + 1) <= lanes < max(2 * groups, 2) or wishes.lanes
        if cluster > 1:
            has_clusters = facts.capability >= CLUSTERS_SINCE and lanes == threads
            is_long = cluster * lanes <= groups and lanes >= _CLUSTER_LANES and _is_long(traffic)
            suits = has_clusters and (is_long or wishes.cluster)
        if lanes <= threads and suits and not is_other:
            yield shape


def _is_long(traffic: RowTraffic) -> bool:
    return traffic.chain.length * traffic.kept_bytes >= _LONG_BYTES


def _resident(traffic: RowTraffic, plan: RowPlan, facts: Architecture) -> int:
    """Blocks that a multiprocessor holds; 0 if it holds none."""
    steps, vector = plan.steps(traffic.chain), plan.vector
    each = plan.registers * vector * traffic.element_registers(hold=bool(plan.hold))
    if plan.registers < steps:
        each += TOGETHER * vector * traffic.kept_bytes / 4
    each += _AHEAD * vector * traffic.common_bytes / 4
    # What lies in shared memory is loaded late.
    each *= 0.5 if plan.ahead and not plan.registers else 1.0
    used, step = int(each) + _OTHER_REGISTERS, plan.threads * vector
    held = plan.shared * step * traffic.kept_bytes + _board_bytes(traffic, plan)
    if plan.ahead > 1:
        held += steps * step * traffic.common_bytes
    if used > facts.registers_per_thread or held > facts.shared_per_block:
        return 0
    return blocks_per_sm(facts, plan.threads, used, held)


def _board_bytes(traffic: RowTraffic, plan: RowPlan) -> int:
    warps = plan.across // WARP_SIZE
    return warps * traffic.result_bytes if plan.cluster > 1 else 0


def _places(
    traffic: RowTraffic, steps: int, plan: RowPlan, keep: str, facts: Architecture
) -> Iterator[tuple[int, int]]:
    """Steps that are kept in registers, and in shared memory beside boards."""
    vector, left = plan.vector, facts.shared_per_block - _BOARDS - _board_bytes(traffic, plan)
    fits = left // max(plan.threads * vector * traffic.kept_bytes, 1)
    most = min(steps, _MOST_ELEMENTS // vector)
    if keep == "registers":
        yield from [(steps, 0)] * (steps * vector <= 4 * _MOST_ELEMENTS)
    elif keep == "shared":
        yield from [(0, steps)] * (steps <= fits)
    elif keep == "none" or traffic.sweeps < 2:
        yield (steps if keep == "auto" and steps == most else 0), 0
    else:
        for registers in sorted({most, min(most, steps // 2), most // 2, 0}):
            yield from ((registers, n) for n in {0, min(steps - registers, fits)})


def _aheads(traffic: RowTraffic, shared: int, cluster: int, facts: Architecture) -> Iterator[int]:
    """What may be copied to shared memory asynchronously."""
    has_copies = facts.capability >= CP_ASYNC_SINCE and (cluster > 1 or _is_long(traffic))
    own = int(shared > 0 and has_copies and traffic.may_copy_rows)
    yield own
    # Blocks of many rows find it in their multiprocessor's cache, which these copies pass by.
    is_little = traffic.common_bytes <= traffic.kept_bytes
    if cluster > 1 and is_little and traffic.may_copy_common and (own or not shared):
        yield 2


def modelled_time(traffic: RowTraffic, plan: RowPlan) -> float:
    """Nanoseconds of a kernel, by which plans are ordered.

    Multiprocessors take turns at DRAM. One that holds several blocks loads for one of them while
    another one computes; what the last block computes after its loads nothing hides.
    """
    chain, is_long = traffic.chain, _is_long(traffic)
    speeds = _LONG_ROWS if is_long else _SHORT_ROWS
    is_known = all(isinstance(n, int | tirx.IntImm) for n in chain.rows)
    rows = prod(map(int, chain.rows)) if is_known else _MANY_ROWS
    blocks, steps = -(-rows // plan.rows) * plan.cluster, plan.steps(chain)
    length = chain.length / plan.cluster
    elements = plan.rows * length
    busy = min(plan.resident, ceil(blocks / MULTIPROCESSORS))
    at_once = min(blocks, MULTIPROCESSORS * busy) * elements * traffic.kept_bytes
    kept = plan.registers + plan.shared
    again = elements * traffic.kept_bytes * (1 - kept / steps) * max(traffic.sweeps - 1, 0)
    moved = elements * traffic.moved_bytes + again * max(0.0, 1 - _CACHE / max(at_once, 1))
    # A block that joins a cluster empties its multiprocessor's cache of what all rows share.
    fresh = plan.cluster / (plan.cluster + speeds.cached)
    fetched = elements * traffic.moved_bytes + again + traffic.common_bytes * length * fresh
    calls = len(traffic.dear) * (2 - plan.hold * plan.registers / steps)
    work = 4 * traffic.sweeps + 4 * calls
    idle = steps * plan.across * plan.vector / max(chain.length, 1)
    compute = elements * idle * work / speeds.issued
    compute /= min(1.0, busy * plan.threads / speeds.busy) ** 0.5
    rounds = speeds.round * (chain.levels - 1) * (1 if plan.lanes > WARP_SIZE else 0.3)
    rounds += speeds.exchange * (chain.levels - 1) * (plan.cluster > 1)
    # A loop waits for each of its batches, and for the weights that belong to them.
    looped = steps - plan.registers - (plan.shared if plan.ahead else 0)
    batches, unkept = (-(-n // TOGETHER) for n in (looped, steps - kept))
    waits: float = 1 + batches + unkept * (traffic.sweeps - 1)
    if traffic.common_bytes and plan.ahead < 2:
        waits += 0.5 * (-(-steps // TOGETHER) if is_long else batches)
    alone = fetched / speeds.burst + waits * speeds.latency
    bounds = [moved / _DRAM, fetched / speeds.l2, alone, _BEGIN]
    if blocks > MULTIPROCESSORS:
        bounds = [*bounds[:2], _BEGIN, compute, (alone + compute + rounds) / busy]
    per_block = sum(t**speeds.sharpness for t in bounds) ** (1 / speeds.sharpness)
    time = ceil(blocks / MULTIPROCESSORS) * per_block + compute + rounds
    if rows <= 2 * MULTIPROCESSORS and not is_long:
        time += _STEP * (steps - 1)
    # Of a row that is copied ahead half costs nothing: it needs no registers to wait in.
    gains = plan.ahead > 0 and plan.cluster > 1
    costly = max(2 * plan.shared / steps - 1, 0) if gains else plan.shared / steps
    costs = speeds.shared * costly - speeds.ahead * gains
    costs += speeds.long * max(log2(steps * plan.vector / _MOST_ELEMENTS), 0)
    return time * (1 + costs)
