"""A language model with TVM's paged cache: a prompt and decoding of any batch, in one module."""

from __future__ import annotations

import functools

import tvm
from tvm import relax, tirx

import tvm_layout_ext as tlx
from benchmarks.llm import Sizes, decoder
from tests.models.running import TARGET, check, fused, scheduled
from tvm_layout_ext.ir.ops import IS_SCHEDULED

TINY = Sizes(layers=1, dims=64, heads=4, groups=2, wide=96, words=50)
#: What TVM writes for the cache without a schedule, in forms that only its own rules take.
_OF_THE_CACHE = {
    "tir_kv_cache_transpose_append",
    "tir_kv_cache_transpose_append_mla",
    "tir_kv_cache_debug_get_kv",
}


@functools.cache
def module() -> tvm.IRModule:
    return decoder(TINY, TARGET)[0]


def test_it_compiles_and_kernels_of_the_cache_stay_as_they_are() -> None:
    built = tvm.compile(module(), TARGET, relax_pipeline=tlx.relax_pipeline(TARGET))
    assert isinstance(built, relax.VMExecutable)
    before = fused(module())
    with TARGET:
        after = tlx.DefaultSchedule()(before)
    kernels = {
        gv.name_hint: one
        for gv, one in before.functions.items()
        if isinstance(one, tirx.PrimFunc) and one.attrs.get(IS_SCHEDULED, 0)
    }
    assert {"batch_prefill_ragged_kv", "batch_decode_paged_kv"} <= set(kernels)
    assert all(after[name].same_as(one) for name, one in kernels.items())


def test_functions_of_any_batch_are_right() -> None:
    found = {one.name: one for one in scheduled(module())}
    fallen = {name for name, one in found.items() if one.choice.fell_back}
    assert fallen <= _OF_THE_CACHE
    for name, one in found.items():
        if name not in _OF_THE_CACHE:
            check(one)
