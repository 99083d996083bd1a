"""One schedule by tiles of a block: what it becomes on each target, and what it computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tvm_layout_ext import ScheduleError, decisions

DOC = Path(__file__).parents[2] / "docs" / "tensor_cores.md"


def documented() -> Any:
    """The schedule that docs/tensor_cores.md shows."""
    found = re.search(r"<!-- schedule: .*? -->\n```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert found is not None
    scope: dict[str, Any] = {"tvm": tvm}
    exec(found[1].replace('"C"', '"product"'), scope)
    return scope["schedule"]


@pytest.mark.costly
@pytest.mark.parametrize(
    ("arch", "shape", "told"),
    [
        ("sm_80", (200, 264, 200), "mma.m16n8k16.f32.f16"),
        ("sm_89", (256, 256, 128), "mma.m16n8k16.f32.f16"),
        ("sm_90a", (200, 264, 200), "wgmma.m64n128k16.f32.f16 on tiles of 128x128x64, 3 stages by"),
        ("sm_90a", (100, 120, 100), "wgmma: Rows of A are 200 bytes apart; TMA needs a multiple"),
    ],
)
def test_one_schedule_takes_the_instruction_of_the_target(
    arch: str, shape: tuple[int, int, int], told: str
) -> None:
    target = tlx.cuda_target(arch)
    a, b, want = w.operands(shape)
    with decisions.collect() as made:
        sch = documented()(w.product(shape).mod["main"], target)
        report = tlx.simulate(sch, a, b, target=target, progress=False)
    assert report.hazards == []
    assert (np.abs(report.outputs["C"] - want) <= 2.0**-11 * np.abs(want) + 1e-3).all()
    assert any(told in one.text for one in made)
    source = next(iter(tlx.device_program(sch, target=target).kernels.values())).script()
    assert ("T.ptx_legacy.mma" in source) == ("wgmma.m64" not in told)


def test_a_tile_and_what_is_not_placed_are_refused_in_a_sentence() -> None:
    with w.SM90A, pytest.raises(ScheduleError, match="multiples of 64, columns in multiples of 32"):
        w.product((256, 256, 128)).use_tensor_core("product", tile=(96, 128, 64))
    sch = w.product((256, 256, 128))
    with tlx.cuda_target("sm_80"):
        tc = sch.use_tensor_core("product", tile=(128, 128, 64))
    with pytest.raises(ScheduleError, match=r"0 copies of operands and 0 of results; place tc.a"):
        sch.specialize_warps(tc.warpgroup)
