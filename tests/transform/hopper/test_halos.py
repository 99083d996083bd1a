"""Convolutions whose tiles have halos: what they compute, and where there is none."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tests.programs.emitted import cuda_text, require_no_spills
from tests.transform.hopper.test_windows import Shape, compared, convolution
from tvm_layout_ext import decisions, te
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.transform.hopper import halos
from tvm_layout_ext.tune.space.operator import find_operator

KEPT, EACH_ONCE = "B copied once a block", "each once with its"


def told(sch: s_tir.Schedule, *given: Any, **more: Any) -> str:
    """What is chosen for a convolution that is as it should be."""
    with decisions.collect() as found:
        compared(sch, *given, **more)
    return str(next(one for one in found if "LowerWarpgroups" in str(one)))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("image", "weight", "tile", "more", "what"),
    [
        ((2, 16, 16, 64), (32, 3, 3, 64), (128, 32), {"pad": 1}, "1x10x10"),
        # Several steps of channels: of 64, and of 32 where 64 leave no room, or more zeros.
        ((1, 16, 16, 136), (24, 3, 3, 136), (64, 24), {}, "10x10"),
        ((2, 16, 16, 64), (64, 3, 3, 64), (128, 64), {"pad": 1}, "1x10x10"),
        ((2, 16, 16, 96), (96, 3, 3, 96), (128, 96), {"pad": 1, "dtype": "bfloat16"}, "1x10x10"),
        # Fewer channels than a row of 64 bytes has, and products of zeros that are left out.
        ((2, 16, 16, 8), (32, 3, 3, 8), (128, 32), {"pad": 1}, "1x10x10"),
        ((2, 15, 16, 24), (40, 3, 3, 24), (128, 40), {"pad": 1}, "1x10x10"),
        ((2, 16, 24, 48), (32, 2, 5, 48), (256, 32), {"pad": 2}, "1x9x12"),
        # Pixels outside of the result, of rows and of images; images one behind the other.
        ((3, 15, 22, 64), (40, 3, 3, 64), (128, 40), {"pad": 1}, "1x10x10"),
        ((8, 6, 16, 32), (32, 3, 3, 32), (128, 32), {"pad": 1}, "8x3x10"),
        ((1, 20, 20, 64), (32, 3, 3, 64), (256, 32), {"pad": 2, "dilation": 2}, "12x12"),
        ((2, 3, 66, 32), (32, 1, 3, 32), (64, 32), {}, "1x1x66"),
    ],
)
def test_windows_of_tiles_with_halos(
    image: Shape, weight: Shape, tile: tuple[int, int], more: dict[str, Any], what: str
) -> None:
    sch = w.schedule(
        convolution(image, weight, **more), tile, consumers=min(2, tile[0] // 64), block="conv"
    )
    steps = [more.get(name, least) for name, least in (("stride", 1), ("pad", 0), ("dilation", 1))]
    found = told(sch, image, weight, *steps, dtype=more.get("dtype", "float16"))
    assert f"{EACH_ONCE} {what} neighbours" in found


@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
@pytest.mark.parametrize(("out", "columns", "kept"), [(32, 32, True), (72, 40, False)])
def test_blocks_of_many_tiles(mode: str, out: int, columns: int, kept: bool) -> None:
    """Weights of all places stay where a tile has all columns."""
    image, weight = (70, 16, 16, 32), (out, 3, 3, 32)
    sch = convolution(image, weight, pad=1)
    sch = w.schedule(sch, (128, columns), block="conv", persistent=True, mode=mode)
    found = told(sch, image, weight, 1, 1, 1)
    assert EACH_ONCE in found
    assert (KEPT in found) == kept


@pytest.mark.parametrize(
    ("image", "weight", "tile", "more"),
    [
        # Every second pixel, one place, weights that lie along their columns, slices in a cluster.
        ((2, 17, 17, 64), (64, 3, 3, 64), (128, 64), {"stride": 2}),
        ((2, 16, 16, 64), (64, 1, 1, 64), (128, 64), {}),
        ((2, 16, 16, 64), (64, 3, 3, 64), (128, 64), {"turned": True}),
        ((2, 16, 16, 128), (64, 3, 3, 128), (64, 64), {"slices": 2}),
        # Two stages of all places are more than shared memory has.
        ((2, 16, 16, 64), (256, 3, 3, 64), (128, 256), {}),
        ((2, 16, 16, 64), (64, 3, 3, 64), (128, 64), {"dilation": 6}),
    ],
)
def test_others_copy_each_place(
    image: Shape, weight: Shape, tile: tuple[int, int], more: dict[str, Any]
) -> None:
    slices = more.pop("slices", 1)
    sch = convolution(image, weight, **more)
    consumers = min(2, tile[0] // 64)
    sch = w.schedule(sch, tile, consumers=consumers, block="conv", slices=slices)
    steps = more.get("stride", 1), 0, more.get("dilation", 1)
    assert EACH_ONCE not in told(sch, image, weight, *steps, turned=more.get("turned", False))


@pytest.mark.parametrize(("rank", "box"), [(1, "68"), (3, "3x10x10")])
def test_rows_and_volumes_have_halos(rank: int, box: str) -> None:
    """A row of 64 pixels, or of a volume 8 by 8."""
    size, window = ((64,), (5,)) if rank == 1 else ((3, 16, 16), (3, 3, 3))
    wide = [n + r - 1 for n, r in zip(size, window, strict=True)]
    A, B = (
        te.placeholder(s, "float16", name=x)
        for s, x in (((2, *wide, 32), "A"), ((32, *window, 32), "B"))
    )
    axes = [te.reduce_axis((0, n), name=f"r{i}") for i, n in enumerate((*window, 32))]

    def term(n: Any, *at: Any) -> Any:
        *pixel, f = at
        *place, c = axes
        moved = [p + r for p, r in zip(pixel, place, strict=True)]
        left = A[(n, *moved, c)].astype("float32")
        return te.sum(left * B[(f, *place, c)].astype("float32"), axis=axes)

    sums = te.compute((2, *size, 32), term, name="conv")
    out = te.compute(sums.shape, lambda *i: sums[i].astype("float16"), name="C")
    func = te.create_prim_func([A, B, out]).with_attr("global_symbol", "main")
    sch = w.schedule(s_tir.Schedule(func), (64, 32), consumers=1, block="conv")
    a, b = (
        np.random.default_rng(0).standard_normal(s) for s in ((2, *wide, 32), (32, *window, 32))
    )
    a, b = a.astype("float16"), b.astype("float16")
    with decisions.collect() as found:
        report = tlx.simulate(sch, a, b, target=w.SM90A, progress=False)
    assert report.hazards == []
    assert any(f"{box} neighbours" in str(one) for one in found)
    want: Any = 0
    for place in np.ndindex(*window):
        part = a[(slice(None), *(slice(at, at + n) for at, n in zip(place, size, strict=True)))]
        want = want + part.astype("float64") @ b[(slice(None), *place)].T.astype("float64")
    assert np.allclose(next(iter(report.outputs.values())), want, rtol=2**-10, atol=2e-3)


@pytest.mark.parametrize("wrong", ["pitch", "offsets"])
def test_the_simulated_gpu_sees_a_halo_that_is_read_elsewhere(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = halos.best_halo((2, 16, 16), (3, 3), ((1, 1), (2, 1)))
    assert found is not None
    box, halo = found
    other = {"pitch": 8} if wrong == "pitch" else {"offsets": (*halo.offsets[:-1], 21)}
    monkeypatch.setattr(halos, "best_halo", lambda *_: (box, replace(halo, **other)))
    image, weight = (2, 16, 16, 32), (32, 3, 3, 32)
    sch = w.schedule(convolution(image, weight, pad=1), (128, 32), block="conv")
    with pytest.raises(AssertionError):
        compared(sch, image, weight, 1, 1, 1)


@pytest.mark.costly
@pytest.mark.parametrize(
    "shape",
    [
        # Tiles of all columns have no room.
        (2, 64, 64, 8, 160, 3, 3),
        (8, 14, 127, 24, 160, 3, 3),
        # Two warpgroups in turns have chunks each.
        (32, 64, 64, 32, 256, 3, 4),
    ],
)
def test_a_default_of_few_channels_has_a_halo(shape: Shape) -> None:
    operator = find_operator("conv2d")
    config = operator.default_config()
    config |= operator.fit(shape, "float16", config, architecture("sm_90a"))
    with w.SM90A, decisions.collect() as found:
        tlx.lower(operator.schedule(operator.compute(shape, "float16"), config), target=w.SM90A)
    assert any(EACH_ONCE in str(one) for one in found)


@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((16, 112, 112, 32, 32, 3, 3), "128x32"),
        ((64, 56, 56, 64, 64, 3, 3), "2x128x64"),
        ((16, 112, 112, 128, 128, 3, 3), "2x128x128"),
    ],
)
def test_no_register_is_spilled(shape: Shape, tile: str, tmp_path: Path) -> None:
    operator = find_operator("conv2d")
    with w.SM90A:
        config = {**operator.default_config(), "wgmma": tile}
        sch = operator.schedule(operator.compute(shape, "float16"), config)
    require_no_spills(cuda_text(sch, w.SM90A), tmp_path)
