"""The modelled cost: conflicts and scattered sectors cost, and the formula is the one printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_layout_ext.tune.cost import Counters, modelled_terms

#: A 1024x1024 float32 copy through 64x64 tiles of shared memory.
COPY = Counters(
    blocks=256, sampled=256, requests=16384, sectors=262144, ideal_sectors=262144,
    wavefronts=65536, bank_conflicts=0, barriers=256,
)  # fmt: skip


def cost(counters: Counters, flops: int = 0) -> float:
    return modelled_terms(counters, flops).cost


def test_formula_by_hand() -> None:
    # 256 blocks on 132 multiprocessors: 2 blocks, each with 320 pipe slots and 1 barrier.
    memory = 262144 / 82
    assert cost(COPY) == pytest.approx(memory + 0.2 * 640 + 20)
    assert cost(COPY, flops=256 * 256 * 4096) == pytest.approx(8192 + 0.2 * (memory + 640) + 20)


def test_few_blocks_are_limited_by_what_one_multiprocessor_takes() -> None:
    assert modelled_terms(replace(COPY, blocks=8), 0).memory == 262144 / 8 / 2


def test_conflicts_cost_even_while_memory_is_the_limit() -> None:
    twice = replace(COPY, wavefronts=131072, bank_conflicts=65536)
    assert cost(COPY) < cost(twice) < cost(replace(COPY, wavefronts=33 * 32768))


def test_scattered_sectors_cost() -> None:
    assert cost(replace(COPY, sectors=8 * COPY.sectors)) > 4 * cost(COPY)


def test_idle_multiprocessors_cost() -> None:
    few = replace(COPY, blocks=16)
    assert cost(few) > 2 * cost(COPY)


def test_counters_survive_json_beside_other_entries() -> None:
    assert Counters.from_json(COPY.to_json() | {"cost": 1.0}) == COPY
    assert COPY.to_json()["sectors_per_request"] == 16


def test_kernel_without_global_access_has_no_sectors_a_request() -> None:
    assert replace(COPY, requests=0, sectors=0).sectors_per_request == 0
