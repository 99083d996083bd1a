"""Answers of rules: by other processes, on disk, and where neither is asked."""

from __future__ import annotations

import logging
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import tirx

import tvm_layout_ext as tlx
from benchmarks import model_zoo
from tests.models.running import TARGET, fused
from tvm_layout_ext.calls import disk
from tvm_layout_ext.ir import lowered_once
from tvm_layout_ext.models import rules
from tvm_layout_ext.models.scheduled import answer, answers
from tvm_layout_ext.models.scheduled.answers import LEAST_SIZE, side_by_side
from tvm_layout_ext.tune.measure import worker


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.schedule"))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where answers are kept."""
    monkeypatch.setenv(disk.VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def block() -> tvm.IRModule:
    return fused(model_zoo.block(16, 64, 2).module)


def asked(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[Any], list[Any]]:
    """The functions as scheduled and lowered, the choices, and what was told."""
    schedule = tlx.DefaultSchedule()
    with TARGET, tlx.decisions.collect() as told:
        done = schedule(mod)
        functions = [one for one in done.functions.values() if isinstance(one, tirx.PrimFunc)]
        lowered = tvm.IRModule({f"f{at}": one for at, one in enumerate(functions)})
        lowered = tlx.lower(lowered, target=TARGET)
    return lowered, schedule.choices, [*map(str, told)]


def same(one: Any, other: Any) -> bool:
    return one[0].script() == other[0].script() and one[1:] == other[1:]


def no_rules(*_: object) -> None:
    pytest.fail("No rule is asked.")


def test_answers_stay_on_disk_with_all_that_was_told(
    folder: Path, block: tvm.IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asked(block)
    count = len(first[1])
    assert len(kept(folder)) == len({one.name for one in first[1]}) == count
    monkeypatch.setattr(answer, "choose", no_rules)
    # What was lowered is not lowered again.
    monkeypatch.setattr(lowered_once, "_MADE", {})
    assert same(asked(block), first)
    for path in kept(folder):
        path.write_bytes(path.read_bytes()[:50])
    monkeypatch.undo()
    monkeypatch.setenv(disk.VARIABLE, str(folder))
    assert same(asked(block), first)


def test_what_is_on_disk_is_as_lowered(
    folder: Path, block: tvm.IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(block)
    monkeypatch.setattr(lowered_once, "_MADE", {})
    with TARGET:
        done = tlx.DefaultSchedule()(block)
    for func in done.functions.values():
        if isinstance(func, tirx.PrimFunc):
            assert (made := lowered_once.made_of(func)) is not None
            assert made.lowered.attrs["target"].attrs["arch"] == TARGET.attrs["arch"]


def test_processes_answer_as_this_one(folder: Path, block: tvm.IRModule) -> None:
    here = asked(block)
    for path in kept(folder):
        path.unlink()
    with side_by_side(0, processes=2):
        assert same(asked(block), here)
    assert len(kept(folder)) == len(here[1])


def test_a_process_that_fails_is_told_and_the_function_scheduled_here(
    block: tvm.IRModule, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = asked(block)
    monkeypatch.setattr(answer.ScheduleRequest, "answered", lambda self: 1 // 0)
    with side_by_side(0, processes=1):
        assert same(asked(block), here)
    assert len(caplog.records) == len(here[1])
    assert "scheduled here, as another process fails" in caplog.text


def test_few_cores_and_small_models_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "WorkerPool", no_rules)
    for cores, size in ((answers._LEAST_CORES - 1, LEAST_SIZE), (64, LEAST_SIZE - 1)):
        monkeypatch.setattr(answers, "cores", lambda cores=cores: cores)
        with side_by_side(size):
            assert answers._pool.get() is None


def test_a_rule_of_a_user_is_always_asked(
    folder: Path, block: tvm.IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise tlx.ScheduleError("Not today.")

    asked(block)
    known = kept(folder)
    monkeypatch.setitem(rules.RULES, "rows", refuses)
    assert any("Not today." in one.refused for one in asked(block)[1])
    assert kept(folder) == known


def test_options_of_passes_are_part_of_a_question(folder: Path, block: tvm.IRModule) -> None:
    asked(block)
    count = len(kept(folder))
    with tvm.transform.PassContext(opt_level=1):
        asked(block)
    assert len(kept(folder)) == 2 * count

    @tvm.ir.instrument.pass_instrument
    class Watch:
        """Sees each pass, so that none may be left out."""

    with tvm.transform.PassContext(opt_level=2, instruments=[Watch()]):
        asked(block)
    assert len(kept(folder)) == 2 * count


def test_messages_are_told_again(
    folder: Path,
    block: tvm.IRModule,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    choose = answer.choose

    def telling(*given: Any) -> Any:
        logging.getLogger("tvm_layout_ext").warning("%d is dropped", 7)
        return choose(*given)

    monkeypatch.setattr(answer, "choose", telling)
    first = asked(block)
    said = [one.getMessage() for one in caplog.records]
    assert said.count("7 is dropped") == len(kept(folder)) == len(first[1])
    caplog.clear()
    monkeypatch.setattr(answer, "choose", no_rules)
    assert same(asked(block), first)
    assert [one.getMessage() for one in caplog.records] == said


def test_messages_of_another_level_are_another_answer(folder: Path, block: tvm.IRModule) -> None:
    asked(block)
    count, logger = len(kept(folder)), logging.getLogger("tvm_layout_ext")
    before = logger.level
    try:
        logger.setLevel(logging.ERROR)
        asked(block)
    finally:
        logger.setLevel(before)
    assert len(kept(folder)) == 2 * count


def test_a_function_that_calls_another_is_not_kept() -> None:
    call = tirx.Evaluate(tvm.ir.Call(tvm.ir.GlobalVar("other"), [tirx.Var("x", "int64")]))
    assert answers._calls_others(tirx.PrimFunc([], call))
    assert not answers._calls_others(tirx.PrimFunc([], tirx.Evaluate(0)))


def test_without_processes_all_is_scheduled_here(
    block: tvm.IRModule, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    here = asked(block)
    monkeypatch.setattr(worker, "start", refuses)
    with side_by_side(0, processes=2):
        assert same(asked(block), here)
    assert "scheduled in this process" in caplog.text


def test_what_is_no_answer_is_made_anew(folder: Path, block: tvm.IRModule) -> None:
    first = asked(block)
    text = tvm.ir.save_json([None, None])
    for path in kept(folder):
        path.write_bytes(zlib.compress(pickle.dumps((1, text, (), ()))))
    assert same(asked(block), first)
