"""Attention over TVM's paged cache: kernels of ours with the parameters and results of TVM's."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tvm import tirx
from tvm.relax.frontend.nn.llm import kv_cache as stock

from benchmarks import llm
from tests.models.running import TARGET
from tvm_layout_ext import cuda_target, simulate
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.ir.annotations import MARK
from tvm_layout_ext.models.paged.attention import ROLES, on_tensor_cores
from tvm_layout_ext.models.paged.cache import PagedCache

GPU = architecture("sm_90a")
GROUPS, HEAD, PAGE = 2, 64, 16
SCALE = 0.2
#: What TVM's kernels take for the logarithm of a sum of nothing.
NOTHING = -5e4
SIZES = llm.Sizes(layers=1, dims=128, heads=2, groups=1, wide=96, words=50)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype("float16")


def places(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype("int32")


def expected(q: Any, k: Any, v: Any, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Means of the values of a sequence, and base-two logarithms of sums of weights."""
    shared = q.shape[1] // GROUPS
    k, v = (np.repeat(one.astype("float64"), shared, 1) for one in (k, v))
    scores = np.einsum("qhd,khd->hqk", q.astype("float64"), k) * SCALE
    if causal:
        scores[:, ~np.tri(len(q), len(k), len(k) - len(q), dtype=bool)] = -np.inf
    sums = np.exp(scores).sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", np.exp(scores) / sums, v), np.log2(sums)[..., 0].T


def run(place: int, func: Any, *given: Any, launches: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Results of our kernel in the place of TVM's; the flags of a rotation are not read."""
    made = on_tensor_cores(func, ROLES[place], GPU).with_attr("global_symbol", "main")
    rest = 0, 1.0, 1e4, SCALE
    report = simulate(made, *given, *rest, target=TARGET, progress=False)
    assert not report.hazards
    assert len(report.launches) == launches
    return report.outputs["output"], report.outputs["lse"]


def near(found: tuple[Any, Any], want: tuple[Any, Any]) -> None:
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


@pytest.mark.costly
@pytest.mark.parametrize(("shared", "causal"), [(2, 1), (3, 0)])
def test_prompts_see_their_own_keys(shared: int, causal: int) -> None:
    first = places([5, 0, 70, 1])
    count, heads = int(first[-1]), shared * GROUPS
    q, (k, v) = drawn(count, heads, HEAD), drawn(2, count, GROUPS, HEAD)
    tvms = stock._attention_prefill_ragged(GROUPS, heads, HEAD, HEAD, "float16", {}, TARGET)
    nowhere = np.zeros(count, "int32"), np.zeros(4, "int32")
    outputs = np.zeros_like(q), np.zeros((count, heads), "float32")
    found = run(16, tvms, q, first, k, v, first, *nowhere, *outputs, causal)
    for a, b in pairwise(first):
        near((found[0][a:b], found[1][a:b]), expected(q[a:b], k[a:b], v[a:b], bool(causal)))


#: Queries and keys of each sequence; two blocks share the keys of one of the last two.
PAGED = [
    ([5, 2, 9, 40], [40, 17, 0, 200]),
    ([1, 1, 1, 1], [40, 17, 0, 200]),
    ([1, 1], [0, 1040]),
]


@pytest.mark.costly
@pytest.mark.parametrize(("counts", "lengths"), PAGED)
def test_prompts_and_tokens_see_the_keys_of_their_pages(
    counts: list[int], lengths: list[int]
) -> None:
    heads = 4
    begins, first = places([-(-n // PAGE) for n in lengths]), places(counts)
    pages = np.full((int(begins[-1]) + 3, 2, GROUPS, PAGE, HEAD), np.nan, "float16")
    numbers = np.random.default_rng(0).permutation(len(pages))[: begins[-1]].astype("int32")
    last = np.array([(n - 1) % PAGE + 1 if n else 0 for n in lengths], "int32")
    held = drawn(*pages.shape)
    for i, (a, b) in enumerate(pairwise(begins)):
        for page, tokens in zip(numbers[a:b], [*[PAGE] * (b - a - 1), last[i]], strict=False):
            pages[page, :, :, :tokens] = held[page, :, :, :tokens]  # The rest was never written.
    count = int(first[-1])
    q, nowhere = drawn(count, heads, HEAD), np.zeros(len(counts), "int32")
    outputs = np.zeros_like(q), np.zeros((count, heads), "float32")
    if max(counts) == 1:
        tvms = stock._attention_decode(GROUPS, heads, HEAD, "float16", False, {}, TARGET)
        given = q, pages, begins, numbers, last, nowhere, nowhere, *outputs
        found = run(18, tvms, *given, launches=2 if max(lengths) > 1000 else 1)
    else:
        tvms = stock._attention_prefill(GROUPS, heads, HEAD, "float16", False, {}, TARGET)
        given = pages, begins, numbers, last, nowhere, np.zeros(count, "int32")
        found = run(17, tvms, q, first, *given, *outputs, 0)
    for i, (a, b) in enumerate(pairwise(first)):
        own = pages[numbers[begins[i] : begins[i + 1]]].swapaxes(2, 3)
        k, v = (own[:, side].reshape(-1, GROUPS, HEAD)[: lengths[i]] for side in (0, 1))
        none = np.zeros((b - a, heads, HEAD)), np.full((b - a, heads), NOTHING)
        near((found[0][a:b], found[1][a:b]), expected(q[a:b], k, v, False) if lengths[i] else none)


def replaced(target: Any) -> set[str]:
    mod = llm.decoder(SIZES, TARGET)[0]
    with target:
        after = PagedCache()(mod)
    ours = {gv for gv, one in after.functions.items() if isinstance(one, tirx.PrimFunc)}
    ours = {gv for gv in ours if after[gv].attrs.get(MARK, 0)}
    for gv in ours:
        assert list(after[gv].params) == list(mod[gv.name_hint].params)
    return {gv.name_hint for gv in ours}


def test_three_functions_of_a_cache_are_replaced() -> None:
    names = {f"batch_{one}_kv" for one in ("prefill_ragged", "prefill_paged", "decode_paged")}
    assert replaced(TARGET) == names
    assert replaced(cuda_target("sm_80")) == set()


def test_keys_that_kernels_turn_themselves_stay_with_tvm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inline = SimpleNamespace(NORMAL=stock.RopeMode.INLINE)
    monkeypatch.setattr(llm, "RopeMode", inline)
    assert replaced(TARGET) == set()
    assert "It stays TVM's. Its keys are turned inside of the kernel." in caplog.text


def test_other_heads_and_parameters_are_refused() -> None:
    narrow = stock._attention_decode(2, 4, 32, "float16", False, {}, TARGET)
    with pytest.raises(ScheduleError, match="Heads of 32 and 32 columns"):
        on_tensor_cores(narrow, ROLES[18], GPU)
    many = stock._attention_decode(1, 128, 64, "float16", False, {}, TARGET)
    with pytest.raises(ScheduleError, match=r"128 heads of 64 .* at most 64 each"):
        on_tensor_cores(many, ROLES[18], GPU)
    window = stock._attention_decode(2, 4, 64, "float16", True, {}, TARGET)
    with pytest.raises(ScheduleError, match=r"Its parameters are qpii\?iiqsnxxx, not"):
        on_tensor_cores(window, ROLES[18], GPU)
