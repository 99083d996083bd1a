"""Pairs of accesses to shared memory that a barrier has to keep apart.

The kernel is walked in program order with the accesses that are *pending*: made since the last
barrier on some path. An access that touches what a pending one touched, by another thread, and one
of the two writes, is an :class:`UnorderedPair`. A loop is walked until its end gives nothing new:
pending accesses carry how many iterations ago they were made, so that version ``(k + 2) % 3`` that
was filled two iterations ago is known to be version ``k % 3`` now.

A ``cp.async`` takes effect at the wait for its group (PTX ISA, "cp.async.wait_group"), for the
thread that issued it. Until then no barrier orders it; from then on it is a write like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...gpu.hardware import WARP_SIZE
from .footprint import Distances, Footprints
from .program import EnclosingLoop, Node, SharedEffect, Sync

#: Iterations back that are told apart beyond those that the waits of a kernel need.
_ITERATIONS = 3


@dataclass(frozen=True)
class _Pending:
    access: SharedEffect
    node: Node  #: The leaf that made it
    at: Distances  #: Of the loops that go on, or have ended since
    #: Of an asynchronous copy under way: groups committed since it was issued.
    age: int | None = None
    joined: bool = False  #: Whether a barrier of the warp came since


@dataclass(frozen=True)
class UnorderedPair:
    """Two accesses that nothing orders, and the statements that make them, in the loops ``around``.

    If ``is_flying``, the first is an asynchronous copy that no wait has covered.
    """

    first: Node
    second: Node
    before: SharedEffect
    after: SharedEffect
    around: tuple[EnclosingLoop, ...]
    is_flying: bool = False


# Insertion-ordered, so that plans are the same from run to run.
_State = dict[_Pending, None]


class _Found(Exception):  # noqa: N818 (control flow)
    def __init__(self, hazard: UnorderedPair) -> None:
        super().__init__()
        self.hazard = hazard


class _DependenceWalk:
    def __init__(
        self, prints: Footprints, barriers: Iterable[Node], dropped: Iterable[Node]
    ) -> None:
        self.prints = prints
        self.barriers = set(map(id, barriers))
        self.dropped = set(map(id, dropped))
        self.most_groups = _most_groups(prints.program.root)
        #: Iterations back that are told apart, by loop; others make no difference to addresses.
        self.limits = _limits(prints.program.root, self.most_groups + _ITERATIONS)

    def visit(self, node: Node, state: _State) -> _State:
        """State after a statement; hazards are raised."""
        if id(node) in self.barriers:
            state = self.sync(Sync("block"), state)
        if node.before is not None and id(node) not in self.dropped:
            state = self.sync(node.before, state)
        if node.kind == "loop" and node.loop is not None:
            state = self.loop(node, node.loop, state)
        else:
            state = self.touch(node, state)
            state = self.inside(node, state)
        return state if node.after is None else self.sync(node.after, state)

    def inside(self, node: Node, state: _State) -> _State:
        if node.kind != "if":
            for child in node.children:
                state = self.visit(child, state)
            return state
        ends = [self.visit(child, state) for child in node.children]
        if len(ends) == 1:
            ends.append(state)
        return {**ends[0], **ends[1]}

    def touch(self, node: Node, state: _State) -> _State:
        """Check and add the accesses of a statement; those of one statement are not compared."""
        if not node.accesses:
            return state
        for access in node.accesses:
            for pending in state:
                if pending.access.may_disturb(access):
                    self.check(pending, node, access)
        fresh: _State = {}
        for access in node.accesses:
            at = tuple((loop, 0) for loop in access.loops if loop in self.limits)
            fresh[_Pending(access, node, at, 0 if access.is_async else None)] = None
        return {**state, **fresh}

    def check(self, pending: _Pending, node: Node, access: SharedEffect) -> None:
        flying = pending.age is not None
        lanes = 0 if flying else WARP_SIZE if pending.joined else 1
        met = self.prints.meet(pending.access, access, pending.at, lanes)
        # Of a copy under way only what is beyond doubt counts: no barrier helps, so it is an error.
        if met is False or (flying and not (met and _is_plain(pending.access, access))):
            return
        going = {loop for loop, n in pending.at if n is None or n >= 0}
        around = tuple(
            loop
            for loop in pending.access.loops
            if loop in access.loops and (loop in going or loop not in self.limits)
        )
        raise _Found(UnorderedPair(pending.node, node, pending.access, access, around, flying))

    def sync(self, sync: Sync, state: _State) -> _State:
        if sync.kind == "block":
            return {p: None for p in state if p.age is not None}
        if sync.kind == "warp":
            return {p if p.age is not None else replace(p, joined=True): None for p in state}
        if sync.kind == "commit":
            most = self.most_groups + 1
            return {
                p if p.age is None else replace(p, age=min(p.age + 1, most)): None for p in state
            }
        return {
            replace(p, age=None) if p.age is not None and p.age > sync.groups else p: None
            for p in state
        }

    def loop(self, node: Node, loop: EnclosingLoop, state: _State) -> _State:
        """Walk a loop until its end brings nothing new to its beginning."""
        ends: _State = {} if (loop.trips or 0) > 0 else dict(state)
        new = {self.entering(p, loop): None for p in state}
        head = dict(new)
        while True:
            end = self.inside(node, self.touch(node, new))
            ends |= {self.leaving(p, loop): None for p in end}
            moved = (self.later(p, loop) for p in end)
            new = {p: None for p in moved if p is not None and p not in head}
            if not new:
                return ends
            head |= new

    def entering(self, pending: _Pending, loop: EnclosingLoop) -> _Pending:
        """What is pending, as a loop begins."""
        if self.limits.get(loop, 1) == 1 or loop in pending.access.loops:
            return pending
        return replace(pending, at=(*pending.at, (loop, 0)))

    def leaving(self, pending: _Pending, loop: EnclosingLoop) -> _Pending:
        """What is pending, as a loop has ended."""
        at = dict(pending.at)
        distance = at.get(loop)
        if distance is None or distance >= 0:
            at.pop(loop, None)
        if distance is not None and loop in pending.access.loops and self.limits[loop] > 1:
            at[loop] = min(distance, -1 - distance)
        return replace(pending, at=tuple(at.items()))

    def later(self, pending: _Pending, loop: EnclosingLoop) -> _Pending | None:
        """What is pending, one iteration later; None if that iteration cannot be."""
        if loop.trips is not None and loop.trips <= 1:
            return None
        at = dict(pending.at)
        distance = at.get(loop)
        if distance is None or distance < 0:
            return pending
        distance += 1
        if loop.trips is not None and distance >= loop.trips:
            return None
        at[loop] = None if distance > self.limits[loop] else distance
        return replace(pending, at=tuple(at.items()))


def _is_plain(*accesses: SharedEffect) -> bool:
    """Whether accesses depend on threads alone."""
    return not any(access.index_loops for access in accesses) and all(
        symbol.thread.startswith("threadIdx")
        for access in accesses
        for condition in access.conditions
        for symbol in condition.symbols
    )


def _limits(root: Node, most: int) -> dict[EnclosingLoop, int]:
    """Iterations back that are told apart, for each loop that an address depends on.

    One, but ``most`` for a loop that waits for copies, or whose iteration chooses among versions.
    Telling all apart in nested loops would take time exponential in their number.
    """
    found: dict[EnclosingLoop, int] = {}
    waiting: set[EnclosingLoop] = set()
    for node in root.walk():
        if node.before is not None and node.before.kind == "wait":
            waiting |= {around.loop for around in node.ancestors() if around.loop is not None}
        for access in node.accesses:
            for loop in access.index_loops:
                found[loop] = most if _has_versions(access, loop) else found.get(loop, 1)
    return {loop: most if loop in waiting else limit for loop, limit in found.items()}


def _has_versions(access: SharedEffect, loop: EnclosingLoop) -> bool:
    assert access.offset is not None
    return access.offset.period(loop.symbol) is not None


def _most_groups(root: Node) -> int:
    """Most groups that any wait leaves under way."""
    waits = (n.before for n in root.walk() if n.before is not None and n.before.kind == "wait")
    return max((wait.groups for wait in waits), default=0)


def first_hazard(
    prints: Footprints, barriers: Iterable[Node] = (), dropped: Iterable[Node] = ()
) -> UnorderedPair | None:
    """The first hazard of a kernel with further ``barriers``, and without its ``dropped`` ones."""
    try:
        _DependenceWalk(prints, barriers, dropped).visit(prints.program.root, {})
    except _Found as found:
        return found.hazard
    return None
