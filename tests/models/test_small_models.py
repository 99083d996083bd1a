"""Models of every kind, tiny: each function right, and none left to dlight."""

from __future__ import annotations

import functools

import pytest

from tests.models.running import Scheduled, check, scheduled
from tests.models.small_models import MODELS


@functools.cache
def of_model(name: str) -> list[Scheduled]:
    """The functions of a model by the pass."""
    return scheduled(MODELS[name]())


@pytest.mark.matrix
@pytest.mark.parametrize("name", MODELS)
def test_every_function_is_right_and_has_a_rule(name: str) -> None:
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
