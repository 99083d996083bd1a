"""The rule for products of one factor whose sums meet in one value: a tile has those of all."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ...gpu.hardware import Architecture, architecture
from ...schedules import gemm_gated
from ...schedules._generic import inline
from ..any_size.any_rows import MOST_FEW, of_any_rows
from ..rule import Scheduled


def by_members(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule products as of :mod:`.gated`; None where a function is something else."""
    arch = architecture(str(target.attrs["arch"]))
    if arch.name != "sm_90a":
        return None
    extents = [n for param in func.params for n in getattr(param, "shape", ())]
    if all(isinstance(n, tirx.IntImm) for n in extents):
        return _of_rows(func, arch)
    # Columns of the instruction, as tiles of fewer rows have them, are a known number.
    return of_any_rows(func, arch, lambda known, _: _of_rows(known, arch, MOST_FEW), lambda: None)


def _of_rows(func: tirx.PrimFunc, arch: Architecture, least: int = 0) -> Scheduled | None:
    """By tiles that are fit for the rows, or for so many at least."""
    sch = s_tir.Schedule(func)
    products = inline(sch)
    found = gemm_gated.meeting(sch, products)
    if found is None:
        return None
    name, after = found
    what = products[name]
    config = gemm_gated.OPERATOR.default_config()
    sizes = (max(what.sizes[0], least), *what.sizes[1:])
    config |= gemm_gated.fit(sizes, what.operand, config, arch)
    gemm_gated.multiply(sch, name, after, config)
    return Scheduled(sch, f"{name} on tensor cores, both in tiles of {config['tile']}")
