"""Add up sums of steps that have scales of their own, as blocks of fp8 do.

Each step multiplies into sums of its own, and what is made of these is added to a total while other
warpgroups multiply. Scales come from memory to registers while the step before is multiplied: when
each step loaded its own, 4096 x 7168 x 16384 went at 1168 TFLOPS on an H200, and now at 1296.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ...errors import ScheduleError
from ...intrin import asynchronous
from ...ir.queries import substitute
from ...ir.rebuild import sequence
from .pieces import column_of, phase, row_of
from .roles import Parts, Tile, consumer, first_piece, give_back, products

#: Columns of a group of sums, of which a thread has two neighbours in each of two rows.
_COLUMNS = 8
#: Scales of a step that a thread has registers for.
_MOST_SCALES = 24


def consume_scaled(parts: Parts, finish: Callable[[Tile, Any], Any]) -> Any:
    """Multiply the tiles of every step, add up what is made of its sums, then finish the total."""
    kernel = parts.plan.kernel
    one = kernel.instruction
    sums, total = (
        tirx.decl_buffer((count * one.registers,), "float32", name, scope="local")
        for name, count in (("sums", 1), ("total", kernel.pieces))
    )

    def body(tile: Tile) -> Any:
        zeros = (
            tirx.BufferStore(total, tirx.const(0, "float32"), [i])
            for i in range(int(total.shape[0]))
        )
        k = tirx.Var("k", "int32")
        scales = _Scales(parts, tile, k)
        step = _step(parts, sums, total, scales)
        steps = tirx.For(k, 0, parts.plan.steps, tirx.ForKind.SERIAL, step)
        return sequence([*zeros, *scales.first(), steps, finish(tile, total)])

    return consumer(parts, [sums, total], body)


def _step(parts: Parts, sums: Any, total: Any, scales: _Scales) -> Any:
    plan = parts.plan
    it = tirx.Var("step", "int32")
    stage = it % plan.stages
    pieces = [scales.added(piece, sums) for piece in range(plan.kernel.pieces)]
    made = [
        tirx.Bind(it, scales.tile.turn * plan.steps + scales.step),
        *scales.next(),
        asynchronous.wait_barrier(parts.full, stage, phase(it, plan.stages)),
    ]
    for piece, values in enumerate(pieces):
        made += [
            asynchronous.fence_sums(),
            *products(parts, sums, stage, 0, [piece]),
            asynchronous.commit_products(),
            asynchronous.wait_products(0),
        ]
        if piece == len(pieces) - 1:
            made.append(give_back(parts, stage))
        places = range(piece * len(values), (piece + 1) * len(values))
        for place, value in zip(places, values, strict=True):
            made.append(tirx.BufferStore(total, total[place] + value, [place]))
    return sequence(made)


class _Scales:
    """Values in registers that the sums of a step are scaled by, and those of the next step."""

    def __init__(self, parts: Parts, tile: Tile, step: Any) -> None:
        self.parts, self.tile, self.step = parts, tile, step
        #: What is loaded, the value of a step, and the register of the next step's.
        self._known: list[tuple[Any, Any, Any]] = []
        self._tiles, self._groups, self._column = (
            tirx.Var(name, "int32") for name in ("tiles", "groups", "inside")
        )
        self._analyzer = sym.Analyzer()
        self._analyzer.bind(self._column, tvm.ir.Range(0, _COLUMNS))

    def added(self, piece: int, sums: Any) -> list[Any]:
        """What each register of 64 rows adds to the total."""
        return [self._value(piece, number, sums) for number in range(int(sums.shape[0]))]

    def _value(self, piece: int, number: int, sums: Any) -> Any:
        plan, thread = self.parts.plan, self.parts.thread
        scaled = plan.kernel.scaled
        assert scaled is not None
        group, half, which = number // 4, number // 2 % 2, number % 2
        rows = (first_piece(self.parts) + piece) * 64
        row = self.tile.row + rows + row_of(thread, half)
        # Columns as tiles and groups in them, so that one scale of many columns is loaded once.
        column = self._groups * _COLUMNS + self._column
        at = dict(zip(scaled.place, (row, column), strict=True)) | {scaled.step: self.step}
        groups = {self._groups: self._tiles * (plan.tile[1] // _COLUMNS) + group}
        own = {
            self._tiles: self.tile.column // plan.tile[1],
            self._column: column_of(thread, which),
        }

        def simple(index: Any) -> Any:
            inside = self._analyzer.simplify(substitute(self._analyzer.simplify(index), groups))
            return substitute(inside, own)

        def load(node: Any) -> Any:
            if node.source.same_as(scaled.sums):
                return sums[number]
            indices = [
                tirx.min(simple(index), int(extent) - 1)
                for index, extent in zip(node.indices, node.source.shape, strict=True)
            ]
            return self._held(tirx.BufferLoad(node.source, indices))

        return tvm_ffi.structural_map(
            substitute(scaled.term, at), [(tvm.ir.TensorLoad, load)], order="post"
        )

    def _held(self, load: Any) -> Any:
        for known, var, _ in self._known:
            if tvm_ffi.structural_equal(known, load):
                return var
        if len(self._known) == _MOST_SCALES:
            raise ScheduleError(
                f"A thread would hold more than {_MOST_SCALES} scales of a step of "
                f"{self.parts.plan.kernel.instruction.name}; take fewer columns, or scales of more."
            )
        name, dtype = f"scale{len(self._known)}", str(load.source.dtype)
        var = tirx.Var(name, dtype)
        ahead = tirx.decl_buffer((1,), dtype, f"{name}_ahead", scope="local")
        self._known.append((load, var, ahead))
        return var

    def first(self) -> list[Any]:
        """Load those of the first step, once all are known."""
        made: list[Any] = [tirx.AllocBuffer(ahead) for _, _, ahead in self._known]
        return made + self._loads(tirx.IntImm("int32", 0))

    def next(self) -> list[Any]:
        """Take those of this step, and load those of the next."""
        made: list[Any] = [tirx.Bind(var, ahead[0]) for _, var, ahead in self._known]
        last = tirx.IntImm("int32", self.parts.plan.steps - 1)
        return made + self._loads(tirx.min(self.step + 1, last))

    def _loads(self, step: Any) -> list[Any]:
        # What a scale is read through is a step ahead, too, and comes before it.
        values = {self.step: step} | {var: ahead[0] for _, var, ahead in self._known}
        return [
            tirx.BufferStore(ahead, substitute(load, values), [0]) for load, _, ahead in self._known
        ]
