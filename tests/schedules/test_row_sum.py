"""Row sums whose mapping is laid out by knobs."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tvm import s_tir, tirx

from tests.programs.running import gives
from tvm_layout_ext.build import device_program
from tvm_layout_ext.schedules.row_sum import OPERATOR

SHAPE = (64, 1024)


def scheduled(threads: int, lanes: int, loads: int, vector_bytes: int) -> s_tir.Schedule:
    knobs = {"threads": threads, "lanes": lanes, "loads": loads, "vector_bytes": vector_bytes}
    tensors = OPERATOR.compute(SHAPE, "float16")
    sch = OPERATOR.schedule(tensors, OPERATOR.default_config() | knobs)
    assert isinstance(sch, s_tir.Schedule)
    return sch


def loads_and_sums(sch: s_tir.Schedule) -> list[str]:
    """What the loop along a row does, in the order of its code."""
    (kernel,) = device_program(sch).kernels.values()
    order: list[str] = []

    def look(store: tirx.BufferStore) -> None:
        if str(store.buffer.name).startswith("A"):
            order.append("load")
        elif "A_" in str(store.value):
            order.append("sum")

    tvm_ffi.structural_walk(kernel.body, [(tirx.BufferStore, look)])
    return order


@pytest.mark.parametrize(
    ("threads", "lanes", "loads", "vector_bytes"),
    [
        (128, 32, 4, 16),
        (128, 128, 1, 16),
        (256, 64, 2, 16),
        (128, 32, 2, 16),
        (64, 16, 8, 16),
        (256, 128, 8, 2),
        (512, 512, 1, 4),
    ],
)
def test_a_thread_loads_all_of_a_step_before_it_adds(
    threads: int, lanes: int, loads: int, vector_bytes: int
) -> None:
    sch = scheduled(threads, lanes, loads, vector_bytes)
    parts = loads * vector_bytes // 2
    assert loads_and_sums(sch) == ["load"] * loads + ["sum"] * parts
    value = np.random.default_rng(0).integers(-8, 8, SHAPE).astype("float16")
    report = gives(sch, value, None, B=value.astype("float32").sum(1))
    loads_of = [access for access in report.accesses if access.buffer == "A"]
    assert {access.vector_bytes for access in loads_of} == {vector_bytes}
    assert sum(access.sectors for access in loads_of) == value.nbytes // 32
