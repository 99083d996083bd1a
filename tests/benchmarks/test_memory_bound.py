"""What the benchmark of memory-bound kernels computes beside the times."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer

from benchmarks import cubin, limits, memory_bound, memory_counters
from benchmarks.counters import METRICS
from benchmarks.memory_rows import ROWS, Row
from tvm_layout_ext.schedules.column_sum import compute as column_sum
from tvm_layout_ext.schedules.permute import permuted

_PEERS = ("torch eager", "torch.compile", "triton")
HALVES = 16384 * 16384 * 2


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
    ],
)
def test_bytes_are_those_that_have_to_move(name: str, moved: int) -> None:
    assert ROWS[name].bytes() == moved


def test_rows_are_chosen_by_a_part_of_their_name() -> None:
    assert [row.name for row in memory_bound.named("sum")] == [
        "row sum float16",
        "column sum float16",
    ]
    with pytest.raises(typer.BadParameter, match="no row is named like 'softmax'"):
        memory_bound.named("softmax")


def test_a_limit_covers_every_vector() -> None:
    for limit in (*limits.READS, *limits.COPIES):
        count = 10_000_001
        blocks, chunk = limit.blocks(count, 132), limit.threads * limit.loads
        if limit.stays:
            assert blocks == 132 * 2048 // limit.threads
        else:
            assert (blocks - 1) * chunk < count <= blocks * chunk


def test_small_arrays_do_not_fill_the_grid() -> None:
    assert limits.Limit("read", 8, 256, stays=True).blocks(3 * 8 * 256, 132) == 3


def test_names_of_limits_differ() -> None:
    names = [limit.name for limit in (*limits.READS, *limits.COPIES)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("limit") for name in names)


@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_every_limit_has_a_kernel() -> None:
    image = cubin.compiled(limits.SOURCE, "sm_90")
    for limit in (*limits.READS, *limits.COPIES):
        assert f"{limit.kernel}_{limit.loads}".encode() + b"\0" in image


@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_what_nvcc_says_is_passed_on(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("__global__ void f() { g(); }\n")
    with pytest.raises(RuntimeError, match=r"(?s)does not compile wrong\.cu.*\"g\" is undefined"):
        cubin.compiled(source, "sm_90")


def test_ratios_are_to_the_best_limit_and_the_best_peer() -> None:
    row = ROWS["row sum float16"]
    times = {
        "ours": [2.0, 3.0, 2.0],
        **{peer: [4.0, 4.0] for peer in _PEERS},
        "triton": [3.0],
        "limit: a": [1.5],
        "limit: b": [1.0, 9.0, 1.0],
    }
    result = memory_bound.summary(row, times, {"limit: a": 1.5, "limit: c": 7.0})
    assert result["of_limit"] == 0.5
    assert result["of_best_peer"] == 1.5
    assert result["tb_per_s"]["ours"] == row.bytes() / 2 / 1e12
    (heading, line) = memory_bound.table([result]).splitlines()
    assert line.split()[-2:] == ["0.500", "1.500"]
    assert heading.split()[-4:] == ["of", "limit", "of", "best"]


def _small(name: str, tensors: object) -> Row:
    return Row(name, lambda: tensors, None, None)  # type: ignore[arg-type, return-value]


def test_simulated_counts_are_those_of_the_whole_grid() -> None:
    size = 1024
    row = _small("turn", permuted((size, size), "float32", (1, 0)))
    counts = memory_counters.simulated(row, whole_bytes=0)
    least = size * size * 4 // 32
    assert counts["simulated"]["global load sectors"] == least
    assert counts["simulated"]["global store sectors"] == least
    assert counts["simulated"] == counts["least"]
    assert counts == memory_counters.simulated(row)


def test_kernels_of_one_row_are_added_up() -> None:
    two = _small("two", column_sum((4096, 512), "float16"))
    one = _small("one", column_sum((512, 256), "float16"))
    launches = [dict.fromkeys(METRICS, count) for count in (1, 10, 100)]
    assert memory_counters.grouped([two, one], launches) == {
        "two": dict.fromkeys(METRICS, 11),
        "one": dict.fromkeys(METRICS, 100),
    }
    with pytest.raises(RuntimeError, match="ncu saw 2 launches where 3 were expected"):
        memory_counters.grouped([two, one], launches[:2])


def test_counters_of_another_machine_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_counters._compat, "has_gpu", lambda: False)
    row = _small("small", column_sum((512, 256), "float16"))
    known = {"ncu": {"small": dict.fromkeys(METRICS, 7)}, "revision": "abc"}
    record = memory_counters.collect([row], known, simulate=True)
    assert record["ncu"] == known["ncu"]
    assert record["revision"] == "abc"
    loads = 512 * 256 * 2 // 32
    assert record["simulated"]["small"]["global load sectors"] == loads
    line = memory_counters.table(record).splitlines()[1]
    assert line.split() == ["small", "global", "load", "sectors", "7", f"{loads:,}", f"{loads:,}"]
