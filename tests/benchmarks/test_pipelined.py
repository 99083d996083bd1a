"""What the benchmark of pipelines that are no products computes beside the times."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import pipelined, sanitize
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.simulate import simulate

NAMES = [stream.name for stream in pipelined.STREAMS]


def test_every_depth_takes_part_both_ways() -> None:
    assert NAMES == [
        "stream_reduce 32768x4096 float16",
        "stream_reduce 32768x4096 float32",
        "stencil 16384x16384 float16",
        "stencil 16384x16384 float32",
    ]
    for stream in pipelined.STREAMS:
        found = dict(stream.configs())
        assert list(found) == [f"{w} {n}" for w in ("cp.async", "registers") for n in range(1, 7)]
        for config in found.values():
            stream.operator.check_config(config)
            gpu = architecture("sm_90a")
            assert stream.operator.check(stream.shape, stream.dtype, config, gpu) is None


@pytest.mark.parametrize(
    ("place", "moved"),
    [(0, 32768 * 4096 * 2 + 4096 * 2 + 32768 * 4), (3, 2 * 16384 * 16384 * 4)],
)
def test_bytes_are_those_that_have_to_move(place: int, moved: int) -> None:
    stream = pipelined.STREAMS[place]
    assert stream.row().bytes() == moved
    assert stream.row().is_sum == stream.name.startswith("stream_reduce")


def test_the_best_depth_is_held_against_limit_and_peers() -> None:
    stream = pipelined.STREAMS[0]
    times = {name: [4.0, 5.0, 4.0] for name, _ in stream.configs()}
    times |= {"cp.async 3": [2.0], "torch eager": [6.0], "torch.compile": [5.0]}
    times |= {"limit: a": [1.5], "limit: b": [1.0, 9.0, 1.0]}
    result = pipelined.summary(stream, times, {"limit: c": 7.0})
    assert (result["best"], result["of_limit"], result["of_best_peer"]) == ("cp.async 3", 0.5, 2.5)
    assert result["tb_per_s"]["cp.async 3"] == stream.row().bytes() / 2 / 1e12
    lines = pipelined.table([result]).splitlines()
    assert len(lines) == 1 + 12 + 2 + 2
    assert lines[-1].split() == ["of_best_peer", "2.500"]


def test_the_kernels_that_the_sanitizer_watches_are_right() -> None:
    """Those of the streams; the others have tests of their own."""
    seen = 0
    for name, mod, inputs, expected in sanitize.kernels():
        if name.startswith(("stream_reduce in 4", "stencil in 4")):
            report = simulate(mod, *inputs, None)
            (output,) = report.outputs.values()
            np.testing.assert_allclose(output, expected, rtol=1e-2, atol=1e-2)
            assert not report.hazards
            seen += 1
    assert seen == 2
