"""Whole tensors of symbolic sizes: rows first, and then what is left of them."""

from __future__ import annotations

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
from tvm_layout_ext.models.sums.sums_in_steps import SumsInSteps


@pytest.mark.parametrize("shape", [("b", "n", 24), ("n", 24), ("b", "n"), (3, "n", 4, 6)])
@pytest.mark.parametrize("name", ["max", "min", "sum", "mean", "prod"])
def test_values_are_those_of_one_step(name: str, shape: tuple[int | str, ...]) -> None:
    mod = relax_module(lambda x: getattr(op, name)(x, keepdims=True), shape, dtype="float32")
    sizes = [{"b": 3, "n": 5}.get(str(n), n) for n in shape]
    given = np.random.default_rng(0).uniform(0.9, 1.1, sizes).astype("float32")
    found = []
    for one in (mod, SumsInSteps()(mod)):
        main = relax.VirtualMachine(tvm.compile(one, CPU), tvm.cpu())["main"]
        found.append(main(tvm.runtime.tensor(given)).numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=2e-6)


def test_rows_are_spread_over_blocks_and_what_they_leave_over_threads() -> None:
    one, other = scheduled(relax_module(lambda x: op.max(op.abs(x)), ("b", "n", 96)))
    rest, rows = sorted((one, other), key=lambda each: each.choice.rule)
    assert check(rows, "rows").launches[0].blocks > 1
    left = np.arange(15, dtype="float16")
    assert check(rest, "blocks", lv1=left, b=3, n=5).launches[0].blocks == 1
    assert "1024" in str(rest.after)  # Threads.


def test_sums_of_16_bits_are_rounded_once() -> None:
    mod = SumsInSteps()(relax_module(op.sum, ("n", 4096)))
    main = relax.VirtualMachine(tvm.compile(mod, CPU), tvm.cpu())["main"]
    given = np.full((9, 4096), 1.5, "float16")
    assert main(tvm.runtime.tensor(given)).numpy() == np.float16(9 * 4096 * 1.5)


def test_means_of_whole_numbers_are_cut_off_once() -> None:
    mod = relax_module(op.mean, ("b", "n", 2), dtype="int32")
    assert structural_equal(SumsInSteps()(mod), mod)


@pytest.mark.parametrize("shape", [("b", 8, "h", "w"), (64, "n")])
def test_rows_of_any_length_have_a_block_each(shape: tuple[int | str, ...]) -> None:
    found = scheduled(relax_module(op.max, shape, dtype="float32"))
    blocks = [check(one).launches[0].blocks for one in found if len(one.before.params[0].shape) > 1]
    assert max(blocks) >= 64


@pytest.mark.parametrize(("shape", "axis"), [((4, 8), None), (("n", 8), 0), (("n",), None)])
def test_others_stay(shape: tuple[int | str, ...], axis: int | None) -> None:
    mod = relax_module(lambda x: op.sum(x, axis), shape, dtype="float32")
    assert structural_equal(SumsInSteps()(mod), mod)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [[2, 3], [1, 2, 3], [-1, -2]])
@pytest.mark.parametrize("name", ["max", "sum", "mean"])
def test_last_axes_are_summed_as_one_by_many_threads(
    name: str, axes: list[int], keepdims: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mod = relax_module(lambda x: getattr(op, name)(x, axes, keepdims), (2, 3, "h", "w"))
    (one,) = (each for each in scheduled(mod) if name in each.name)
    assert "1024" in str(one.after)  # Threads of a row.
    for size in (7, 12):
        monkeypatch.setattr(running, "SIZE", size)
        assert check(one, "blocks").launches[0].blocks == (2 if len(axes) == 3 else 6)
    given = np.random.default_rng(0).uniform(-1, 1, (2, 3, 5, 9)).astype("float16")
    main = relax.VirtualMachine(tvm.compile(SumsInSteps()(mod), CPU), tvm.cpu())["main"]
    want = getattr(np, name)(given.astype("float32"), axis=tuple(axes), keepdims=keepdims)
    found = main(tvm.runtime.tensor(given)).numpy()
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=2e-2, atol=2e-2)
