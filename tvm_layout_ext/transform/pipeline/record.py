"""What a pipeline was made to do, in plain numbers, for reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VersionedBuffer:
    """A buffer with several versions, each ``version_bytes`` behind the one before."""

    name: str
    scope: str
    versions: int
    version_bytes: int

    @property
    def bytes(self) -> int:
        """Of all versions."""
        return self.versions * self.version_bytes


@dataclass(frozen=True)
class PipelineStep:
    """One statement of a pipelined loop."""

    name: str  #: Of its block; without one it goes by its place, ``statement 2``
    place: int  #: Which statement of the loop it was, from 0
    ahead: int  #: How many bodies before its own iteration's it runs; 0 for what computes
    #: Whether it is written as an asynchronous copy. Pass ``LowerAsyncCopy`` may still refuse.
    asynchronous: bool
    fills: str | None  #: Versioned buffer that it fills
    reads: tuple[str, ...]  #: Versioned buffers that it reads
    role: str = ""  #: Which threads of a block do it, where it is not all


@dataclass(frozen=True)
class PipelineRecord:
    """A loop as ``InjectMultiStageBuffer`` wrote it, ``depth`` bodies that only copy first."""

    loop: str  #: Name of the loop's variable; iterations, a number or an expression
    extent: str
    depth: int  #: Bodies of the prologue
    steps: tuple[PipelineStep, ...]  #: In the order in which a body runs them
    buffers: tuple[VersionedBuffer, ...]
    #: Groups of asynchronous copies, one a body, that may still be under way after the wait at the
    #: top of a body; None without asynchronous copies.
    wait: int | None
    #: The same for a wait in the bodies of the prologue, which only indirect loads need.
    prologue_wait: int | None
    barrier: bool  #: Whether a barrier follows the wait
    #: Waits and arrivals of the roles, a sentence each, where these have mbarriers.
    channels: tuple[str, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of all versions."""
        return sum(b.bytes for b in self.buffers if b.scope.startswith("shared"))

    def runs(self, step: PipelineStep, body: int) -> int | None:
        """Iteration for which a step runs in a body, or None; the prologue is before body 0."""
        if body < 0 and step.ahead == 0:
            return None
        iteration = body + step.ahead
        if iteration < 0 or (self.last is not None and iteration > self.last):
            return None
        return iteration

    @property
    def last(self) -> int | None:
        """Number of the last iteration, where the extent is a constant."""
        return int(self.extent) - 1 if self.extent.isdigit() else None

    def version(self, buffer: str, iteration: int) -> int:
        """Version of a buffer that an iteration uses."""
        return iteration % next(b.versions for b in self.buffers if b.name == buffer)
