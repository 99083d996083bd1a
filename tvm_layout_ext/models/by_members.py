"""The rule for products of one factor whose sums meet in one value: a tile has those of all."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ..gpu.hardware import architecture
from ..schedules import gemm_gated
from ..schedules._generic import inline
from ..transform.hopper.members import are_read
from .rule import Scheduled


def by_members(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule products as of :mod:`.gated`; None where a function is something else."""
    arch = architecture(str(target.attrs["arch"]))
    sch = s_tir.Schedule(func)
    products = inline(sch)
    if arch.name != "sm_90a" or len(products) != 1:
        return None
    ((name, what),) = products.items()
    readers = sch.get_consumers(name)
    if len(what.batch) != 1 or len(readers) != 1:
        return None
    after = sch.get(readers[0])
    if not are_read(after.body.value, sch.get(sch.get_sblock(name)).writes[0].source):
        return None
    config = gemm_gated.OPERATOR.default_config()
    config |= gemm_gated.fit(what.sizes, what.operand, config, arch)
    gemm_gated.multiply(sch, name, after.name_hint, config)
    return Scheduled(sch, f"{name} on tensor cores, both in tiles of {config['tile']}")
