"""Products by packed weights: unpacked inside one kernel, right, and each weight read once."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.relax.frontend import nn

import tvm_layout_ext as tlx
from benchmarks.model_zoo import PackedLinear, llama
from tests.models import running
from tests.models.running import TARGET, Scheduled, check, only, scheduled
from tests.programs import warpgroups as w
from tvm_layout_ext import simulate
from tvm_layout_ext.models.quantised.unpacked import widened


class _Net(nn.Module):  # type: ignore[misc]
    def __init__(self, inside: int, out: int, how: dict[str, Any]) -> None:
        self.up = PackedLinear(inside, out, **how)

    def forward(self, x: nn.Tensor, y: nn.Tensor) -> nn.Tensor:
        return nn.op.silu(self.up(x)) + y


def net(rows: Any, inside: int, out: int, **how: Any) -> tvm.IRModule:
    """A packed layer, an activation and a residual."""
    dtype = how.get("dtype", "float16")
    spec = {
        "x": nn.spec.Tensor((1, rows, inside), dtype),
        "y": nn.spec.Tensor((1, rows, out), dtype),
    }
    return _Net(inside, out, how).export_tvm(spec={"forward": spec})[0]


TYPES = w.TYPES | {one: np.dtype(one) for one in ("uint8", "uint16", "uint32")}
BYTES = {"bits": 8, "storage": "uint8", "group": 64}


@pytest.mark.parametrize(
    ("rows", "inside", "out", "how"),
    [
        (1, 2080, 18, {}),  # The last lanes have nothing to do, nor has the last warp.
        (3, 256, 24, BYTES),
        (1, 256, 24, {"storage": "uint8"}),
        (2, 96, 24, {"storage": "uint16"}),
        (1, 96, 8192, {}),  # Of many columns a warp has four.
    ],
)
def test_few_rows_go_to_one_kernel(rows: int, inside: int, out: int, how: dict[str, Any]) -> None:
    one = only(net(rows, inside, out, **how))
    check(one, "packed weights on threads", **words(one))


def words(one: Scheduled) -> dict[str, np.ndarray]:
    """Packed weights with all their bits, and scales of their size."""
    rng = np.random.default_rng(7)
    found = {}
    for param in one.before.params:
        shape, dtype = tuple(map(running.extent_of, param.shape)), TYPES[str(param.dtype)]
        if dtype.kind == "u":
            most = np.iinfo(dtype).max
            found[param.name] = rng.integers(0, most, shape, dtype, endpoint=True)
        elif "scale" in param.name:
            found[param.name] = rng.uniform(0.001, 0.01, shape).astype(dtype)
        elif param.name == "x":
            found["x"] = rng.standard_normal(shape, np.float32).astype(dtype)
    return found


@pytest.mark.parametrize(
    ("rows", "inside", "out", "how"),
    [
        (5, 256, 33, {}),  # Columns beyond the last, and rows.
        (1, 1152, 64, {}),
        (16, 384, 40, {}),
        (33, 128, 24, {}),
        (64, 640, 16, {"group": 64}),
        (3, 256, 24, {"bits": 8, "storage": "uint32"}),
        (9, 256, 24, {"dtype": "bfloat16"}),
        (2, 4096, 512, {}),
        (20, 4224, 16, {}),  # Several parts of the rows, the last one shorter.
        # All of the row at once, turn after turn: the last ones add nothing.
        (1, 5120, 24, {}),
        (3, 2304, 24, {"bits": 8, "storage": "uint32"}),
    ],
)
def test_some_rows_are_multiplied_by_mma_sync(
    rows: int, inside: int, out: int, how: dict[str, Any]
) -> None:
    one = only(net(rows, inside, out, **how))
    assert "mma.sync" in one.choice.text
    check(one, "packed weights", **words(one))


def test_kernels_of_one_file_agree_on_the_type_of_their_shared_memory() -> None:
    """Whether warps share columns makes another type of it, and CUDA has one for a name."""
    types: dict[str, set[str]] = {}
    bytes_in_words = {"bits": 8, "storage": "uint32"}
    for rows, out, how in ((4, 131072, {}), (4, 64, {}), (32, 65536, {}), (4, 64, bytes_in_words)):
        one = only(net(rows, 256, out, **how))
        module = tlx.build(one.after.with_attr("global_symbol", "main"), target=TARGET).mod
        text = module.imports[0].inspect_source()
        for kind, name in re.findall(r"extern __shared__ \S+ (\w+) (\w+)\[\]", text):
            types.setdefault(name, set()).add(kind)
    assert len(types) == 3
    assert all(len(kinds) == 1 for kinds in types.values())


@pytest.mark.parametrize(
    "how",
    [{"group": 16}, {"storage": "uint16"}, BYTES | {"storage": "uint32", "dtype": "bfloat16"}],
)
def test_lanes_whose_weights_share_no_scale_are_left_to_threads(how: dict[str, Any]) -> None:
    assert only(net(4, 256, 32, **how)).choice.rule == "packed weights on threads"


def test_warps_that_share_terms_are_as_many_as_fill_the_gpu() -> None:
    texts = [scheduled(net(4, 256, out))[0].choice.text for out in (4096, 131072)]
    assert "warps to a column" in texts[0]
    assert "warps to a column" not in texts[1]


def test_shared_memory_has_the_rows_that_there_are() -> None:
    def staged(rows: int) -> int:
        one = only(net(rows, 1024, 32)).after.with_attr("global_symbol", "main")
        (kernel,) = tlx.device_program(one, target=TARGET).kernels.values()
        return sum(tlx.shared_buffers(kernel).values())

    # Of a single row the sums of 8 warps take more, in the same place.
    assert [staged(rows) for rows in (1, 3, 8)] == [8 * 32 * 4 * 4, 3 * 2048, 8 * 2048]


def test_many_rows_fit_into_the_shared_memory_of_older_gpus() -> None:
    (one,) = scheduled(net(64, 4096, 4096))
    func = one.after.with_attr("global_symbol", "main")
    (kernel,) = tlx.device_program(func, target=TARGET).kernels.values()
    assert sum(tlx.shared_buffers(kernel).values()) <= 96 << 10


@pytest.mark.parametrize("how", [{}, BYTES])
def test_each_packed_weight_is_read_once_by_16_bytes(how: dict[str, Any]) -> None:
    one = only(net(4, 1024, 32, **how))
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


def test_many_rows_are_multiplied_by_warpgroups() -> None:
    one = only(net(65, 128, 64))
    check(one, "warpgroups", **words(one))


def test_the_host_chooses_a_kernel_for_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    one = only(net("n", 256, 40))
    assert one.choice.rule == "packed weights"
    for text in ("up to 8 rows", "up to 64 rows", "up to 128 rows", "of more NT_matmul"):
        assert text in one.choice.text
    for rows in (9, 140):
        monkeypatch.setattr(running, "SIZE", rows)
        check(one, **words(one))


def test_a_decoder_layer_of_packed_weights_is_right() -> None:
    found = scheduled(llama(1, 1, 31, 128, 4, 2, 160, is_packed=True).module)
    packed = [one for one in found if one.choice.rule.startswith("packed weights")]
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


def test_more_terms_make_no_longer_kernel() -> None:
    """Chunks of terms are a loop: unrolled, nvcc took 44 s for 64 rows by 14336 terms."""
    texts = []
    for inside in (4096, 8192):
        one = only(net(8, inside, 32))
        assert one.choice.rule == "packed weights"
        (kernel,) = one.program.kernels.values()
        texts.append(str(kernel.body).count("T.ptx.mma("))
    assert texts[0] == texts[1]
