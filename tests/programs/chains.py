"""Random legal schedules of small computes, and the same computes in NumPy.

A chain is legal by construction: every stage that is computed at the root binds its outermost data
axis to blockIdx.x, a cache lives inside the kernel of its reader, shared caches copy with the same
number of threads as their reader, and local ones bind none. Now and then a cache copies with one
thread more, which has to be refused. What TensorIR still refuses, it refuses by ScheduleError, and
the test counts how often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tvm.tirx import IterVar

from tvm_layout_ext import te

DTYPE = "float32"
#: The widest vector of float32.
_LANES = 4
#: One in so many draws, and one more, is of an illegal number of threads.
_SELDOM = 5
Draw = Callable[[Any], Any]


@dataclass
class Problem:
    """A compute, its reference, and the schedule drawn for it."""

    name: str
    inputs: list[Any]
    outputs: list[Any]
    reference: Callable[..., list[np.ndarray]]
    middle: list[Any] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    unequal: str | None = None

    @property
    def args(self) -> list[Any]:
        return [*self.inputs, *self.outputs]

    def arrays(self, seed: int) -> list[np.ndarray]:
        """Small integers, on which float sums are exact in any order."""
        rng = np.random.default_rng(seed)
        return [
            rng.integers(-4, 5, [int(e) for e in tensor.shape]).astype(DTYPE)
            for tensor in self.inputs
        ]


def _placeholder(name: str, *shape: int) -> Any:
    return te.placeholder(shape, DTYPE, name=name)


def elementwise(n: int, m: int) -> Problem:
    A, B = _placeholder("A", n, m), _placeholder("B", n, m)
    C = te.compute((n, m), lambda i, j: A[i, j] * 2.0 + B[i, j], name="C")
    D = te.compute((n, m), lambda i, j: C[i, j] - A[i, j], name="D")
    return Problem("elementwise", [A, B], [D], lambda a, b: [a * 2 + b - a], [C])


def reduction(n: int, m: int) -> Problem:
    A = _placeholder("A", n, m)
    k = te.reduce_axis((0, m), "k")
    B = te.compute((n, m), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((n,), lambda i: te.sum(B[i, k], axis=k), name="C")
    return Problem("reduction", [A], [C], lambda a: [(a + 1).sum(1)], [B])


def maximum(n: int, m: int) -> Problem:
    A = _placeholder("A", n, m)
    i, j = te.reduce_axis((0, n), "i"), te.reduce_axis((0, m), "j")
    B = te.compute((), lambda: te.max(A[i, j], axis=[i, j]), name="B")
    return Problem("maximum", [A], [B], lambda a: [a.max()])


def matmul(n: int, m: int, depth: int) -> Problem:
    A, B = _placeholder("A", n, depth), _placeholder("B", depth, m)
    k = te.reduce_axis((0, depth), "k")
    C = te.compute((n, m), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return Problem("matmul", [A, B], [C], lambda a, b: [a @ b])


def transpose(n: int, m: int) -> Problem:
    A = _placeholder("A", n, m)
    B = te.compute((m, n), lambda i, j: A[j, i], name="B")
    return Problem("transpose", [A], [B], lambda a: [a.T])


def stencil(n: int, m: int) -> Problem:
    A = _placeholder("A", n + 2, m + 1)
    B = te.compute((n + 2, m + 1), lambda i, j: A[i, j] * 3.0, name="B")
    C = te.compute((n, m), lambda i, j: B[i, j] + B[i + 1, j + 1] - B[i + 2, j], name="C")
    return Problem(
        "stencil", [A], [C], lambda a: [3 * a[:-2, :-1] + 3 * a[1:-1, 1:] - 3 * a[2:, :-1]], [B]
    )


_SIZES = st.integers(1, 20)


@st.composite
def problems(draw: Draw) -> Problem:
    """A small compute of one of six kinds."""
    kind = draw(st.sampled_from([elementwise, transpose, reduction, maximum, stencil, matmul]))
    sizes = draw(st.tuples(_SIZES, _SIZES, _SIZES))
    return kind(*sizes[: 3 if kind is matmul else 2])


class Chain:
    """Draws a schedule for a problem, writing down what it does."""

    def __init__(self, draw: Draw, problem: Problem) -> None:
        self.draw = draw
        self.problem = problem
        self.s = te.create_schedule([tensor.op for tensor in problem.outputs])
        self.threads = {
            "threadIdx.x": draw(st.sampled_from([2, 4, 8])),
            "threadIdx.y": draw(st.sampled_from([2, 3])),
        }
        self.versions = draw(st.integers(1, 3))
        # Rows here are of any length: a guarded vector in an annotated function may be misaligned.
        self.vectors = self.versions == 1 and draw(st.booleans())
        self.dynamic = False

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def note(self, text: str) -> None:
        self.problem.log.append(text)

    def run(self) -> Any:
        for output in self.problem.outputs:
            self._output(output)
        return self.s

    def _output(self, output: Any) -> None:
        worker = output
        if len(output.op.reduce_axis) and self.flag():
            worker = self._two_steps(output)
        elif self.flag():
            self.note("cache_write")
            worker = self.s.cache_write(output, "local")
        self._stage(output)
        if worker is not output:
            self._attach(worker, output)
            self._inside(worker)
        self._producers(worker)

    def _two_steps(self, output: Any) -> Any:
        stage = self.s[output]
        axis = output.op.reduce_axis[0]
        if self.flag():
            # A divisor: TensorIR's compute_at would lose the guard of the partial results.
            extent = int(axis.dom.extent)
            factor = self.draw(
                st.sampled_from([f for f in range(1, extent + 1) if extent % f == 0])
            )
            axis = stage.split(axis, factor=factor)[self.draw(st.integers(0, 1))]
        position = self.draw(st.integers(0, len(output.op.axis)))
        self.note(f"rfactor {axis.var.name} at {position}")
        return self.s.rfactor(output, axis, position)

    def _producers(self, reader: Any) -> None:
        """Stages and caches that ``reader`` reads."""
        for tensor in self.problem.middle:
            self._middle(tensor, reader)
        for tensor in self.problem.inputs:
            for consumer in [*self.problem.middle, reader]:
                if self.s[tensor] in self.s[consumer].inputs and not self.s[consumer].inlined:
                    self._cache(tensor, consumer)

    def _middle(self, tensor: Any, reader: Any) -> None:
        where = self.draw(st.sampled_from(["inline", "at", "cached", "root"]))
        self.note(f"{tensor.op.name} {where}")
        if where == "inline":
            self.s[tensor].compute_inline()
        elif where == "root":
            self._stage(tensor)
        elif where == "at":
            self._attach(tensor, reader)
            self._inside(tensor)
        else:
            self._cache(tensor, reader)
            self._stage(tensor)

    def _cache(self, tensor: Any, reader: Any) -> None:
        scope = self.draw(st.sampled_from([None, "shared", "local", "shared.dyn"]))
        if scope is None or self._reduces_over_threads(reader):
            return
        # TVM's MergeSharedMemoryAllocations fails on some pairs of guarded shared.dyn buffers.
        scope = "shared" if self.dynamic and scope == "shared.dyn" else scope
        self.dynamic = self.dynamic or scope == "shared.dyn"
        cache = self.s.cache_read(tensor, scope, [reader])
        self.note(f"cache_read {tensor.op.name} {scope}")
        self._attach(cache, reader)
        self._inside(cache)
        if len(cache.op.axis) > 1 and self.flag():
            # Whole vectors a row: TVM emits misaligned float4 accesses for others.
            lanes = _LANES if self.vectors else 1
            factor = lanes * self.draw(st.integers(1, 40 // lanes))
            offset = lanes * self.draw(st.integers(0, factor // lanes - 1))
            self.note(f"storage_align {factor} {offset}")
            self.s[cache].storage_align(cache.op.axis[-2], factor, offset)
        if scope != "local" and self.versions > 1 and self._in_serial_loop(self.s[cache]):
            self.note(f"{self.versions} versions")
            self.s[cache].double_buffer(self.versions)
            self.versions = 1

    def _attach(self, tensor: Any, reader: Any) -> None:
        """Compute ``tensor`` inside some loop of ``reader``, but inside the kernel."""
        stage = self.s[reader]
        leaf = list(stage.leaf)
        inside = [axis for axis in leaf if self._in_kernel(stage, axis)]
        while not inside:
            stage, axis = stage.attach.stage, stage.attach.axis
            leaf = list(stage.leaf)
            inside = [
                one for one in leaf[: stage.leaf.position(axis) + 1] if self._in_kernel(stage, one)
            ]
        axis = self.draw(st.sampled_from(inside))
        self.note(f"{tensor.op.name} at {stage.name}.{axis.var.name}")
        self.s[tensor].compute_at(stage, axis)

    def _in_kernel(self, stage: Any, axis: IterVar) -> bool:
        """Whether a loop is inside a kernel, and no vector."""
        mark = stage.marks.get(axis)
        if mark is not None and mark.kind == "vectorize":
            return False
        around = stage.leaf[: stage.leaf.position(axis) + 1]
        bound = any(stage.marks.get(a) and stage.marks.get(a).kind == "bind" for a in around)
        return bound or stage.attach is not None

    def _loops(self, tensor: Any) -> Any:
        """Split, fuse and reorder a few times."""
        stage = self.s[tensor]
        for _ in range(self.draw(st.integers(0, 3))):
            leaf = list(stage.leaf)
            if not leaf:
                break
            move = self.draw(st.sampled_from(["split", "nparts", "fuse", "reorder"]))
            position = self.draw(st.integers(0, len(leaf) - 1))
            self.note(f"{stage.name}: {move} {leaf[position].var.name}")
            if move == "fuse":
                self._fuse(stage, leaf[position : position + 2])
            elif move == "reorder":
                stage.reorder(*self.draw(st.permutations(leaf)))
            else:
                by = {"split": "factor", "nparts": "nparts"}[move]
                stage.split(leaf[position], **{by: self.draw(st.integers(1, 7))})
        return stage

    def _fuse(self, stage: Any, axes: list[IterVar]) -> None:
        if len(axes) == 2 and axes[0].iter_type == axes[1].iter_type:
            stage.fuse(*axes)

    def _data(self, stage: Any) -> list[IterVar]:
        return [a for a in stage.leaf if a.iter_type == IterVar.DataPar and a not in stage.marks]

    def _stage(self, tensor: Any) -> None:
        """A stage with a kernel of its own."""
        stage = self._loops(tensor)
        data = self._data(stage)
        if not data:
            self._reduce_over_threads(stage)
            return
        for tag in list(self.threads)[: self.draw(st.integers(0, 2))]:
            self._bind_threads(stage, tag, self.threads[tag])
        block = self._data(stage)[0]
        reductions = [a for a in stage.leaf if a.iter_type == IterVar.CommReduce]
        if reductions and stage.leaf.position(block) > stage.leaf.position(reductions[0]):
            rest = [a for a in stage.leaf if not a.same_as(block)]
            stage.reorder(block, *rest)
        stage.bind(block, te.thread_axis("blockIdx.x"))
        rest = [a for a in stage.leaf if not a.same_as(block)]
        stage.reorder(block, *rest)
        self._serial_marks(stage)

    def _bind_threads(self, stage: Any, tag: str, threads: int) -> None:
        axis = self.draw(st.sampled_from(self._data(stage)))
        _, inner = stage.split(axis, factor=threads)
        self.note(f"{stage.name}: {threads} of {tag} run {inner.var.name}")
        stage.bind(inner, te.thread_axis(tag))

    def _reduce_over_threads(self, stage: Any) -> None:
        """A scalar: one loop of one iteration is the block, or threads reduce."""
        reductions = list(stage.leaf)
        if not reductions:
            stage.bind(stage.fuse(), te.thread_axis("blockIdx.x"))
            return
        self.note(f"{stage.name}: reduce over threads")
        outer, inner = stage.split(reductions[0], factor=self.threads["threadIdx.x"])
        stage.reorder(inner, outer, *reductions[1:])
        stage.bind(inner, te.thread_axis("threadIdx.x"))

    def _inside(self, tensor: Any) -> None:
        """A stage inside a kernel: shared memory is filled by all threads together.

        Where every thread would fill it whole, TVM's StorageRewrite may let the result overwrite
        its own operand in place, which the slower threads then read. Partial sums stay local: in
        shared memory, a guard around their loop would be one around a barrier.
        """
        if len(self.s[tensor].op.reduce_axis):
            self.s[tensor].set_scope("local")
        stage = self._loops(tensor)
        shared = stage.scope is None or stage.scope.startswith("shared")
        for tag in self._threads_around(stage) if shared and self._data(stage) else []:
            if not self._in_thread(stage):
                self._bind_threads(stage, tag, self._copying(tag))
        self._serial_marks(stage)

    def _in_serial_loop(self, stage: Any) -> bool:
        return stage.attach.stage.marks.get(stage.attach.axis) is None

    def _reduces_over_threads(self, reader: Any) -> bool:
        """Whether nothing may be computed inside, as LowerCrossThreadReduction demands."""
        return any(
            axis.iter_type == IterVar.CommReduce and mark.kind == "bind"
            for axis, mark in self.s[reader].marks.items()
        )

    def _serial_marks(self, stage: Any) -> None:
        free = self._data(stage)
        if free and self.flag():
            kind = self.draw(st.sampled_from(["unroll", "vectorize" if self.vectors else "unroll"]))
            axis = free[-1]
            if kind == "vectorize":
                _, axis = stage.split(axis, factor=self.draw(st.sampled_from([2, _LANES])))
                stage.reorder(*[a for a in stage.leaf if not a.same_as(axis)], axis)
            self.note(f"{stage.name}: {kind} {axis.var.name}")
            getattr(stage, kind)(axis)

    def _copying(self, tag: str) -> int:
        """Threads that fill a cache: those of the kernel, or once in a chain, one more."""
        unequal = self.problem.unequal is None and self.draw(st.integers(0, _SELDOM)) == _SELDOM
        if unequal:
            self.problem.unequal = tag
        return self.threads[tag] + unequal

    def _threads_around(self, stage: Any) -> list[str]:
        """Threads that the kernel around a stage binds."""
        while stage.attach is not None:
            stage = stage.attach.stage
        bound = [mark.value.thread_tag for mark in stage.marks.values() if mark.kind == "bind"]
        return [tag for tag in self.threads if tag in bound]

    def _in_thread(self, stage: Any) -> bool:
        """Whether a stage without a scope is inside one thread's loops, so that it is local."""
        around = []
        attach = stage.attach
        while attach is not None:
            leaf = list(attach.stage.leaf)
            around += [
                attach.stage.marks.get(a)
                for a in leaf[: attach.stage.leaf.position(attach.axis) + 1]
            ]
            attach = attach.stage.attach
        return stage.scope is None and any(
            mark is not None and mark.kind == "bind" and mark.value.thread_tag in self.threads
            for mark in around
        )


@st.composite
def chains(draw: Draw) -> tuple[Problem, Any]:
    """A problem and a schedule of it."""
    problem = draw(problems())
    return problem, Chain(draw, problem).run()
