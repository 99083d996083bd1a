"""The modelled cost: conflicts and scattered sectors cost, and the formula is the one printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_layout_ext.tune.model.cost import Counters, modelled_terms

#: A 1024x1024 float32 copy through 64x64 tiles of shared memory.
COPY = Counters(
    blocks=256, sampled=256, requests=16384, sectors=262144, ideal_sectors=262144,
    wavefronts=65536, bank_conflicts=0, barriers=256,
)  # fmt: skip


def cost(counters: Counters, flops: int = 0) -> float:
    return modelled_terms(counters, flops).cycles


def test_formula_by_hand() -> None:
    # 256 blocks on 132 multiprocessors: 2 blocks, each with 320 pipe slots and 1 barrier.
    memory = 262144 / 82
    assert cost(COPY) == pytest.approx(memory + 0.1 * 640 + 20)
    assert cost(COPY, flops=256 * 256 * 4096) == pytest.approx(8192 + 0.1 * (memory + 640) + 20)


def test_formula_of_a_known_kernel_by_hand() -> None:
    known = replace(COPY, memory=262144, resident=4, steps=1, torn=131072, chain=2000)
    # Less than a wave of blocks is half in its ramps; half of the sectors come from torn lines.
    memory = (262144 + 0.3 * 131072) / 82 * 1.5
    assert modelled_terms(known, 0).memory == pytest.approx(memory)
    assert cost(known) == pytest.approx(memory + 0.1 * 640 + 2 * 30 / 4)
    assert modelled_terms(known, 0).latency == 2000


@pytest.mark.parametrize(
    ("changes", "memory"),
    [
        # What the cache keeps does not come from memory twice; torn lines cost out of it, too.
        ({"memory": 26214, "resident": 4, "steps": 64}, 262144 / 165),
        ({"memory": 1024, "resident": 4, "steps": 64, "torn": 100_000}, (262144 + 30_000) / 165),
        # Ramps are spread over waves.
        ({"blocks": 2 * 528, "resident": 4, "steps": 1}, 1.25 * 262144 / 82),
        ({"blocks": 20 * 528, "resident": 4, "steps": 1}, 1.025 * 262144 / 82),
        # One multiprocessor takes only so much.
        ({"blocks": 8}, 262144 / 8 / 2),
    ],
)
def test_memory_is_limited_by_memory_cache_or_multiprocessor(
    changes: dict[str, int], memory: float
) -> None:
    assert modelled_terms(replace(COPY, **changes), 0).memory == pytest.approx(memory)


def test_products_are_no_multiply_adds_and_count_by_the_time_that_their_type_takes() -> None:
    flops = 256 * 2800 * 100
    known = replace(COPY, products=flops)
    assert modelled_terms(COPY, flops).arithmetic == pytest.approx(200 * 2800 / 256)
    assert modelled_terms(known, flops).arithmetic == pytest.approx(200)
    assert modelled_terms(replace(known, halves=flops // 2), flops).arithmetic == pytest.approx(100)
    assert Counters.from_json(known.to_json()) == known


def test_blocks_are_handed_out_one_by_one() -> None:
    # What bounds the transposes of 16 x 16 elements in h200_sweep_transpose_8192.jsonl.
    assert modelled_terms(replace(COPY, blocks=262144), 0).latency == pytest.approx(1.13 * 262144)


def test_latency_of_a_block_counts_once_a_wave() -> None:
    known = replace(COPY, resident=1, chain=5000, steps=8)
    assert modelled_terms(known, 0).latency == 2 * 5000
    assert modelled_terms(replace(known, resident=2), 0).latency == 5000


def test_counters_survive_json_beside_other_entries() -> None:
    assert Counters.from_json(COPY.to_json() | {"cost": 1.0}) == COPY
    assert COPY.to_json()["sectors_per_request"] == 16
    assert replace(COPY, requests=0, sectors=0).sectors_per_request == 0


def test_older_records_do_not_tell_everything() -> None:
    later = {"torn", "memory", "resident", "steps", "products", "chain"}
    old = {name: value for name, value in COPY.to_json().items() if name not in later}
    assert Counters.from_json(old) == COPY
    with pytest.raises(KeyError, match="barriers"):
        Counters.from_json({name: old[name] for name in old if name != "barriers"})
