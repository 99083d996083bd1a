"""Layouts and their algebra, against what Triton 3.9 computed."""

from __future__ import annotations

import pytest

from tests.golden import cases
from tests.golden.cases import Case, bases_of, case_id, layout_of, linear_of

DISTRIBUTED = ("blocked", "slice", "mma_v2", "mma_v3", "dot_operand")
BYTES = {"i8": 1, "fp16": 2, "bf16": 2, "fp32": 4, "i32": 4, "fp64": 8, "i64": 8}


@pytest.mark.parametrize("case", cases.of_kinds(*DISTRIBUTED), ids=case_id)
def test_distributed_layout(case: Case) -> None:
    linear = layout_of(case["params"], case["kind"]).to_linear(case["shape"])

    assert bases_of(linear) == case["expected"]["bases"]
    assert list(linear.out_sizes.values()) == case["expected"]["out_shape"]


@pytest.mark.parametrize("case", cases.of_kinds("swizzled_shared", "nvmma_shared"), ids=case_id)
def test_shared_layout(case: Case) -> None:
    params = {**case["params"], "rank": len(case["shape"])}
    layout = layout_of(params, case["kind"])

    assert bases_of(layout.to_linear(case["shape"])) == case["expected"]["bases"]
    assert layout.alignment == case["expected"]["alignment"]


@pytest.mark.parametrize("case", cases.of_kinds("padded_shared"), ids=case_id)
def test_padded_shared_layout(case: Case) -> None:
    layout = layout_of(case["params"], case["kind"])
    expected = case["expected"]

    assert bases_of(layout.to_linear(case["shape"]))["offset"] == expected["offset_bases"]
    allocated = layout.allocated_elements(case["shape"]) * BYTES[case["dtype"]]
    assert allocated == expected["shared_bytes"]


@pytest.mark.parametrize("case", cases.of_kinds("ll_algebra"), ids=case_id)
def test_linear_layout_algebra(case: Case) -> None:
    params = case["params"]
    a = linear_of(params["a"])
    operations = {
        "compose": lambda: a.compose(linear_of(params["b"])),
        "invert": a.invert,
        "pseudoinvert": a.pseudo_invert,
        "invert_and_compose": lambda: a.invert_and_compose(linear_of(params["b"])),
    }

    assert operations[params["op"]]() == linear_of(case["expected"])
