"""Knobs and the legal space: declaration, refusals, order, defaults."""

from __future__ import annotations

import dataclasses
import itertools
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
    Operator,
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


def test_operator_takes_lists() -> None:
    ready = find_operator("transpose")
    fields = ("dims", "parallel", "dtypes", "knobs")
    lists: dict[str, Any] = {name: list(getattr(ready, name)) for name in fields}
    same = dataclasses.replace(ready, **lists)
    assert Space(same, (64, 64), "float32", SM90).legal == make_space("transpose", 64, 64).legal


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


@pytest.mark.parametrize("name", ["transpose", "matmul"])
def test_first_sample_is_the_default_and_none_repeats(name: str) -> None:
    space = make_space(name, *(256,) * len(find_operator(name).dims))
    sample = list(itertools.islice(space.sample(3), 200))
    assert sample[0] == find_operator(name).default_config()
    assert len({tuple(config.items()) for config in sample}) == 200


def test_seed_fixes_the_order() -> None:
    def order(seed: int) -> list[dict[str, object]]:
        return list(itertools.islice(make_space("transpose", 64, 64).sample(seed), 20))

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1)[0] == order(2)[0]


def test_sample_covers_the_whole_legal_space() -> None:
    space = make_space("transpose", 33, 47)
    keys = {tuple(config.items()) for config in space.sample(0)}
    assert len(keys) == len(space.legal) > 10


def test_default_of_an_awkward_shape_is_the_nearest_legal() -> None:
    default = find_operator("transpose").default_config()
    chosen = make_space("transpose", 1000, 1001).default()
    assert chosen == default | {"read_vector": 1}


def test_legal_and_refused_make_up_all_combinations() -> None:
    space = make_space("matmul", 64, 64, 64)
    total = 1
    for declared in space.operator.knobs:
        total *= len(declared.values)
    assert len(space.legal) + space.refused.total() == total


def test_no_legal_configuration_says_why() -> None:
    space = Space(_impossible(), (8, 8), "float32", SM90)
    with pytest.raises(ScheduleError, match=r"no legal configuration for shape 8x8 .*vector"):
        space.default()


def _impossible() -> Operator:
    transpose = find_operator("transpose")
    knobs = tuple(
        dataclasses.replace(k, values=(16,), default=16) if k.name == "read_vector" else k
        for k in transpose.knobs
    )
    return dataclasses.replace(transpose, knobs=knobs)


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
