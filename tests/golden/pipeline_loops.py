"""Loops in TIR that load and use what Triton's kernels of the golden cases load and use.

What a loop computes from its tiles does not matter to a pipeline, so one read of each element
stands for a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import s_tir

import tvm_layout_ext as tlx

#: TVM's names of Triton's element types.
TYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "i8": "int8",
    "i32": "int32",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
}


@dataclass(frozen=True)
class Tile:
    """A tile that each iteration loads.

    ``index`` is the tile of indices that its rows are gathered by, if any. The tensor is
    ``aligned`` if it is known to start at a multiple of 16 bytes, ``dense`` if its rows follow
    each other.
    Rows of a ``masked`` one past a bound are zeros. One ``in_registers`` changes after the load.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    index: str = ""
    aligned: bool = True
    dense: bool = True
    masked: bool = False
    in_registers: bool = False

    @property
    def elements(self) -> int:
        """Of a tile."""
        return prod(self.shape)

    @property
    def vector(self) -> int:
        """Elements of 16 bytes, or of a thread's share if that is less; gathered ones are apart."""
        if self.index and len(self.shape) == 1:
            return 1
        return min(128 // tvm.DataType(self.dtype).bits, max(1, self.shape[-1]))


@dataclass(frozen=True)
class Loop:
    """A loop over tiles, loaded in order.

    ``uses`` has the tiles that each statement reads that computes; it comes after the last of them.
    """

    tiles: Sequence[Tile]
    uses: Sequence[Sequence[str]]
    threads: int = 128

    def source(self) -> str:
        """The program, for any number n of iterations."""
        bound = ", bound: T.int32" if any(t.masked for t in self.tiles) else ""
        lines = [
            "@T.prim_func(s_tir=True)",
            f"def main({''.join(f'{t.name.lower()}: T.handle, ' for t in self.tiles)}"
            f"out: T.handle, n: T.int32{bound}):",
        ]
        for t in self.tiles:
            extra = "" if t.aligned else ", align=2, offset_factor=1"
            if not t.dense:
                lines.append(f"    {t.name}_row = T.int32()")
                extra += f", strides=({t.name}_row, 1)"
            lines.append(
                f"    {t.name} = T.match_buffer({t.name.lower()}, ({self._rows(t)}), "
                f"'{t.dtype}'{extra})"
            )
        lines += [
            f"    OUT = T.match_buffer(out, ({self.threads},), 'float32')",
            "    for x in T.thread_binding(1, thread='blockIdx.x'):",
            f"        for t in T.thread_binding({self.threads}, thread='threadIdx.x'):",
            "            with T.sblock('all'):",
        ]
        lines += [
            f"                {t.name}_shared = T.sblock_alloc_buffer({t.shape}, '{t.dtype}', "
            "scope='shared.dyn')"
            for t in self.tiles
        ]
        lines.append("                for k in range(n):")
        done: set[str] = set()
        for tile in self.tiles:
            lines += [" " * 20 + line for line in self._copy(tile)]
            done.add(tile.name)
            for number, use in enumerate(self.uses):
                if use[-1] == tile.name:
                    lines += [" " * 20 + line for line in self._use(number, use)]
        return "\n".join(lines)

    def _rows(self, tile: Tile) -> str:
        return f"n * {tile.shape[0]}, {', '.join(map(str, tile.shape[1:]))}"

    def _copy(self, tile: Tile) -> list[str]:
        """Spread a tile's vectors over the threads."""
        vector = tile.vector
        rounds = max(1, prod(tile.shape) // (self.threads * vector))
        width = tile.shape[-1]
        flat = f"((r * {self.threads} + t) * {vector} + v)"
        if len(tile.shape) == 1:
            to, row, column = flat, flat, ""
        else:
            row, column = f"{flat} // {width}", f", {flat} % {width}"
            to = row + column
        first = f"{tile.index}_shared[{row}]" if tile.index else f"k * {tile.shape[0]} + {row}"
        reads = (
            f"{tile.name}[0:n * {tile.shape[0]}"
            + "".join(f", 0:{extent}" for extent in tile.shape[1:])
            + "]"
            if tile.index
            else f"{tile.name}[{first}{column}]"
        )
        if tile.index:
            reads += f", {first}"
        value = f"{tile.name}[{first}{column}]"
        if tile.masked:
            value = f"T.if_then_else({first} < bound, {value}, T.Cast('{tile.dtype}', 0))"
        guard = self.threads * vector > prod(tile.shape)
        lines = [f"for r in T.serial({rounds}):", f"    for v in T.vectorized({vector}):"]
        if guard:
            lines += [f"        if {flat} < {prod(tile.shape)}:"]
        pad = " " * (12 if guard else 8)
        return [
            *lines,
            f"{pad}with T.sblock('{tile.name}_shared'):",
            f"{pad}    T.reads({reads})",
            f"{pad}    T.writes({tile.name}_shared[{to}])",
            f"{pad}    {tile.name}_shared[{to}] = {value}",
        ]

    def _use(self, number: int, names: Sequence[str]) -> list[str]:
        """Add up one element of each tile's every row (or every element of a vector)."""
        tiles = [t for t in self.tiles if t.name in names]
        terms, reads = [], []
        for tile in tiles:
            zeros = ", ".join("0" for _ in tile.shape[1:])
            place = f"(t + 1) % {tile.shape[0]}" + (f", {zeros}" if zeros else "")
            terms.append(f"T.Cast('float32', {tile.name}_shared[{place}])")
            reads.append(
                f"{tile.name}_shared[0:{tile.shape[0]}"
                + "".join(f", 0:{e}" for e in tile.shape[1:])
                + "]"
            )
        return [
            f"with T.sblock('use{number}'):",
            f"    T.reads(OUT[t], {', '.join(reads)})",
            "    T.writes(OUT[t])",
            f"    OUT[t] = OUT[t] + {' + '.join(terms)}",
        ]

    def kinds(self, kind: str) -> dict[str, str]:
        """What multiplies each tile; what is read into registers is free as early as there."""
        return {t.name: "mma.sync" if t.in_registers else kind for t in self.tiles}

    def versions(self, stages: int, kind: str) -> dict[str, int]:
        """What Triton's stages mean for each tile."""
        kinds = self.kinds(kind)
        return {name: tlx.versions_for_triton_stages(stages, k) for name, k in kinds.items()}

    def schedule(
        self, versions: dict[str, int], only: Sequence[str] = (), *, async_copy: bool | str = "auto"
    ) -> Any:
        """The loop with so many versions of its tiles, or of some of them."""
        sch = s_tir.Schedule(tvm.script.from_source(self.source()))
        for tile in self.tiles:
            if not only or tile.name in only:
                sch.double_buffer(f"{tile.name}_shared", versions[tile.name], async_copy=async_copy)
        return sch
