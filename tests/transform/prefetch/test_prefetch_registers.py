"""Pass PrefetchSharedToRegister: what it emits, its results, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.prefetched import beside, nested, scheduled, simulated
from tests.programs.products import simulated as simulated_product
from tests.programs.running import gives
from tests.sampling import pairs
from tests.schedule.primitives.test_use_tensor_core import TYPES
from tests.schedules.test_gemm import SMALL
from tests.schedules.test_gemm import scheduled as gemm
from tvm_layout_ext import ScheduleError, decisions

TARGET = tlx.cuda_target("sm_90a")


def events(sch: s_tir.Schedule) -> str:
    """Order of loads (l), uses (u), copies (c), commits (;), waits (w), barriers (b), loops."""
    text = str(tlx.lower(sch.mod, target=TARGET).script())
    signs = {
        r"a_shared_local\[\d+\] = ": "l",
        r"= out_1\[threadIdx_x\] \+ ": "u",
        r'4, "async"': "c",
        "commit_group": ";",
        "wait_group": "w",
        "tvm_storage_sync": "b",
        r"for k_0 ": "(",
    }
    found = ""
    for line in text.splitlines():
        found += "".join(sign for pattern, sign in signs.items() if re.search(pattern, line))
    return found


def test_the_last_step_loads_the_first_of_the_next_chunk() -> None:
    """Copies lie between the steps, and the barrier before the last use."""
    assert events(scheduled(4, 4, 3)) == "cccc;cccc;wbl(lculculcc;uwbluw"


def test_without_a_pipeline_loads_run_ahead_inside_the_chunk() -> None:
    text = events(scheduled(4, 4, 1))
    assert text[text.index("l") :] == "llululuu"


def test_two_steps_in_turn_have_registers_of_their_own() -> None:
    text = str(tlx.lower(scheduled(4, 4, 3).mod, target=TARGET).script())
    loads = re.findall(r"a_shared_local\[(\d+)\] = ", text)
    uses = re.findall(r"\+ a_shared_local\[(\d+)\]", text)
    assert loads == ["0", "4", "0", "4", "0"]
    assert uses == ["0", "4", "0", "4"]


@pytest.mark.matrix
@pairs(
    stages=[1, 2, 3, 4],
    steps=[1, 2, 3, 4, 5],
    chunks=[1, 2, 3, 5, "n"],
)
def test_results_stay_and_nothing_races(chunks: Any, steps: int, stages: int) -> None:
    for size in (1, 2, 3, 6) if chunks == "n" else (chunks,):
        assert simulated(scheduled(chunks, steps, stages), size, steps).hazards == []


@pytest.mark.matrix
@pairs(
    stages=[1, 2, 3, 4],
    tile_k=[32, 64],
    shape=[(64, 64, 32), (192, 128, 160), (200, 72, 88), (64, 64, 16)],
)
def test_a_product_keeps_its_results_free_of_hazards(
    stages: int, tile_k: int, shape: tuple[int, int, int]
) -> None:
    product = replace(TYPES["f16"], shape=shape)
    config = SMALL | {"stages": stages, "tile_k": tile_k, "prefetch": 1}
    report = simulated_product(product, gemm(product, config))
    assert report.hazards == []
    assert report.bank_conflicts == 0


def test_a_part_whose_result_is_read_later_is_no_load() -> None:
    """One row of blocks of a batch: a loop around the whole product and what is done with it."""
    product = replace(TYPES["f16"], shape=(40, 70, 24), batch=3, epilogue=True)
    report = simulated_product(product, gemm(product, SMALL | {"prefetch": 1, "stages": 1}))
    assert report.hazards == []


def test_a_load_inside_a_step_is_refused() -> None:
    told = r"b_shared_local .* inside a step of loop k_0, which prefetches a_shared_local"
    with pytest.raises(ScheduleError, match=told):
        tlx.lower(nested().mod, target=TARGET)


@pytest.mark.parametrize(("stages", "where"), [(1, "inside it"), (3, "across loop k_0")])
def test_it_tells_how_far_loads_run_ahead(stages: int, where: str) -> None:
    with decisions.collect() as made:
        tlx.lower(scheduled(4, 4, stages).mod, target=TARGET)
    (told,) = [d for d in made if "PrefetchSharedToRegister" in str(d)]
    assert where in str(told)


def test_a_loop_that_is_not_unrolled_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"a_shared_local .* loop k_1, which is not unrolled"):
        tlx.lower(scheduled(4, 4, 3, unroll=False).mod, target=TARGET)


def test_a_load_apart_from_its_use_is_refused() -> None:
    sch = scheduled(4, 4, 1, apart=True)
    with pytest.raises(ScheduleError, match="no unrolled loop holds both it and a block"):
        tlx.lower(sch.mod, target=TARGET)


def test_a_source_that_the_loop_writes_is_refused() -> None:
    sch = scheduled(4, 4, 1)
    sch.compute_at("a_shared", sch.get_loops("out")[-1])
    with pytest.raises(ScheduleError, match="reads a_shared, which block a_shared writes"):
        tlx.lower(sch.mod, target=TARGET)


FACTOR = """with T.sblock("factor"):
                        T.reads(W[k])
                        T.writes(g[0])
                        g[0] = T.Cast("float32", W[k])"""


@pytest.mark.parametrize("copy", [0, 1], ids=["through registers", "asynchronous"])
@pytest.mark.parametrize("steps", [2, 4])
def test_what_stands_between_copies_and_steps_comes_before_the_steps(steps: int, copy: int) -> None:
    """A chunk's own factor was shared out over the steps with the copies: too late for one."""
    rng = np.random.default_rng(0)
    a, w = rng.integers(-8, 8, (4, 64)).astype("float32"), rng.integers(1, 5, 4).astype("int32")
    func = beside(FACTOR, "31 - t", steps=steps, copy=copy)
    rows = (a * w[:, None]).sum(0).reshape(2, 32).sum(0)[::-1]
    gives(func, a, w, np.zeros(32, "f"), B=rows * (steps // 2))


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("bound", [False, True], ids=["loaded", "bound"])
def test_a_load_by_an_index_is_not_done_for_a_chunk_that_is_none(bound: bool, stages: int) -> None:
    """The last chunk loaded for one more, whose index lies behind the last."""
    between = "c: T.let[T.int32] = W[k]" if bound else "T.evaluate(0)"
    load = f"(t + {'c' if bound else 'W[k]'}) % 32"
    rng = np.random.default_rng(0)
    a, w = rng.integers(-8, 8, (4, 64)).astype("float32"), rng.integers(0, 32, 4).astype("int32")
    k, t = np.arange(4)[:, None], (np.arange(32) + w[:, None]) % 32
    func = beside(between, load, stages=stages)
    gives(func, a, w, np.zeros(32, "f"), B=(a[k, t] + a[k, t + 32]).sum(0))


def test_a_value_bound_in_a_step_is_refused_by_name() -> None:
    func = beside("T.evaluate(0)", "31 - t").script()
    step = "for s in T.unroll(2):\n"
    (head,) = re.findall(rf"( *){re.escape(step)}", func)
    func = func.replace(step, f"{step}{head}    c: T.let[T.int32] = W[s]\n")
    func = func.replace("f[0] * g[0]", 'f[0] * T.Cast("float32", c)')
    with pytest.raises(ScheduleError, match="prefetched in loop s, which binds c; steps run side"):
        tlx.lower(tvm.script.from_source(func), target=TARGET)


def test_versions_of_a_pipeline_are_loaded_without_a_condition() -> None:
    """They are always there; only the copies have one, in the loop."""
    text = tlx.lower(beside("T.evaluate(0)", "31 - t"), target=TARGET).script()
    assert text.count("if k < 3") == text.count("if k ") == 1
