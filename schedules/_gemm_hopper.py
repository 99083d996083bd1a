"""The matrix product by warpgroups: TMA, mbarriers and ``wgmma``, on ``sm_90a``."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_layout_ext.tune.space.knobs import Config

__all__ = ["multiply"]

#: Rows that a warpgroup multiplies at a time, and depth of a step: 128 bytes.
_ROWS, _DEPTH = 64, 64
#: Warpgroups that multiply tiles of so many rows.
CONSUMERS = {64: 1, 128: 2, 192: 3, 256: 2}


def multiply(sch: s_tir.Schedule, block: Any, config: Config) -> None:
    """Schedule a product, and what is computed from it element by element, for warpgroups."""
    tile_m, tile_n = int(config["tile_m"]), int(config["tile_n"])
    consumers = CONSUMERS[tile_m]
    tc = sch.use_tensor_core(block, "wgmma", multiples=(tile_m, tile_n, _DEPTH))
    m, warpgroup, piece = sch.split(tc.m, [None, consumers, tile_m // _ROWS // consumers])
    sch.reorder(m, tc.n, warpgroup, tc.k, piece)
    sch.rasterize(m, tc.n, int(config["group"]))
    if int(config["persistent"]):
        sch.persistent(m)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.pipeline(tc.k, int(config["stages"]))
    sch.specialize_warps(warpgroup)
    sch.reverse_compute_at(tc.result, tc.n)
