"""What the benchmarks of memory-bound kernels compute beside the times."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import limits, memory_bound, memory_counters, pipelined, sanitize
from benchmarks.counters import METRICS
from benchmarks.memory_rows import ROWS, Row
from tvm_layout_ext.schedules.column_sum import compute as column_sum
from tvm_layout_ext.schedules.permute import permuted
from tvm_layout_ext.simulate import simulate

HALVES = 16384 * 16384 * 2
_ALL = ROWS | {stream.name: stream.row() for stream in pipelined.STREAMS}


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("transpose float32", 4 * HALVES),
        ("cast float16 to float32", 3 * HALVES),
        ("row sum float16", 32768 * 4096 * 2),
        ("column sum float16", 32768 * 4096 * 2),
        ("elementwise float16", 2 * HALVES + 16384 * 2),
        ("slice float16", 2 * HALVES),
        ("gather rows int32", 65536 * (2 * 4096 + 4)),
        ("stream_reduce 32768x4096 float16", 32768 * 4096 * 2 + 4096 * 2 + 32768 * 4),
        ("stencil 16384x16384 float32", 4 * HALVES),
    ],
)
def test_bytes_are_those_that_have_to_move(name: str, moved: int) -> None:
    assert _ALL[name].bytes() == moved


def test_a_limit_covers_every_vector() -> None:
    for limit in (*limits.READS, *limits.COPIES):
        count = 10_000_001
        blocks, chunk = limit.blocks(count, 132), limit.threads * limit.loads
        if limit.stays:
            assert blocks == 132 * 2048 // limit.threads
        else:
            assert (blocks - 1) * chunk < count <= blocks * chunk


def test_ratios_are_to_the_best_limit_and_the_best_peer() -> None:
    row = ROWS["row sum float16"]
    times = {"torch eager": [4.0], "torch.compile": [4.0, 4.0], "triton": [3.0]}
    times |= {"ours": [2.0, 3.0, 2.0], "limit: a": [1.5], "limit: b": [1.0, 9.0, 1.0]}
    result = memory_bound.summary(row, times, {"limit: a": 1.5, "limit: c": 7.0})
    assert (result["of_limit"], result["of_best_peer"]) == (0.5, 1.5)
    assert result["tb_per_s"]["ours"] == row.bytes() / 2 / 1e12
    assert memory_bound.table([result]).splitlines()[1].split()[-2:] == ["0.500", "1.500"]


def test_the_kernels_that_the_sanitizer_watches_are_right() -> None:
    """Those of the streams; the others have tests of their own."""
    seen = 0
    for kernel in sanitize.pipelined():
        if kernel.name.endswith("16 stages 4"):
            inputs = kernel.inputs()
            report = simulate(kernel.module(), *inputs, None)
            (output,) = report.outputs.values()
            np.testing.assert_allclose(output, kernel.reference(*inputs), rtol=1e-2, atol=1e-2)
            assert not report.hazards
            seen += 1
    assert seen == 2


def _small(name: str, tensors: object) -> Row:
    return Row(name, lambda: tensors, None, None)  # type: ignore[arg-type, return-value]


def test_simulated_counts_are_those_of_the_whole_grid() -> None:
    row = _small("turn", permuted((1024, 1024), "float32", (1, 0)))
    counts = memory_counters.simulated(row, whole_bytes=0)
    assert counts["simulated"]["global load sectors"] == 1024 * 1024 * 4 // 32
    assert counts["simulated"] == counts["least"]
    assert counts == memory_counters.simulated(row)


def test_kernels_of_one_row_are_added_up() -> None:
    two = _small("two", column_sum((4096, 512), "float16"))
    one = _small("one", column_sum((64, 256), "float16"))
    launches = [dict.fromkeys(METRICS, count) for count in (1, 10, 100)]
    assert memory_counters.grouped([two, one], launches) == {
        "two": dict.fromkeys(METRICS, 11),
        "one": dict.fromkeys(METRICS, 100),
    }
    with pytest.raises(RuntimeError, match="ncu saw 2 launches where 3 were expected"):
        memory_counters.grouped([two, one], launches[:2])
