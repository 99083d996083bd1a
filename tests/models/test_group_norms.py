"""Group norms of images of any size: a block's threads share out the sum of a group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm_ffi import structural_equal

from tests.models import running
from tests.models.running import check, scheduled
from tests.programs.host import CPU
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.sums.group_norms import GroupNormsInSteps

#: By name the shape of an image, the axis of its channels, and groups.
IMAGES: dict[str, tuple[tuple[int | str, ...], int, int]] = {
    "any height and width": ((2, 16, "h", "w"), 1, 4),
    "any number of images, too": (("b", 12, "h", "w"), 1, 2),
    "any height": ((2, 8, "h", 6), 1, 4),
    "channels last": ((2, "h", "w", 16), 3, 4),
    "one dim": ((2, 8, "n"), 1, 2),
    "without images": ((8, "h", "w"), 0, 2),
    "a group a channel": ((2, 6, "h", "w"), 1, 6),
}


def _normed(x: Any, g: Any, b: Any, shape: Any, channel: int, groups: int) -> Any:
    axes = [axis for axis in range(len(shape)) if axis > channel or 0 < axis < channel]
    if groups == shape[channel]:
        return op.nn.instance_norm(x, g, b, channel, axes)
    return op.nn.group_norm(x, g, b, groups, channel, axes)


def _module(name: str, dtype: str = "float16") -> tvm.IRModule:
    shape, channel, groups = IMAGES[name]
    count = shape[channel]

    def build(x: Any, g: Any, b: Any) -> Any:
        return op.nn.silu(_normed(op.nn.relu(x), g, b, shape, channel, groups))

    return relax_module(build, shape, (count,), (count,), dtype=dtype)


@pytest.mark.parametrize("name", IMAGES)
def test_kernels_are_right_for_any_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in scheduled(_module(name)):
        assert not one.choice.fell_back
        for size in (5, 13):
            monkeypatch.setattr(running, "SIZE", size)
            check(one)


def _values(mod: tvm.IRModule, arrays: list[np.ndarray]) -> np.ndarray:
    main = relax.VirtualMachine(tvm.compile(mod, CPU), tvm.cpu())["main"]
    found: np.ndarray = main(*map(tvm.runtime.tensor, arrays)).numpy()
    return found


@pytest.mark.parametrize("name", IMAGES)
def test_values_are_those_of_one_step(name: str) -> None:
    shape, channel, _ = IMAGES[name]
    sizes = [{"b": 3, "h": 7, "w": 9, "n": 11}.get(str(n), n) for n in shape]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(1, 2, one).astype("float32") for one in (sizes, *[sizes[channel]] * 2)]
    mod = _module(name, "float32")
    made = GroupNormsInSteps()(mod)
    assert "group_sums" in str(made)
    np.testing.assert_allclose(_values(made, arrays), _values(mod, arrays), rtol=1e-4, atol=1e-5)


def test_many_threads_share_out_the_sum_of_a_group() -> None:
    sums, _ = scheduled(relax_module(_first, (2, 32, "h", "w"), (32,), (32,)))
    report = check(sums, "blocks")
    assert report.launches[0].blocks == 8
    assert "1024" in str(sums.after)  # Threads of a group.


def _first(x: Any, g: Any, b: Any) -> Any:
    return op.nn.group_norm(x, g, b, 4, 1, [2, 3])


@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 8, 5, 7), 4), (("b", 8, 5, 7), 4), (("b", "c", "h", 7), 1)]
)
def test_others_stay(shape: tuple[int | str, ...], groups: int) -> None:
    def build(x: Any, g: Any, b: Any) -> Any:
        return op.nn.group_norm(x, g, b, groups, 1, [2, 3])

    mod = relax_module(build, shape, (shape[1],), (shape[1],))
    assert structural_equal(GroupNormsInSteps()(mod), mod)
