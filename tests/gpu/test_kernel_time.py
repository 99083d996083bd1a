"""The model of a kernel's time: each part of the GPU can be the one that takes longest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_layout_ext.gpu.hardware import MULTIPROCESSORS
from tvm_layout_ext.gpu.kernel_time import (
    AccessWork,
    KernelWork,
    kernel_seconds,
    kernel_terms,
    modelled_seconds,
)
from tvm_layout_ext.gpu.measured import H200

SECTORS = 1 << 22
LOAD = AccessWork(
    "A", "load", "global", 16, SECTORS / 16, SECTORS, SECTORS, SECTORS / 4, SECTORS,
    memory=SECTORS, rounds=1,
)  # fmt: skip
READ = KernelWork(8192, 256, 8, (LOAD,), instructions=SECTORS / 4)


def longest(work: KernelWork) -> str:
    terms = kernel_terms(work)
    return max(terms, key=terms.__getitem__)


def changed(**facts: float) -> KernelWork:
    return replace(READ, accesses=(replace(LOAD, **facts),))


@pytest.mark.parametrize(
    ("work", "part"),
    [
        (READ, "memory"),
        (changed(through=8 * SECTORS), "l2"),
        (replace(READ, blocks=4), "own"),
        (changed(wavefronts=2 * SECTORS), "pipe"),
        (replace(READ, instructions=16 * SECTORS), "issue"),
        (changed(rounds=1000), "latency"),
        (replace(READ, blocks=1 << 20, resident=32), "blocks"),
    ],
)
def test_every_part_can_be_the_longest(work: KernelWork, part: str) -> None:
    assert longest(work) == part
    assert kernel_seconds(work) > kernel_terms(work)[part]


def test_bytes_take_the_time_of_the_memory() -> None:
    assert kernel_terms(READ)["memory"] == pytest.approx(SECTORS * 32 / H200.memory)


def test_one_block_has_one_multiprocessor() -> None:
    few, many = (kernel_terms(replace(READ, blocks=n))["own"] for n in (1, MULTIPROCESSORS))
    assert few == pytest.approx(MULTIPROCESSORS * many)


def test_loads_that_the_first_cache_has_are_hardly_waited_for() -> None:
    near, far = changed(rounds=1000, through=0.0), changed(rounds=1000)
    assert 5 * kernel_terms(near)["latency"] < kernel_terms(far)["latency"]


def test_sectors_of_torn_lines_cost_more() -> None:
    assert kernel_terms(changed(torn=SECTORS))["memory"] > 1.2 * kernel_terms(READ)["memory"]


def test_a_second_kernel_starts_before_the_first_one_ends() -> None:
    earlier = H200.launch - H200.next_launch
    assert modelled_seconds([READ, READ]) == pytest.approx(2 * kernel_seconds(READ) - earlier)
    small = replace(READ, blocks=1, accesses=(), instructions=0.0)
    assert kernel_seconds(small) > H200.launch


def test_no_kernel_takes_forever() -> None:
    assert modelled_seconds([]) == float("inf")
