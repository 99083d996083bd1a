"""The rule for products of one factor whose sums meet in one value: a tile has those of all."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ...gpu.hardware import architecture
from ...schedules import gemm_gated
from ...schedules._generic import inline
from ..rule import Scheduled


def by_members(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule products as of :mod:`.gated`; None where a function is something else."""
    arch = architecture(str(target.attrs["arch"]))
    sch = s_tir.Schedule(func)
    products = inline(sch)
    found = gemm_gated.meeting(sch, products)
    if arch.name != "sm_90a" or found is None:
        return None
    name, after = found
    what = products[name]
    config = gemm_gated.OPERATOR.default_config()
    config |= gemm_gated.fit(what.sizes, what.operand, config, arch)
    gemm_gated.multiply(sch, name, after, config)
    return Scheduled(sch, f"{name} on tensor cores, both in tiles of {config['tile']}")
