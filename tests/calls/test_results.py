"""From the tuner's result to a kernel, its source, its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.mapped import computed
from tvm_layout_ext.calls import timing
from tvm_layout_ext.errors import RecordError, ScheduleError, TargetError
from tvm_layout_ext.tune import Programs, Result, knob


@pytest.fixture(scope="module")
def result() -> Result:
    return tlx.tune("transpose", shape=(64, 64), trials=2, runner="simulate", target="cuda")


def test_a_result_is_its_winners_schedule(result: Result) -> None:
    assert result.best is not None
    sch = result.schedule()
    assert isinstance(sch, s_tir.Schedule)
    tvm.ir.assert_structural_equal(sch.mod, result.best.schedule().mod)
    a = np.random.default_rng(0).random((64, 64), np.float32)
    for one in (result, result.best, sch):
        assert (tlx.simulate(one, a).outputs["B"] == a.T).all()


def test_a_result_and_its_record_build(result: Result) -> None:
    for made in (result.build(), tlx.build(result), tlx.build(result.best)):
        assert "__global__" in made.mod.imports[0].inspect_source()
    assert result.cuda == tlx.cuda_source(result.best) == tlx.cuda_source(result.schedule().mod)


def test_a_result_explains_itself(result: Result) -> None:
    told = result.explain()  # type: ignore[attr-defined]
    assert {row.buffer for row in told.rows} >= {"A", "B"}


def test_a_kernel_is_for_the_architecture_that_was_tuned_for() -> None:
    target = tlx.cuda_target("sm_80")
    found = tlx.tune("transpose", target, shape=(64, 64), trials=1, runner="simulate")
    program = tlx.device_program(found.best)
    assert str(program.target.attrs["arch"]) == "sm_80"


def test_a_run_without_a_winner_says_where_to_look(result: Result) -> None:
    with pytest.raises(RecordError, match="No trial of transpose 64x64 float32 worked"):
        replace(result, best=None).build()


def test_a_record_of_a_users_function_says_what_to_call(tmp_path: Path) -> None:
    func = computed((64, 64), lambda a, i, j: a[i, j] + 1.0).mod["main"]
    found = tlx.tune(
        func,
        schedule=lambda sch, config: sch.auto_coalesce("B", num_threads=config["threads"]),
        knobs=[knob("threads", (64, 128))],
        trials=2,
        log=tmp_path,
    )
    assert "__global__" in found.cuda
    assert found.best is not None
    with pytest.raises(RecordError, match="is no ready operator; take tune's result"):
        tlx.build(found.best)
    again = found.best.schedule(Programs(tmp_path).operator(found.best))
    tvm.ir.assert_structural_equal(again.mod, found.schedule().mod)


def test_cuda_source_is_of_cuda(result: Result) -> None:
    with pytest.raises(TargetError, match="not for llvm"):
        tlx.cuda_source(result, target="llvm")


def test_nothing_is_timed_without_a_gpu(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "has_gpu", lambda: False)
    with pytest.raises(TargetError, match=r"no CUDA GPU here to time a kernel on; tlx.simulate"):
        tlx.benchmark(result.build(), np.zeros((64, 64), "float32"))
    with pytest.raises(TargetError, match="no CUDA GPU"):
        result.bench()  # type: ignore[attr-defined]


def test_a_benchmark_is_set_beside_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host's memory, with times of our own: what is timed, and by which arguments."""
    asked: list[tuple[int, ...]] = []

    def times(executable: Any, given: Any, device: Any) -> list[float]:
        asked.append(tuple(given[-1].shape))
        return [3e-6, 4e-6, 4e-6, 5e-6] if len(asked) > 1 else [2e-6]

    monkeypatch.setattr(timing, "has_gpu", lambda: True)
    monkeypatch.setattr(timing.tvm, "cuda", lambda _: tvm.cpu())
    monkeypatch.setattr(timing, "_times", times)
    monkeypatch.setattr(timing, "_copy", lambda count: count)
    monkeypatch.setattr(timing, "cuda_device", lambda: "a GPU")
    monkeypatch.setenv("TVM_LAYOUT_EXT_ARCH", "sm_90a")
    found = tlx.benchmark(tlx.op("transpose"), np.zeros((64, 32), "float32"))
    # The copy moves as many bytes as the kernel's 2 x 8192.
    assert asked == [(2048,), (32, 64)]
    assert found.bytes == 16384
    assert (found.median, found.share) == (4e-6, 0.5)
    assert str(found).startswith("4.0 us (quartiles 0.5 us apart, 4 runs")
    assert "a copy of its 16,384 bytes takes 0.50 of that time" in str(found)
    assert "TFLOPS" not in str(found)
    assert "2.0 TFLOPS" in str(replace(found, flops=8_000_000))


def test_every_run_is_timed_from_a_flushed_cache() -> None:
    asked: dict[str, Any] = {}

    class Timed:
        def jit(self) -> Timed:
            return self

        def time_evaluator(self, name: str, device: Any, **options: Any) -> Any:
            asked.update(options)
            return lambda *_: SimpleNamespace(results=[1e-6] * options["repeat"])

    assert len(timing._times(Timed(), [], None)) == asked["repeat"]
    # One run a flush, of more than the 50 MiB of an H200's L2 cache.
    assert asked["number"] == 1
    assert asked["cache_flush_bytes"] >= 2 * 50 << 20


def test_what_cannot_be_timed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "has_gpu", lambda: True)
    with pytest.raises(ScheduleError, match=r"Cannot time a function; give what tlx.build"):
        tlx.benchmark(lambda: 0)
