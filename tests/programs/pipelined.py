"""Loops that copy tiles into shared memory and add them up, for the tests of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import s_tir

THREADS, WIDE = 32, 4
TILE = THREADS * WIDE


def _alloc(size: int, dtype: str, scope: str) -> str:
    return f"T.sblock_alloc_buffer(({size},), '{dtype}', scope='{scope}')"


@dataclass(frozen=True)
class Stream:
    """A kernel of one warp that adds up the tiles of its ``loads`` inputs, each tile turned round.

    So every thread reads what another one copied. The last tile of a ``ragged`` one may be cut off
    anywhere; it is then filled with zeros.
    """

    loads: int = 1
    ragged: bool = False
    dtype: str = "float32"

    def source(self) -> str:
        """The program, for any number n of tiles and any length."""
        names = [f"A{i}" for i in range(self.loads)]
        size = "length" if self.ragged else f"n * {TILE}"
        where, mirrored = f"k * {TILE} + t * {WIDE} + v", f"{TILE - 1} - (t * {WIDE} + i)"
        guard = f"T.if_then_else({where} < length, {{}}, T.{self.dtype}(0))"
        copies = "".join(
            f"""
                    for v in T.vectorized({WIDE}):
                        with T.sblock("{a}_shared"):
                            T.reads({a}[{where}])
                            T.writes({a}_shared[t * {WIDE} + v])
                            {a}_shared[t * {WIDE} + v] = {value}"""
            for a in names
            for value in [(guard if self.ragged else "{}").format(f"{a}[{where}]")]
        )
        read = [f"{a}_shared[{mirrored}]" for a in names]
        terms = [f"{one} * T.{self.dtype}({j + 1})" for j, one in enumerate(read)]
        declared = [f"{a} = T.match_buffer({a.lower()}, ({size},), '{self.dtype}')" for a in names]
        held = [f"{a}_shared = {_alloc(TILE, self.dtype, 'shared')}" for a in names]
        return f"""
@T.prim_func(s_tir=True)
def main({", ".join(f"{a.lower()}: T.handle" for a in names)}, b: T.handle,
         n: T.int32, length: T.int32):
    {"; ".join(declared)}
    B = T.match_buffer(b, ({TILE},), "{self.dtype}")
    for x in T.thread_binding(1, thread="blockIdx.x"):
        for t in T.thread_binding({THREADS}, thread="threadIdx.x"):
            with T.sblock("all"):
                {"; ".join(held)}
                acc = {_alloc(WIDE, self.dtype, "local")}
                for i in T.unroll({WIDE}):
                    acc[i] = T.{self.dtype}(0)
                for k in range(n):{copies}
                    for i in T.unroll({WIDE}):
                        with T.sblock("sum"):
                            T.reads(acc[i], {", ".join(read)})
                            T.writes(acc[i])
                            acc[i] = acc[i] + {" + ".join(terms)}
                for i in T.unroll({WIDE}):
                    B[t * {WIDE} + i] = acc[i]
"""

    def schedule(self, stages: int | tuple[int, ...], async_copy: bool | str = "auto") -> Any:
        """The program with ``stages`` versions of each buffer."""
        sch = s_tir.Schedule(tvm.script.from_source(self.source()))
        each = (stages,) * self.loads if isinstance(stages, int) else stages
        for i, number in enumerate(each):
            sch.double_buffer(f"A{i}_shared", number, async_copy=async_copy)
        return sch

    def inputs(self, tiles: int, cut: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Small integers, so that sums are exact in any order; ``cut`` elements are missing."""
        size = tiles * TILE - (cut if self.ragged else 0)
        return [rng.integers(-8, 8, max(size, 0)).astype(self.dtype) for _ in range(self.loads)]

    def expected(self, arrays: list[np.ndarray], tiles: int) -> np.ndarray:
        """What the kernel must give."""
        out = np.zeros(TILE, self.dtype)
        for j, array in enumerate(arrays):
            whole = np.zeros(tiles * TILE, self.dtype)
            whole[: len(array)] = array
            out += whole.reshape(tiles, TILE).sum(0, dtype=self.dtype)[::-1] * (j + 1)
        return out
