"""Layouts and their algebra, against what Triton 3.9 computed."""

from __future__ import annotations

import pytest

from tests.golden import cases
from tests.golden.cases import Case, bases_of, case_id, layout_of, linear_of
from tests.golden.tracing import bits_of
from tvm_layout_ext.layout.banks import bank_conflicts
from tvm_layout_ext.layout.conversion.convert import scratch_bytes
from tvm_layout_ext.layout.operands import shared_for_mma_sync, shared_for_wgmma, wgmma_order

DISTRIBUTED = ("blocked", "slice", "mma_v2", "mma_v3", "dot_operand")


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
    allocated = layout.allocated_elements(case["shape"]) * bits_of(case["dtype"]) // 8
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


def on_plain_memory(case: Case) -> bool:
    return not case["expected"].get("uses_matrix_instructions")


@pytest.mark.parametrize(
    "case", list(filter(on_plain_memory, cases.of_kinds("convert_layout"))), ids=case_id
)
def test_conversion_scratch(case: Case) -> None:
    src, dst = (layout_of(case["params"][k]).to_linear(case["shape"]) for k in ("src", "dst"))
    assert bases_of(src) == case["params"]["src_bases"]
    assert bases_of(dst) == case["params"]["dst_bases"]
    scratch = scratch_bytes(src, dst, bits_of(case["dtype"]))
    assert scratch == case["expected"]["shared_bytes"]


@pytest.mark.parametrize("case", cases.of_kinds("bank_conflicts"), ids=case_id)
def test_bank_conflicts(case: Case) -> None:
    registers, shared = (
        layout_of(case["params"][k]).to_linear(case["shape"])
        for k in ("register_layout", "shared_layout")
    )
    found = bank_conflicts(registers, shared, case["element_bits"])
    assert found == case["expected"]["conflicts"]


@pytest.mark.parametrize("case", cases.of_kinds("swizzle"), ids=case_id)
def test_shared_layout_of_operand(case: Case) -> None:
    params = case["params"]
    index, bits = params["operand_index"], params["elem_bits"]
    order, turned = params["memory_order_of_loaded_tile"], params["tile_is_transposed_before_dot"]
    expected = dict(case["expected"])
    if expected.pop("type") == "nvmma_shared":
        order = wgmma_order(index, order, bits, transposed=turned)
        layout = shared_for_wgmma(case["shape"], order, bits)
        names = {"swizzlingByteWidth": "swizzle_byte_width", "elementBitWidth": "element_bitwidth"}
    else:
        layout = shared_for_mma_sync(
            index, case["shape"], order, bits, params["k_width"], transposed=turned
        )
        names = {"perPhase": "per_phase", "maxPhase": "max_phase"}
    found = {name: getattr(layout, names.get(name, name)) for name in expected}
    assert {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()} == expected
