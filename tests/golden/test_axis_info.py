"""Axis information and the coalesced layouts, against what Triton 3.9 computed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden import cases, tracing
from tests.golden.cases import Case, case_id
from tests.golden.tracing import Value, bits_of
from tvm_layout_ext.analysis.axis_info import arithmetic as ai
from tvm_layout_ext.analysis.axis_info import values
from tvm_layout_ext.analysis.axis_info.coalescing import (
    MemoryAccess,
    atomic_add_elements,
    choose_layout,
)


def pointer_to(base: int, offset: Value, element: str, shape: list[int]) -> values.AxisInfo:
    offset = tracing.broadcast_to(offset, shape)
    start = values.splat(values.AxisInfo.argument(base), shape)
    return ai.add_pointer(start, offset.info, shape, bits_of(element))


@pytest.mark.parametrize("case", cases.of_kinds("axis_info"), ids=case_id)
def test_axis_info(case: Case) -> None:
    params = case["params"]
    base = params["base_pointer_divisibility_bytes"]
    scalars = {name: (s["type"], s["divisibility"]) for name, s in params["scalars"].items()}
    names = tracing.namespace({"X": (f"*{case['dtype']}", base)} | scalars, params["indices"])
    tracing.run(params["prelude"], names)
    offset = tracing.value_of(tracing.evaluate(params["expr"], names))

    info = pointer_to(base, offset, case["dtype"], case["shape"])

    assert {
        "contiguity": list(info.contiguity),
        "divisibility": list(info.divisibility),
        "constancy": list(info.constancy),
    } == case["expected"]


def with_accesses(case: Case) -> bool:
    return case["params"]["accesses"] is not None


def offset_of(op: Case, case: Case) -> Value:
    """The offset of one access, from its strides or its expression."""
    params = case["params"]
    shape = params["accesses"]["tile_shape"]
    with_program = "program_id" in params["accesses"]["index"]
    aligned = params["divisible_by_16"]
    scalars = {n: (kind, 16 if n in aligned else 1) for n, kind in params["signature"].items()}
    names = tracing.namespace(scalars, [])
    rank = len(shape)
    index: list[Any] = []
    for d, size in enumerate(shape):
        i = tracing.arange(0, size)
        if with_program:
            i = tracing.TL.program_id(d) * size + i
        names[f"i{d}"] = i
        index.append(i[tuple(slice(None) if e == d else None for e in range(rank))])
    if "expr" in op:
        return tracing.evaluate(op["expr"], names)
    terms = [i * stride_of(s) for i, s in zip(index, op["strides"], strict=True) if s != 0]
    total = tracing.value_of(0)
    for term in terms:
        total = total + term
    return total


def stride_of(stride: int | str) -> int | Value:
    if isinstance(stride, int):
        return stride
    _name, divisibility, _type = (*stride.split(":"), "", "")[:3]
    return Value(values.AxisInfo.argument(int(divisibility or 1)), argument=True)


def access_of(op: Case, case: Case) -> MemoryAccess:
    shape = case["params"]["accesses"]["tile_shape"]
    offset = tracing.value_of(offset_of(op, case))
    base = 16 if op.get("div16", True) else 1
    bits = bits_of(op["elem"])
    info = pointer_to(base, offset, op["elem"], shape)
    return MemoryAccess(info, tuple(shape), bits, op["op"] == "load", most_elements(op, case))


def most_elements(op: Case, case: Case) -> int | None:
    if not op["op"].startswith("atomic"):
        return None
    if op["op"] != "atomic_add":
        return 1
    floating = not op["elem"].startswith(("i", "u"))
    return atomic_add_elements(bits_of(op["elem"]), case["params"]["target_sm"], floating=floating)


@pytest.mark.parametrize(
    "case", list(filter(with_accesses, cases.of_kinds("coalesce"))), ids=case_id
)
def test_coalesce(case: Case) -> None:
    accesses = [access_of(op, case) for op in case["params"]["accesses"]["ops"]]
    warps = case["params"]["num_warps"]

    layouts = [choose_layout(access, accesses, warps) for access in accesses]

    found = [
        {
            "type": "blocked",
            "sizePerThread": list(layout.size_per_thread),
            "threadsPerWarp": list(layout.threads_per_warp),
            "warpsPerCTA": list(layout.warps_per_cta),
            "order": list(layout.order),
        }
        for layout in layouts
    ]
    assert found == [op["layout"] for op in case["expected"]["after_coalesce_pass"]]
