"""A language model with TVM's paged cache: prompts and decoding of any batch, in one module."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax.backend.cuda import pipeline as stock

from benchmarks.llm import Sizes, decoder
from tests.models import running
from tests.models.running import TARGET, check, fused, scheduled
from tvm_layout_ext.ir.ops import IS_SCHEDULED

TINY = Sizes(layers=1, dims=64, heads=4, groups=2, wide=96, words=50)
#: Of 9 tokens: none, or one place each.
_PLACES = np.random.default_rng(0).permutation(np.arange(-1, 8)).astype("int32")


def test_it_compiles_and_every_function_of_any_batch_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "SIZE", len(_PLACES))
    before = fused(decoder(TINY, TARGET)[0])
    found = scheduled(before)
    assert not [one.name for one in found if one.choice.fell_back]
    # Products by wgmma are those of test_whole_tiles.
    for one in (one for one in found if one.choice.rule != "warpgroups"):
        reads = one.name == "tir_kv_cache_debug_get_kv"
        check(one, position_map=np.abs(_PLACES) if reads else _PLACES, layer_id=0)
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
