"""Products by packed weights: unpacked inside one kernel, right, and each weight read once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.relax.frontend import nn

from benchmarks.model_zoo import PackedLinear, llama
from tests.models.running import TARGET, check, scheduled
from tvm_layout_ext import simulate
from tvm_layout_ext.models.quantised.unpacked import widened


class _Net(nn.Module):  # type: ignore[misc]
    def __init__(self, inside: int, out: int, how: dict[str, Any]) -> None:
        self.up = PackedLinear(inside, out, **how)

    def forward(self, x: nn.Tensor, y: nn.Tensor) -> nn.Tensor:
        return nn.op.silu(self.up(x)) + y


def net(rows: Any, inside: int, out: int, **how: Any) -> tvm.IRModule:
    """A packed layer, an activation and a residual."""
    spec = {
        "x": nn.spec.Tensor((1, rows, inside), "float16"),
        "y": nn.spec.Tensor((1, rows, out), "float16"),
    }
    return _Net(inside, out, how).export_tvm(spec={"forward": spec})[0]


BYTES = {"bits": 8, "storage": "uint8", "group": 64}


@pytest.mark.parametrize(
    ("rows", "inside", "out", "how"),
    [
        (1, 1024, 64, {}),
        (1, 2080, 18, {}),  # The last lanes have nothing to do, nor has the last warp.
        (5, 256, 33, {}),
        (3, 256, 24, BYTES),
        (1, 256, 24, {"storage": "uint8"}),
        (2, 96, 24, {"storage": "uint16"}),
        (1, 64, 8192, {}),  # Of many columns a warp has four.
    ],
)
def test_few_rows_go_to_one_kernel(rows: int, inside: int, out: int, how: dict[str, Any]) -> None:
    (one,) = scheduled(net(rows, inside, out, **how))
    assert one.choice.rule == "packed weights"
    check(one)


@pytest.mark.parametrize("how", [{}, BYTES])
def test_each_packed_weight_is_read_once_by_16_bytes(how: dict[str, Any]) -> None:
    (one,) = scheduled(net(4, 1024, 32, **how))
    arrays = [
        np.zeros([int(n) for n in param.shape], str(param.dtype)) for param in one.before.params
    ]
    report = simulate(
        one.after.with_attr("global_symbol", "main"), *arrays, target=TARGET, progress=False
    )
    assert len(report.launches) == 1
    packed = next(array for array in arrays if array.dtype.kind == "u")
    found = [x for x in report.accesses if x.scope == "global" and x.buffer.endswith("packed")]
    assert {access.vector_bytes for access in found} == {16}
    assert sum(x.sectors for x in found) == prod(packed.shape) * packed.itemsize // 32


@pytest.mark.parametrize("rows", [9, "n"])
def test_many_rows_go_to_tensor_cores(rows: Any) -> None:
    (one,) = scheduled(net(rows, 128, 64))
    assert one.choice.rule in ("warpgroups", "tensor cores")
    check(one)


def test_a_decoder_layer_of_packed_weights_is_right() -> None:
    found = scheduled(llama(1, 1, 31, 128, 4, 2, 160, is_packed=True).module)
    packed = [one for one in found if one.choice.rule == "packed weights"]
    assert len(packed) == 4
    assert not any("dequantize" in one.name for one in found if one not in packed)
    for one in packed:
        check(one)


def test_integers_become_floats_by_their_bits() -> None:
    byte = tirx.Var("byte", "int8")
    value = widened(tirx.Cast("float16", byte) - tirx.const(5, "float16"))
    assert "reinterpret" in str(value)
    # Two numbers are taken away as one: 2**23, 128 for the sign, and 5.
    assert str(value).count("float32(8388") == 1
    assert float(str(value).rpartition("float32(")[2].rstrip(")")) == (1 << 23) + 128 + 5
    count = tirx.Var("count", "int32")
    assert "reinterpret" not in str(widened(tirx.Cast("float16", count)))
