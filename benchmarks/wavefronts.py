"""Measure how many wavefronts one warp's shared-memory access takes, pattern by pattern.

``python -m benchmarks.wavefronts --out FILE`` compiles one kernel a width, launches it once for
each address pattern under Nsight Compute, and writes patterns and counters as JSON. The simulated
GPU's rule (``tvm_layout_ext.gpu.counts``) was fitted to these and is tested against them.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.counters import parse

LANES = range(32)
WIDTHS = (1, 2, 4, 8, 16)
_METRIC = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum"

_SOURCE = Path(__file__).with_suffix(".cu")

#: Element index of a lane: strides, broadcasts and mixtures of both.
_REGULAR: tuple[Callable[[int], int], ...] = (
    *(lambda lane, s=s: lane * s for s in (0, 1, 2, 4, 8, 16, 32, 33)),
    *(lambda lane, d=d: lane // d for d in (2, 3, 4, 8, 16)),
    *(lambda lane, m=m: lane % m for m in (2, 4, 8, 12, 16)),
    *(lambda lane, m=m: lane & ~m for m in (1, 2, 4, 8, 16)),
    *(lambda lane, m=m: (lane % m) * 32 for m in (2, 8, 16)),
    *(lambda lane, d=d: (lane // d) * 32 for d in (2, 4, 8, 16)),
    lambda lane: 31 - lane,
    lambda lane: (lane % 16) ^ (lane // 16),
    lambda lane: (lane & 1) | ((lane >> 4) << 1),
    lambda lane: (lane * 5) % 32,
)


def _selected(bits: tuple[int, ...], slots: list[int]) -> list[int]:
    """Let a lane's slot depend on the named bits of its number only."""
    return [slots[sum(((lane >> b) & 1) << i for i, b in enumerate(bits))] for lane in LANES]


def _irregular(rng: random.Random) -> list[int]:
    pool = rng.sample(range(rng.choice((32, 64, 128, 256))), rng.choice((2, 3, 4, 8, 16, 32)))
    if rng.random() < 0.25:
        return [rng.choice(pool) for _ in LANES]
    bits = tuple(sorted(rng.sample(range(5), rng.choice((3, 4)))))
    slots = _selected(bits, [rng.choice(pool) for _ in range(1 << len(bits))])
    for _ in range(rng.choice((0, 0, 1, 2))):
        slots[rng.randrange(32)] = rng.choice(pool)
    return slots


def patterns(seed: int = 7, irregular: int = 90) -> Iterator[tuple[int, bool, list[int]]]:
    """Yield ``(width, is_store, byte offset of each lane or -1)``."""
    rng = random.Random(seed)
    for width in WIDTHS:
        for store in (False, True):
            rows = [[f(lane) for lane in LANES] for f in _REGULAR]
            rows += [_irregular(rng) for _ in range(irregular if width >= 4 else 20)]
            for row in rows:
                offsets = [width * slot for slot in row]
                if rng.random() < 0.25:
                    offsets = [-1 if rng.random() < 0.4 else offset for offset in offsets]
                yield width, store, offsets


def measure(cases: list[tuple[int, bool, list[int]]]) -> list[int]:
    """Wavefronts of each case, by Nsight Compute."""
    with tempfile.TemporaryDirectory() as folder:
        binary, table = Path(folder) / "a.out", Path(folder) / "cases.txt"
        table.write_text("".join(f"{w} {int(s)} {' '.join(map(str, o))}\n" for w, s, o in cases))
        subprocess.run(["nvcc", "-arch=native", "-O2", "-o", binary, _SOURCE], check=True)
        metrics = ",".join(_METRIC.format(op=op) for op in ("ld", "st"))
        command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw"]
        command += ["--metrics", metrics, str(binary), str(table)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = parse(out, {op: _METRIC.format(op=op) for op in ("ld", "st")})
    if len(rows) != len(cases):
        raise RuntimeError(f"ncu saw {len(rows)} launches of {len(cases)}.")
    return [row["st" if store else "ld"] for row, (_, store, _) in zip(rows, cases, strict=True)]


def main(out: Annotated[Path, typer.Option(help="JSON file to write.")]) -> None:
    """Measure every pattern on this machine's GPU."""
    cases = list(patterns())
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    records = [
        {"width": w, "store": s, "offsets": o, "wavefronts": n}
        for (w, s, o), n in zip(cases, measure(cases), strict=True)
    ]
    lines = ",\n".join(json.dumps(r) for r in records)
    out.write_text(f'{{"gpu": {json.dumps(gpu)}, "cases": [\n{lines}\n]}}\n')
    print(f"{len(records)} patterns measured on {gpu}, written to {out}")


if __name__ == "__main__":
    typer.run(main)
