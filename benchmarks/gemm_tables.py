"""Tables of measured products: by speed, the best of each shape, by depth, and by swizzle."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from benchmarks.stock_tvm import PREFIX

__all__ = ["depths", "overview", "swizzles", "table"]

LIBRARY = "cuBLAS"
_MODES = ("xor", "pad", "none")


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows sorted by speed, with the ratio to cuBLAS."""
    best = next((r["tflops"] for r in rows if r["config"] == LIBRARY), float("nan"))
    lines = [title]
    for row in sorted(rows, key=lambda row: -row.get("tflops", 0)):
        speed = row.get("tflops", 0.0)
        facts = ""
        if "registers" in row:
            facts = (
                f"{row['registers']:4} regs {row['spill_bytes']:5} spill "
                f"{row['shared_bytes']:7,} B {row['blocks_per_sm']} blocks"
            )
        wrong = f"  WRONG: {row['error']}" if row["error"] else ""
        lines.append(
            f"  {speed:7.1f} TFLOPS {speed / best:6.3f}x {facts:40} {row['config']}{wrong}"
        )
    return "\n".join(lines)


def overview(groups: Sequence[Mapping[str, Any]]) -> str:
    """The best of every shape, type and order beside its peers, and the ratios' geometric mean."""
    lines, ratios = [], []
    for group in groups:
        speeds = {
            r["config"]: r["tflops"] for r in group["rows"] if r.get("tflops") and not r["error"]
        }
        library = speeds.pop(LIBRARY, None)
        stock = {name: speeds.pop(name) for name in [*speeds] if name.startswith(PREFIX)}
        if library is None or not speeds:
            continue
        best = max(speeds, key=speeds.__getitem__)
        ratio = speeds[best] / library
        size = "x".join(map(str, group["shape"]))
        lines.append(
            f"{group['type']:14} {size:17} {group['layout']} {speeds[best]:7.1f} {library:7.1f} "
            f"{ratio:.3f}  {best}"
        )
        if stock:
            peer = max(stock, key=stock.__getitem__)
            lines.append(
                f"{'':36}{stock[peer]:7.1f}: ours is {speeds[best] / stock[peer]:.2f}x of the best "
                f"of {len(stock)} of {peer}"
            )
        if (group["type"], group["layout"]) == ("float16", "nt"):
            ratios.append(ratio)
    if ratios:
        mean = geometric_mean(ratios)
        lines.append(f"float16 nt: {mean:.3f} of cuBLAS, geometric mean over {len(ratios)} shapes")
    return "\n".join(["the best, TFLOPS: ours, cuBLAS, ratio", *lines])


def _without(config: str, *knobs: str) -> str:
    """The rest of a configuration."""
    return " ".join(part for part in config.split() if part.partition("=")[0] not in knobs)


def _stages(row: Mapping[str, Any]) -> int:
    found = re.search(r"\bstages=(\d+)", row["config"])
    return int(found[1]) if found else 0


def _spread(row: Mapping[str, Any], flops: int) -> str:
    """Median TFLOPS, and the slowest and fastest round."""
    speeds = [flops / seconds / 1e12 for seconds in row["all_seconds"]]
    return f"{median(speeds):6.1f} ({min(speeds):5.1f} to {max(speeds):5.1f})"


def _flops(group: Mapping[str, Any]) -> int:
    m, n, k = group["shape"]
    return int(2 * m * n * k)


def depths(group: Mapping[str, Any]) -> str:
    """Each tile at every number of versions: occupancy, speed, and ratio to one version.

    Parameters
    ----------
    group : mapping
        ``shape`` and ``rows``; rows without times, as ``compile`` gives, show their occupancy.
    """
    families = defaultdict(list)
    for row in group["rows"]:
        if _stages(row) and "registers" in row:
            families[_without(row["config"], "stages")].append(row)
    lines = []
    for family, rows in families.items():
        rows.sort(key=_stages)
        if len(rows) < 2 or _stages(rows[0]) != 1:
            continue
        lines.append(f"versions of {family}")
        base = rows[0].get("tflops")
        for row in rows:
            speed = ""
            if base and row.get("tflops"):
                speed = f"  {_spread(row, _flops(group))} TFLOPS  {row['tflops'] / base:.3f}x"
            lines.append(
                f"  N={_stages(row)} {row['registers']:4} registers {row['shared_bytes']:7,} B  "
                f"{row['blocks_per_sm']} blocks a multiprocessor (computed "
                f"{row['blocks_computed']}){speed}"
            )
        timed = [row for row in rows if row.get("tflops")]
        if base and timed:
            best = max(timed, key=lambda row: float(row["tflops"]))
            lines.append(
                f"  best N={_stages(best)} over N=1: {best['tflops'] / base:.3f}x; deepest "
                f"N={_stages(rows[-1])} holds {rows[-1]['blocks_per_sm']} of "
                f"{rows[0]['blocks_per_sm']} blocks"
            )
    return "\n".join(lines)


def swizzles(group: Mapping[str, Any]) -> str:
    """XOR, padding and neither side by side, at every number of versions, with their spread.

    XOR counts as slower than padding if its median is slower by more than the larger of their two
    spreads, that is of longest minus shortest round.
    """
    families: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
    for row in group["rows"]:
        found = re.search(r"\bswizzle=(\w+)", row["config"])
        if found and row.get("all_seconds") and not row["error"]:
            rest = _without(row["config"], "stages", "swizzle")
            families[rest, _stages(row)][found[1]] = row
    lines, last = [], ""
    for (rest, stages), modes in sorted(families.items()):
        if not {"xor", "pad"} <= modes.keys():
            continue
        if rest != last:
            lines.append(f"swizzles of {rest}, TFLOPS")
            last = rest
        cells = [
            f"{mode} {_spread(modes[mode], _flops(group))}" for mode in _MODES if mode in modes
        ]
        lines.append(f"  N={stages} {'  '.join(cells)}  {_verdict(modes['xor'], modes['pad'])}")
    return "\n".join(lines)


def _verdict(xor: Mapping[str, Any], pad: Mapping[str, Any]) -> str:
    first, second = xor["all_seconds"], pad["all_seconds"]
    lost = median(first) / median(second) - 1
    spread = max(max(all_) - min(all_) for all_ in (first, second)) / median(second)
    slower = "SLOWER" if lost > spread else "not slower"
    return f"xor takes {lost:+.1%} of pad's time, spread {spread:.1%}: {slower}"
