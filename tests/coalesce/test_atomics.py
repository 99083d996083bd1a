from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir
from tvm.script import tirx as T

from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError


@T.prim_func(s_tir=True)
def histogram(A: T.Buffer((4100,), "int32"), B: T.Buffer((64,), "int32")):
    for i in range(4100):
        with T.sblock("B"):
            v = T.axis.spatial(4100, i)
            T.reads(A[v])
            T.writes(B[0:64])
            T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(B[A[v] % 64]), 1))


@T.prim_func(s_tir=True)
def column_sums(A: T.Buffer((64, 128), "float32"), B: T.Buffer((128,), "float32")):
    for j, i in T.grid(128, 64):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, vj])
            T.writes(B[vj])
            T.evaluate(T.cuda.atomic_add(T.address_of(B[vj]), A[vi, vj]))


@T.prim_func(s_tir=True)
def claims(A: T.Buffer((256,), "int32"), B: T.Buffer((256,), "int32")):
    for i in range(256):
        with T.sblock("B"):
            v = T.axis.spatial(256, i)
            T.reads(A[v])
            T.writes(B[v])
            T.evaluate(T.cuda.atomic_cas(T.address_of(B[v]), 0, A[v]))


def mapped(func: Any) -> tuple[Any, Any]:
    sch = s_tir.Schedule(func)
    outcome = sch.auto_coalesce("B")
    assert outcome.path == "direct"
    return sch, outcome


def test_a_histogram_loads_neighbours_and_counts_right() -> None:
    a = np.random.default_rng(0).integers(0, 1000, 4100).astype("int32")
    sch, _ = mapped(histogram)
    report = gives(sch, a, np.zeros(64, "int32"), B=np.bincount(a % 64, minlength=64))
    load = next(access for access in report.accesses if access.buffer == "A")
    assert (load.vector_bytes, load.sectors) == (4, load.ideal_sectors)


def test_lanes_add_to_neighbours_rather_than_in_turns_to_one_element() -> None:
    a = np.random.default_rng(0).integers(0, 100, (64, 128)).astype("float32")
    sch, outcome = mapped(column_sums)
    report = gives(sch, a, np.zeros(128, "float32"), B=a.sum(0))
    found = {access.kind: (access.vector_bytes, access.sectors) for access in report.accesses}
    assert found == {"atomic": (4, 1024), "load": (4, 1024)}
    before = {traffic.kind: traffic.sectors for traffic in outcome.before}
    assert before == {"atomic": 32, "load": 32}


def test_compare_and_swap_takes_one_element() -> None:
    sch, outcome = mapped(claims)
    assert {traffic.vector_bytes for traffic in outcome.after} == {4}
    a = np.arange(256).astype("int32")
    held = np.where(a % 3 == 0, 7, 0).astype("int32")
    gives(sch, a, held, B=np.where(held == 0, a, held))


def test_atomics_are_never_staged() -> None:
    sch = s_tir.Schedule(column_sums)
    assert sch.auto_coalesce("B", stage="shared").path == "direct"


def test_other_calls_are_still_opaque() -> None:
    @T.prim_func(s_tir=True)
    def other(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
        for i in range(64):
            with T.sblock("B"):
                v = T.axis.spatial(64, i)
                T.reads(A[v])
                T.writes(B[v])
                T.evaluate(T.call_extern("int32", "put", T.address_of(B[v]), A[v]))

    with pytest.raises(ScheduleError, match=r"Block B is opaque.*atomics on, buffer elements"):
        s_tir.Schedule(other).auto_coalesce("B")
