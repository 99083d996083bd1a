"""Every function of a model is scheduled, is right on the simulated GPU, and says how."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn

import tvm_layout_ext as tlx
from benchmarks.model_zoo import block, convolution, head, mlp
from tests.models import small_models
from tests.models.running import TARGET, Scheduled, bound_by_dlight, check, fused, only, scheduled
from tests.programs.relaxed import relax_module
from tests.test_build import PASS_MISTAKES, Break
from tests.tune.apply.test_apply import unscheduled
from tvm_layout_ext.analysis.contraction import read_contraction
from tvm_layout_ext.build import device_program
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.models import rules
from tvm_layout_ext.models.on_tensor_cores import configuration
from tvm_layout_ext.models.scheduled import choose
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.tune.space.functions import blocks_of, same_function

MODELS: dict[str, Callable[[], tvm.IRModule]] = {
    "block": lambda: block(16, 64, 2).module,
    "block of one token": lambda: block(1, 64, 2).module,
    "block of any tokens": lambda: block("n", 64, 2).module,
    "mlp": lambda: mlp(7, 20, 48, 12).module,
    "convolution": lambda: convolution(1, 8, 6).module,
    "head": lambda: head(8, 96, 64).module,
}
EVERY = MODELS | small_models.MODELS


@functools.cache
def of_model(name: str) -> list[Scheduled]:
    """The functions of a model by the pass."""
    return scheduled(EVERY[name]())


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("name", EVERY)
def test_every_function_of_a_model_is_right_and_has_a_rule(name: str) -> None:
    for one in of_model(name):
        assert not one.choice.fell_back, one.choice.text
        check(one)


def test_depthwise_convolutions_stay_between_others() -> None:
    found = of_model("MobileNetV2")
    # At the model's ends, and of the weights of both, which are parameters here.
    assert sum("transpose" in one.name for one in found) == 3
    depthwise = [one for one in found if "group_conv2d_nhwc" in str(one.before)]
    assert len(depthwise) == 2
    assert all("minimum" in one.name and one.choice.rule == "windows" for one in depthwise)


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_compiles_by_the_pipeline(name: str) -> None:
    schedule = tlx.DefaultSchedule()
    built = tvm.compile(MODELS[name](), TARGET, relax_pipeline=tlx.relax_pipeline(TARGET, schedule))
    assert isinstance(built, relax.VMExecutable)
    assert "none" not in {choice.rule for choice in schedule.choices}


def test_whatever_dlight_binds_to_threads_is_bound() -> None:
    mod = fused(MODELS["block"]())
    theirs = bound_by_dlight(mod)
    assert theirs
    for one in of_model("block"):
        program = device_program(one.after.with_attr("global_symbol", one.name), target=TARGET)
        if program.kernels:
            theirs.discard(one.name)
    assert not theirs


def test_each_function_goes_to_the_rule_for_it() -> None:
    found = {one.name: one.choice for one in of_model("block")}
    products = {name for name in found if "matmul" in name}
    assert len(products) == 4
    assert {found[name].rule for name in products} <= {"warpgroups", "tensor cores"}
    assert {found[name].rule for name in set(found) - products} == {"attention", "rows"}
    assert all(one.text.endswith(".") and not one.fell_back for one in found.values())
    # A product of one row is a sum; padded to a tile it would multiply zeros.
    assert {one.choice.rule for one in of_model("block of one token")} == {"rows", "blocks"}


def test_large_products_go_to_warpgroups_also_in_batches() -> None:
    found = [f for f in scheduled(block(128, 128, 2).module) if "matmul" in f.name]
    assert {one.choice.rule for one in found} == {"warpgroups"}
    for one in found[:2]:
        check(one)


def test_a_fallback_has_its_sentence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = "fuse_rows needs rows of a known length"
    left = {name: rule for name, rule in rules.RULES.items() if name != "blocks"}
    monkeypatch.setattr(choose, "RULES", left)
    mod = relax_module(lambda x: relax.op.add(relax.op.nn.softmax(x), x), (4, "n"))
    with caplog.at_level(logging.WARNING, "tvm_layout_ext"), tlx.decisions.collect() as told:
        found = scheduled(mod)
    fallen = [one for one in found if one.choice.fell_back]
    assert any(sentence in one.choice.text for one in fallen)
    assert len(caplog.records) == len(fallen)
    for one, record in zip(fallen, caplog.records, strict=True):
        assert record.getMessage() == f"{one.name}: {one.choice.text}"
        assert one.choice.text.startswith("dlight's ")
    assert [d.subject for d in told if d.maker == "DefaultSchedule" and d.refused] == [
        one.name for one in fallen
    ]


def test_sums_of_halves_are_wide() -> None:
    (product,) = (f for f in of_model("head") if "matmul" in f.name)
    (body, *_) = (b for _, b in blocks_of(product.before) if "matmul" in b.name_hint)
    assert read_contraction(body).sums == "float32"
    assert str(product.before.params[-1].dtype) == "float16"


def test_sums_are_wide_also_where_the_type_of_results_is_named() -> None:
    # As ToMixedPrecision names it.
    def build(x: Any, w: Any) -> Any:
        return relax.op.matmul(x, w, out_dtype="float16")

    one = only(relax_module(build, (16, 16), (16, 16)))
    (body, *_) = (b for _, b in blocks_of(one.before) if "matmul" in b.name_hint)
    assert read_contraction(body).sums == "float32"
    assert str(one.before.params[-1].dtype) == "float16"


def test_a_rule_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no luck")

    every = {"tensor cores": broken, "blocks": broken, rules.LAST: rules.RULES[rules.LAST]}
    monkeypatch.setattr(choose, "RULES", every)
    (one,) = scheduled(unscheduled(64))
    check(one)
    assert (one.choice.rule, one.choice.refused) == (rules.LAST, ("no luck.", "no luck."))
    assert (
        one.choice.text == "dlight's Transpose schedules it. no luck."
        or "no luck" in one.choice.text
    )
    monkeypatch.setattr(choose, "RULES", dict.fromkeys(every, broken))
    with TARGET:
        left = (schedule := tlx.DefaultSchedule())(unscheduled(64))
    assert same_function(left["main"], unscheduled(64)["main"])
    assert [choice.rule for choice in schedule.choices] == ["none"]


def test_a_mistake_of_a_rule_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(*_: object) -> None:
        raise TypeError("no number")

    rules_with_one = {"rows": mistaken, rules.LAST: rules.RULES[rules.LAST]}
    monkeypatch.setattr(choose, "RULES", rules_with_one)
    with TARGET:
        (schedule := tlx.DefaultSchedule())(unscheduled(64))
    sentence = "Rule rows fails by a mistake of tvm_layout_ext, TypeError: no number."
    assert schedule.choices[0].refused == (sentence,)
    assert caplog.records[0].getMessage() == f"main: {sentence}"


@pytest.mark.parametrize(("break_it", "kind"), PASS_MISTAKES)
def test_a_mistake_of_a_pass_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch, break_it: Break, kind: type[Exception]
) -> None:
    break_it(monkeypatch)
    with TARGET:
        (schedule := tlx.DefaultSchedule())(unscheduled(64))
    (choice,) = schedule.choices
    assert choice.rule == rules.LAST
    for sentence in choice.refused:
        assert f"fails by a mistake of tvm_layout_ext, {kind.__name__}: " in sentence
    assert choice.refused


def test_scheduled_functions_and_other_targets_are_left_alone() -> None:
    with TARGET:
        once = tlx.DefaultSchedule()(unscheduled(64))
        again = (second := tlx.DefaultSchedule())(once)
    assert again["main"].same_as(once["main"])
    with tvm.target.Target("llvm"):
        plain = (third := tlx.DefaultSchedule())(unscheduled(64))
    assert "threadIdx" not in str(plain)
    assert second.choices == third.choices == []


class Gated(nn.Module):  # type: ignore[misc]
    """A norm, a product, SiLU times a gate, a softmax."""

    def __init__(self) -> None:
        self.norm = nn.RMSNorm(64, -1, 1e-5, bias=False)
        self.wide = nn.Linear(64, 128, bias=False)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        gate, up = nn.op.split(self.wide(self.norm(x)), 2, axis=-1)
        return nn.op.softmax(nn.op.silu(gate) * up, -1)


def test_all_functions_of_a_model_take_records_of_what_it_is_lowered_to(tmp_path: Path) -> None:
    model = Gated()
    model.to("float16")
    mod, _ = model.export_tvm({"forward": {"x": nn.spec.Tensor((1, 32, 64), "float16")}})
    lowered = tlx.lower_relax(mod, TARGET)
    tlx.tune_module(lowered, TARGET, trials=1, log=tmp_path, runner="simulate")
    schedule = tlx.DefaultSchedule(tmp_path)
    tlx.relax_pipeline(TARGET, schedule)(mod)
    assert len(schedule.choices) == 3  # The product and its gate are one.
    assert {choice.rule for choice in schedule.choices} == {"record"}


def test_records_go_first(tmp_path: Path) -> None:
    tlx.tune_module(unscheduled(64), TARGET, trials=1, log=tmp_path, runner="simulate")
    (one,) = scheduled(unscheduled(64), tlx.DefaultSchedule(tmp_path))
    assert one.choice.rule == "record"
    check(one)


@pytest.mark.parametrize(
    ("shape", "tile", "slices"),
    [
        ((4096, 4096, 4096), (128, 128, 32), 1),
        ((1024, 1024, 1024), (64, 128, 64), 1),
        ((16, 4096, 4096), (64, 128, 64), 4),
        ((8, 8, 64), (64, 64, 64), 1),
    ],
)
def test_tiles_suit_the_grid(
    shape: tuple[int, int, int], tile: tuple[int, int, int], slices: int
) -> None:
    func = gemm.OPERATOR.unscheduled(shape, "float16")["main"]
    block = next(b for _, b in blocks_of(func) if b.name_hint == "product")
    found = configuration(read_contraction(block), architecture("sm_90a"))
    assert tuple(found[f"tile_{dim}"] for dim in "mnk") == tile
    assert found["split_k"] == slices


def test_a_choice_of_a_slower_rule_tells_why_no_faster_one_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(func: tvm.tirx.PrimFunc, target: tvm.target.Target) -> None:
        raise tlx.ScheduleError("TMA is out.")

    monkeypatch.setitem(rules.RULES, "warpgroups", refuses)
    found = [one.choice for one in of_model.__wrapped__("block") if one.choice.rule[:6] == "tensor"]
    assert len(found) == 4
    assert all("No faster rule takes it: TMA is out." in one.text for one in found)
