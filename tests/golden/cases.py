"""Reads the cases that Triton computed, and turns their layouts into ours.

``TRITON_GOLDEN`` names another file of the same form.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from tvm_layout_ext import layout as L

Case = dict[str, Any]


@cache
def load() -> list[Case]:
    """All cases, of both files."""
    given = os.environ.get("TRITON_GOLDEN")
    files = [Path(given)] if given else sorted(Path(__file__).parent.glob("triton_golden*.json"))
    return [case for file in files for case in json.loads(file.read_text())["cases"]]


def of_kinds(*kinds: str) -> list[Case]:
    return [case for case in load() if case["kind"] in kinds]


def case_id(case: Case) -> str:
    return case.get("id") or f"{case['kind']}-{case['name']}"


def layout_of(spec: Case, kind: str = "") -> L.Layout:
    """Make the layout that a case describes; ``kind`` where the spec names no type."""
    return _MAKERS[spec.get("type", kind)](spec)


def linear_of(spec: Case) -> L.LinearLayout:
    return L.LinearLayout.from_bases(dict(spec["bases"]), dict(spec["out_dims"]), surjective=False)


def bases_of(linear: L.LinearLayout) -> dict[str, list[list[int]]]:
    return {name: [list(vector) for vector in vectors] for name, vectors in linear.bases}


def _mma(spec: Case) -> L.Layout:
    return L.NVMMADistributedLayout(spec["version"], spec["warps_per_cta"], spec["instr_shape"])


def _dot(spec: Case) -> L.Layout:
    return L.DotOperandLayout(spec["operand_index"], layout_of(spec["parent"]), spec["k_width"])


_MAKERS: dict[str, Any] = {
    "blocked": lambda s: L.BlockedLayout(
        s["size_per_thread"], s["threads_per_warp"], s["warps_per_cta"], s["order"]
    ),
    "slice": lambda s: L.SliceLayout(s["dim"], layout_of(s["parent"])),
    "mma": _mma,
    "mma_v2": _mma,
    "mma_v3": _mma,
    "dot": _dot,
    "dot_operand": _dot,
    "swizzled_shared": lambda s: L.SwizzledSharedLayout(
        s["vec"], s["per_phase"], s["max_phase"], s["order"]
    ),
    "nvmma_shared": lambda s: L.NVMMASharedLayout(
        s["swizzle_byte_width"],
        s["element_bitwidth"],
        rank=s.get("rank", 2),
        transposed=s["transposed"],
    ),
    "padded_shared": lambda s: L.PaddedSharedLayout(s["interval_padding_pairs"], s["order"]),
}
