"""A language model with TVM's paged cache: prompts and decoding of any batch, in one module."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.relax.backend.cuda import pipeline as stock

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


def test_it_compiles_and_every_function_of_any_batch_is_right() -> None:
    before = fused(decoder(TINY, TARGET)[0])
    found = scheduled(before)
    assert {one.name for one in found if one.choice.fell_back} <= _OF_THE_CACHE
    for one in found:
        if one.name not in _OF_THE_CACHE:
            check(one)
    kernels = {
        gv.name_hint
        for gv, one in before.functions.items()
        if isinstance(one, tirx.PrimFunc) and one.attrs.get(IS_SCHEDULED, 0)
    }
    assert {"batch_prefill_ragged_kv", "batch_decode_paged_kv"} <= kernels
    assert not kernels & {one.name for one in found}
    after = tvm.IRModule(dict(before.functions.items()), attrs=before.attrs)
    for one in found:
        after[one.name] = one.after
    rest = [*stock.dataflow_lower_passes(TARGET), *stock.finalize_passes(TARGET)]
    built = tvm.compile(after, TARGET, relax_pipeline=tvm.transform.Sequential(rest))
    assert isinstance(built, relax.VMExecutable)
