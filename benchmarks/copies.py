"""Measure how many wavefronts one warp's ``cp.async`` takes, pattern by pattern.

``python -m benchmarks.copies --out FILE`` launches one warp and one copy for each pattern of global
and shared addresses under Nsight Compute, and writes patterns and counters as JSON. The rules of
the simulated GPU (``tvm_layout_ext.gpu.copies``) were fitted to these and are tested
against them.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.counters import parse

LANES = range(32)
_METRICS = {
    "wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
    "conflicts": "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
}
_SOURCE = Path(__file__).with_suffix(".cu")
_SIZE_SHIFT = 24

#: From a lane's number.
_Of = Callable[[int], int]


def _case(
    name: str,
    source: _Of,
    target: _Of,
    width: int = 16,
    through_cache: bool = False,
    on: Callable[[int], bool] = lambda lane: True,
    sizes: _Of | None = None,
) -> dict[str, Any]:
    case = {
        "name": name,
        "width": width,
        "through_cache": through_cache,
        "global": [source(i) for i in LANES],
        "shared": [target(i) if on(i) else -1 for i in LANES],
    }
    return case if sizes is None else case | {"sizes": [sizes(i) for i in LANES]}


def _vectors(i: int) -> int:
    return i * 16


def _rows(i: int) -> int:
    """Rows of 64 bytes, 512 bytes apart."""
    return i // 4 * 512 + i % 4 * 16


def _permuted(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Lines to rows: other lanes, fewer lanes, other orders of vectors."""
    for again in range(2):  # Are counts the same each time?
        yield _case(f"plain {again}", _vectors, _vectors)
        yield _case(f"rows of 64, {again}", _rows, _vectors)
    for n in (1, 2, 4, 8, 16):
        yield _case(f"first {n} lanes", _vectors, _vectors, on=lambda i, n=n: i < n)
    for key in (1, 2, 3, 5, 7):
        yield _case(f"xor {key}", _vectors, lambda i, k=key: (i ^ k) * 16)
    yield _case("lanes reversed", lambda i: (31 - i) * 16, lambda i: (31 - i) * 16)
    lanes = rng.sample(LANES, 32)
    yield _case("lanes shuffled", lambda i: lanes[i] * 16, lambda i: lanes[i] * 16)
    for by, name in ((1, "vectors rotated in the line"), (2, "vectors rotated by two")):
        yield _case(name, _vectors, lambda i, by=by: i // 8 * 128 + (i + by) % 8 * 16)


def _shifted() -> Iterator[dict[str, Any]]:
    few = {n: lambda i, n=n: i < n for n in (2, 3, 4, 8)}
    for s in range(0, 128, 16):
        moved = lambda i, s=s: i * 16 + s  # noqa: E731
        yield _case(f"one line shifted {s}", _vectors, moved, on=few[8])
        yield _case(f"four lines shifted {s}", _vectors, moved)
        yield _case(f"one line, source shifted {s}", moved, _vectors, on=few[8])
    for n in (2, 3, 4):
        for s in (0, 16, 32, 48, 112):
            yield _case(f"{n} vectors shifted {s}", _vectors, lambda i, s=s: i * 16 + s, on=few[n])


def _torn() -> Iterator[dict[str, Any]]:
    """Sectors whose halves part, and sectors that meet."""
    two, four = (lambda i: i < 2), (lambda i: i < 4)
    yield _case("a sector torn", _vectors, lambda i: 16 + i * 16, on=two)
    yield _case("a sector torn far", _vectors, lambda i: i * 64, on=two)
    yield _case("a sector torn, same half", _vectors, lambda i: i * 32, on=two)
    yield _case("two sectors into one", lambda i: i * 32, _vectors, on=two)
    yield _case("two sectors into one, crossed", lambda i: i * 48, lambda i: (1 - i) * 16, on=two)
    yield _case("four sectors' first halves into two", lambda i: i * 32, _vectors, on=four)
    swapped = (0, 48, 32, 16)
    yield _case("halves of two sectors exchanged", _vectors, lambda i: swapped[i % 4], on=four)
    gathered, reverse = (0, 4, 1, 5, 2, 6, 3, 7), (0, 4, 2, 6, 1, 5, 3, 7)
    for name, order in (("halves gathered", gathered), ("bit reversed vectors", reverse)):
        yield _case(name, _vectors, lambda i, o=order: i // 8 * 128 + o[i % 8] * 16)


def _scattered() -> Iterator[dict[str, Any]]:
    """Many lines or rows, and places read or written by several lanes."""
    line = lambda i: i < 8  # noqa: E731
    for n in (2, 4, 8):
        spread = lambda i, n=n: i % n * 128 + i * 16  # noqa: E731
        yield _case(f"one line to {n} rows", _vectors, spread, on=line)
        yield _case(f"{n} lines to one row", spread, _vectors, on=line)
        far = lambda i, n=n: i % n * 8192 + i * 16  # noqa: E731
        yield _case(f"{n} far lines to one row", far, _vectors, on=line)
    half = lambda i: i // 2 * 256 + i % 2 * 16  # noqa: E731
    yield _case("16 lines, half a warp a row", half, _vectors)
    yield _case("32 lines", lambda i: i * 128, _vectors)
    yield _case("32 rows", _vectors, lambda i: i * 128)
    yield _case("32 lines to 32 rows", lambda i: i * 128, lambda i: i * 128)
    yield _case("32 lines to 32 padded rows", lambda i: i * 128, lambda i: i * 144)
    yield _case("one vector to 8 places of a row", lambda i: 0, _vectors, on=line)
    yield _case("one vector to 32 places", lambda i: 0, _vectors)
    yield _case("one sector to 4 sectors", lambda i: i % 2 * 16, _vectors, on=line)
    yield _case("all to one place", _vectors, lambda i: 0)
    yield _case("pairs to one place", _vectors, lambda i: i // 2 * 16)


def _strided() -> Iterator[dict[str, Any]]:
    for a in (16, 32, 64, 144, 256, 528):
        for b in (16, 32, 48, 80, 144, 272):
            if (a, b) != (16, 16):
                yield _case(f"strides {a} to {b}", lambda i, a=a: i * a, lambda i, b=b: i * b)


def _padded() -> Iterator[dict[str, Any]]:
    """Rows of a tile, walked along or eight at a time."""
    for row, pad in ((64, 16), (128, 16), (128, 32), (256, 16), (256, 32), (32, 16)):
        for down in (1, 8):
            near = max(1, min(row // 16, 32 // down))
            at = [
                (i % down + i // (down * near) * down, i // down % near)
                if down > 1
                else divmod(i, row // 16)
                for i in LANES
            ]
            yield _case(
                f"rows of {row}+{pad}, {down} down",
                lambda i, at=at: at[i][0] * 1024 + at[i][1] * 16,
                lambda i, at=at, pitch=row + pad: at[i][0] * pitch + at[i][1] * 16,
            )


def _random(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Vectors of few lines to few rows in any order."""
    for n in range(14):
        lines, rows = rng.choice((1, 2, 4)), rng.choice((1, 2, 4))
        if lines == 4:
            source = rng.sample(range(32), 32)
        else:
            source = [rng.randrange(8 * lines) for _ in LANES]
        target = [16 * v * (1 if rows > 1 else 3) for v in rng.sample(range(32), 32)]
        keep = rng.choice((1.0, 1.0, 0.5))
        on = [rng.random() < keep for _ in LANES]
        yield _case(
            f"random {n}",
            lambda i, v=source: v[i] * 16,
            lambda i, v=target: v[i],
            on=lambda i, v=on: v[i],
        )


def _cached(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Copies through L1: 16 bytes, then 4 and 8."""
    for name, source, target in (
        ("plain", _vectors, _vectors),
        ("rows of 64", _rows, _vectors),
        ("shifted 16", _vectors, lambda i: i * 16 + 16),
        ("shifted 32", _vectors, lambda i: i * 16 + 32),
        ("32 rows", _vectors, lambda i: i * 128),
        ("32 lines", lambda i: i * 128, _vectors),
    ):
        yield _case(f"ca {name}", source, target, through_cache=True)
    for w in (4, 8):
        for name, source, target in _narrow(w, rng):
            on = (lambda i: i < 16) if name == "first half" else (lambda i: True)
            yield _case(f"{w} bytes, {name}", source, target, w, True, on)


def _narrow(w: int, rng: random.Random) -> Iterator[tuple[str, _Of, _Of]]:
    whole = lambda i: i * w  # noqa: E731
    for a in (w, 2 * w, 32, 128):
        for b in (w, 2 * w, 32, 128, 128 + w, 128 + 2 * w):
            yield f"strides {a} to {b}", lambda i, a=a: i * a, lambda i, b=b: i * b
    for s in (w, 2 * w, 16, 32, 64):
        yield f"shifted {s}", whole, lambda i, s=s: i * w + s
    for key in (1, 2, 4, 8):
        yield f"xor {key}", whole, lambda i, k=key: (i ^ k) * w
    yield f"8 rows of {8 * w}", lambda i: i // 8 * 512 + i % 8 * w, whole
    down = lambda i, pitch: i % 16 * pitch + i // 16 * w  # noqa: E731
    yield "16 rows down, pad 8", lambda i: down(i, 512), lambda i: down(i, 136)
    yield "first half", whole, whole
    yield "one source", lambda i: 0, whole
    lanes = rng.sample(LANES, 32)
    yield "shuffled", whole, lambda i: lanes[i] * w


def _sized() -> Iterator[dict[str, Any]]:
    """Source sizes that only the running warp knows."""
    for name, source, sizes in (
        ("16", _vectors, lambda i: 16),
        ("8", _vectors, lambda i: 8),
        ("0", _vectors, lambda i: 0),
        ("0 from one address", lambda i: 0, lambda i: 0),
        ("0 in odd lanes", _vectors, lambda i: 0 if i % 2 else 16),
        ("0 in half the lanes", _vectors, lambda i: 0 if i > 15 else 16),
        ("0, 8 lines", _rows, lambda i: 0),
        ("0 in 3 of 8 lanes", _vectors, lambda i: 0 if i % 8 > 4 else 16),
        ("0 in odd rows of 64", _rows, lambda i: 0 if i // 4 % 2 else 16),
    ):
        yield _case(f"src-size {name}", source, _vectors, sizes=sizes)


def patterns(seed: int = 5) -> list[dict[str, Any]]:
    """All patterns, without their counts."""
    rng = random.Random(seed)
    parts = (_permuted(rng), _shifted(), _torn(), _scattered(), _strided(), _padded())
    return [case for part in (*parts, _random(rng), _cached(rng), _sized()) for case in part]


def _line(case: dict[str, Any]) -> str:
    sizes = case.get("sizes", [0] * 32)
    mode = 2 if "sizes" in case else int(case["through_cache"])
    source = [a + (size << _SIZE_SHIFT) for a, size in zip(case["global"], sizes, strict=True)]
    return " ".join(map(str, (case["width"], mode, *source, *case["shared"])))


def measure(cases: list[dict[str, Any]]) -> list[dict[str, int]]:
    """Nsight Compute's counters of each pattern."""
    with tempfile.TemporaryDirectory() as folder:
        binary, table = Path(folder) / "a.out", Path(folder) / "cases.txt"
        table.write_text("".join(f"{_line(case)}\n" for case in cases))
        subprocess.run(["nvcc", "-arch=native", "-O2", "-o", binary, _SOURCE], check=True)
        command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw"]
        command += ["--print-units", "base", "--kernel-name", "regex:copy"]
        command += ["--metrics", ",".join(_METRICS.values()), str(binary), str(table)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counted = parse(out, _METRICS)
    if len(counted) != len(cases):
        raise RuntimeError(f"ncu saw {len(counted)} launches of {len(cases)}.")
    return counted


def main(out: Annotated[Path, typer.Option(help="JSON file to write.")]) -> None:
    """Measure every pattern on this machine's GPU."""
    cases = patterns()
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    records = [case | counts for case, counts in zip(cases, measure(cases), strict=True)]
    lines = ",\n".join(json.dumps(record) for record in records)
    out.write_text(f'{{"gpu": {json.dumps(gpu)}, "cases": [\n{lines}\n]}}\n')
    print(f"{len(records)} patterns measured on {gpu}, written to {out}")


if __name__ == "__main__":
    typer.run(main)
