"""Knobs and the legal space: declaration, refusals, order, defaults."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_layout_ext import schedules
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune.space import operator
from tvm_layout_ext.tune.space.knobs import Refusal, knob
from tvm_layout_ext.tune.space.operator import (
    find_operator,
    known_operators,
    register_operator,
)
from tvm_layout_ext.tune.space.space import Space

SM90 = architecture("sm_90a")


def make_space(name: str, *shape: int, dtype: str = "float32") -> Space:
    return Space(find_operator(name), shape, dtype, SM90)


def test_knob_takes_a_range_or_a_list() -> None:
    assert knob("offset", range(3)).values == (0, 1, 2)
    assert knob("tile", (32, 64), default=64).default == 64
    assert knob("mode", ("xor", "pad")).default == "xor"


def test_only_the_upper_end_of_a_range_is_an_edge() -> None:
    assert [knob("stages", range(1, 4)).at_upper_edge(v) for v in (1, 2, 3)] == [False, False, True]
    assert not knob("tile", (32, 64)).at_upper_edge(64)
    assert not knob("one", range(1)).at_upper_edge(0)


@pytest.mark.parametrize(
    ("name", "values", "default", "message"),
    [
        ("k", (), None, "Knob k has no value"),
        ("k", (1, 2, 1), None, "Knob k lists a value twice: 1, 2, 1"),
        ("k", (1, 2), 3, "Default 3 of knob k is not one of its values 1, 2"),
        (3, (1, 2), None, "A knob's name is a word, not 3"),
        ("k", "abc", None, "Knob k needs a range or a list of values, not 'abc'"),
        ("k", 8, None, "Knob k needs a range or a list of values, not 8"),
        ("k", (0.5, 1), None, "Knob k cannot be 0.5; a value is a whole number or a str"),
    ],
)
def test_knob_refuses(name: Any, values: Any, default: int | None, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        knob(name, values, default)


def test_integers_of_numpy_become_ints_that_json_and_tvm_take() -> None:
    values = knob("tile", np.array([16, 32])).values
    assert values == (16, 32)
    assert {type(value) for value in values} == {int}


def test_operator_of_ones_own_is_found_once_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_LOADERS", dict(operator._LOADERS))
    ready = dataclasses.replace(find_operator("transpose"), name="turned")
    register_operator("turned", lambda: ready)
    assert find_operator("turned") is ready
    with pytest.raises(ScheduleError, match="There is an operator 'turned' already"):
        register_operator("turned", lambda: ready)


def test_ready_operators_are_the_files_of_schedules() -> None:
    files = {path.stem for path in Path(schedules.__file__).parent.glob("[!_]*.py")}
    assert set(known_operators()) == set(schedules.FILES) == files
    with pytest.raises(ScheduleError, match=r"Unknown operator 'softmox'; known are .*matmul, .*"):
        find_operator("softmox")


def test_samples_are_the_default_and_all_others_once_in_the_order_of_the_seed() -> None:
    def order(seed: int) -> list[tuple[tuple[str, object], ...]]:
        space = make_space("transpose", 64, 64)
        return [tuple(config.items()) for config in space.sample(seed)]

    first, again, other = order(1), order(1), order(2)
    assert first == again != other
    assert dict(first[0]) == dict(other[0]) == find_operator("transpose").default_config()
    assert len(set(first)) == len(first) == len(make_space("transpose", 64, 64).legal)
    assert set(first) == set(other)


def test_default_of_an_awkward_shape_is_the_nearest_legal() -> None:
    default = find_operator("transpose").default_config()
    chosen = make_space("transpose", 1000, 1001).default()
    assert chosen == default | {"read_vector": 1}


def test_wishes_that_no_legal_configuration_has_are_none() -> None:
    operator = find_operator("transpose")
    default = operator.default_config()
    for wish, want in (
        ({"read_vector": 3}, default),
        ({"read_vector": 1}, default | {"read_vector": 1}),
    ):
        wishing = dataclasses.replace(operator, fit=lambda *_, wish=wish: wish)
        assert Space(wishing, (64, 64), "float32", SM90).default() == want


def test_no_legal_configuration_says_why() -> None:
    transpose = find_operator("transpose")
    sixteen = {"values": (16,), "default": 16}
    knobs = [
        dataclasses.replace(k, **(sixteen if k.name == "read_vector" else {}))
        for k in transpose.knobs
    ]
    # An operator takes lists, too.
    space = Space(dataclasses.replace(transpose, knobs=knobs), (8, 8), "float32", SM90)
    with pytest.raises(ScheduleError, match=r"no legal configuration for shape 8x8 .*vector"):
        space.default()


def test_a_refusal_in_one_space_is_none_in_another_of_the_same_workload() -> None:
    """Both are judged once, and each has its own copy."""
    one, other = make_space("transpose", 64, 64), make_space("transpose", 64, 64)
    legal, refused = list(other.legal), other.refused.total()
    one.refuse(legal[0], Refusal("late", "It does not fit."))
    one.legal[0]["threads"] = 0
    assert one.refused["late"] == 1
    assert (other.legal, other.refused.total()) == (legal, refused)
    assert make_space("transpose", 64, 64).legal == legal
    assert "late" not in other.reasons
    assert all(config["threads"] for config in other.legal)
