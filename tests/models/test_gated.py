"""Gated products of models become one function, where nobody else reads them."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn

import tvm_layout_ext as tlx
from benchmarks.model_zoo import PackedLinear
from tests.models import running
from tests.models.running import TARGET, check, fused, only, scheduled
from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.models.any_size import any_rows
from tvm_layout_ext.models.pipeline import lowered_passes
from tvm_layout_ext.schedules._generic import operator_of
from tvm_layout_ext.tune.space.space import Space

op = nn.op


class _Mlp(nn.Module):  # type: ignore[misc]
    """A gate and what it is multiplied by, of one linear or of two."""

    def __init__(self, kind: str, k: int, n: int, dtype: str = "float16") -> None:
        def linear(out: int, bias: bool = False) -> nn.Module:
            if kind == "packed":
                return PackedLinear(k, out)
            return nn.Linear(k, out, bias=bias, dtype=dtype)

        self.kind = kind
        if kind in ("two", "sigmoid", "others", "three"):
            self.gate, self.up = linear(n), linear(n)
            self.more = linear(n) if kind == "three" else None
        else:
            self.both = linear(2 * n, kind == "bias")

    def forward(self, x: nn.Tensor) -> Any:
        kind = self.kind
        if kind in ("two", "sigmoid", "others", "three"):
            gate, up = self.gate(x), self.up(x * 0.5 if kind == "others" else x)
        else:
            gate, up = op.split(self.both(x), 2, axis=-1)
        if kind == "sigmoid":
            return up * (gate * op.sigmoid(gate))
        if kind == "gelu":
            return op.gelu(up) * gate * 0.5
        if kind == "three":
            return op.silu(gate) * up * self.more(x)
        if kind == "read":
            return op.silu(gate) * up + gate
        return op.silu(gate) * up


def _module(
    kind: str, rows: tuple[Any, ...] = (2, 9), k: int = 64, n: int = 72, dtype: str = "float16"
) -> tvm.IRModule:
    spec = {"forward": {"x": nn.spec.Tensor((*rows, k), dtype)}}
    return _Mlp(kind, k, n, dtype).export_tvm(spec=spec)[0]


def _exported(kind: str, shape: tuple[int, ...] = (2, 9, 72)) -> tvm.IRModule:
    """A gated product as ``run_decompositions`` and ``ToMixedPrecision`` write it."""
    builder, k, n = relax.BlockBuilder(), 64, 72
    r = relax.op
    sizes = (18, k) if kind in ("flat", "outer") else (2, 9, k)
    dtype = "float16" if kind in ("flat", "outer", "blocks") else "float32"
    x = relax.Var("x", relax.TensorType(sizes, dtype))
    weights = [relax.Var(name, relax.TensorType((n, k), "float16")) for name in ("gate", "up")]

    def linear(rows: Any, weight: Any, to: tuple[int, ...] = shape) -> Any:
        turned = emit(r.permute_dims(weight, [1, 0]))
        product = emit(r.matmul(rows, turned, out_dtype="float32"))
        half = emit(r.astype(product, "float16"))
        return half if len(to) == 2 else emit(r.reshape(half, to))

    with builder.function("main", [x, *weights], pure=kind != "blocks"):
        if kind == "blocks":
            with builder.dataflow():
                x = builder.emit_output(r.reshape(emit(r.abs(x)), (18, k)))
            emit(r.print(x, format="{}"))
        with builder.dataflow():
            value = emit(r.multiply(x, relax.const(0.5))) if kind in ("norm", "tanh") else x
            flat = emit(r.reshape(value, (18, k)))
            rows = [emit(r.astype(flat, "float16"))] * 2 if dtype == "float32" else [x, x]
            if kind == "turned":
                turned = emit(r.permute_dims(x, [1, 0, 2]))
                rows[1] = emit(r.astype(emit(r.reshape(turned, (18, k))), "float16"))
            gate = linear(rows[0], weights[0])
            up = linear(rows[1], weights[1], (18, 1, n) if kind == "outer" else shape)
            silu = r.multiply(gate, emit(r.sigmoid(gate)))
            out = r.multiply(emit(r.nn.gelu_tanh(gate) if kind == "tanh" else silu), up)
            out = emit(r.sum(emit(out), -1))
            out = builder.emit_output(relax.Tuple([out, gate]) if kind == "read" else out)
        builder.emit_func_output(out)
    return builder.get()


def _biased(count: int, m: int, n: int = 72, bias: int = 0) -> tvm.IRModule:
    """A gate by products with biases, of one weight or two, as they are imported from torch."""
    r, k, each = relax.op, 64, 2 * n // count

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        product = r.matmul(x, r.permute_dims(weight, [1, 0]), out_dtype="float32")
        own = r.astype(bias, "float32") if str(bias.ty.dtype) == "float16" else bias
        return emit(r.astype(r.add(own, product), "float16"))

    def build(x: Any, *given: Any) -> Any:
        parts = [linear(x, *one) for one in zip(given[:count], given[count:], strict=True)]
        if count == 1:
            parts = [r.strided_slice(parts[0], [1], [at], [at + n]) for at in (0, n)]
        up, gate = parts
        return r.multiply(up, r.nn.gelu(gate))

    # One bias is narrow, and cast; the other is in float32.
    biases = [((bias or each,), kind) for kind in ("float16", "float32")[:count]]
    return relax_module(build, (m, k), *[(each, k)] * count, *biases)


def _rules(mod: tvm.IRModule) -> dict[str, str]:
    return {one.name: one.choice.rule for one in scheduled(mod)}


@pytest.mark.parametrize(
    ("kind", "rows", "dtype"),
    [
        ("one", (2, 9), "float16"),
        ("two", (70,), "bfloat16"),
        ("sigmoid", (130,), "float16"),
        ("gelu", (9,), "float16"),
        ("three", (9,), "float16"),
    ],
)
def test_gated_products_are_one_function_and_right(
    kind: str, rows: tuple[int, ...], dtype: str
) -> None:
    check(only(_module(kind, rows, dtype=dtype), "gated"), "gated products")


@pytest.mark.parametrize(("kind", "dtype"), [("one", "float16"), ("two", "bfloat16")])
@pytest.mark.parametrize("k", [36, 256])
def test_a_single_row_has_both_sums_in_one_kernel(kind: str, dtype: str, k: int) -> None:
    """Also of terms that TMA cannot copy: no tensor core computes them."""
    one = only(_module(kind, (1, 1), k=k, dtype=dtype))
    assert one.name == "gated"
    assert len(one.program.kernels) == 1
    check(one, "rows")


@pytest.mark.parametrize("m", [1, 9, 130])
@pytest.mark.parametrize("count", [1, 2])
def test_biases_are_added_in_the_same_kernel(count: int, m: int) -> None:
    """Stable Diffusion's GEGLU has one; half of its products' results were read again."""
    one, *views = scheduled(_biased(count, m))
    assert all("reshape" in other.name for other in views)
    assert (one.name, one.choice.rule) == ("gated", "rows" if m == 1 else "gated products")
    check(one)


def test_a_bias_of_one_element_keeps_products_apart() -> None:
    assert not any("gated" in gv.name_hint for gv in fused(_biased(2, 9, bias=1)).functions)


def test_nothing_else_is_left_of_an_mlp() -> None:
    assert list(_rules(_module("one", (1, 9)))) == ["gated"]
    assert list(_rules(_module("two", (1, 9)))) == ["gated"]


@pytest.mark.parametrize("kind", ["norm", "tanh", "input", "flat"])
def test_reshapes_of_rows_keep_no_products_apart(kind: str) -> None:
    made = {one.name: one for one in scheduled(_exported(kind))}
    gated = made.pop("gated")
    assert gated.choice.rule == "gated products"
    assert not any("matmul" in name for name in made)
    made.pop("sum")
    before = {"flat": [], "input": ["fused_cast_reshape"]}
    assert list(made) == before.get(kind, ["fused_multiply_cast_reshape"])
    check(gated)


def test_what_another_block_computes_is_not_read() -> None:
    mod = fused(_exported("blocks"))
    relax.analysis.well_formed(mod)
    assert "gated" in [gv.name_hint for gv in mod.functions]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("norm", (2, 9, 2, 36)),  # Columns are split, and no product gives these.
        ("read", (2, 9, 72)),  # The gate is a result, too.
        ("turned", (2, 9, 72)),  # Rows in another order.
        ("outer", (18, 72)),  # Each row of one meets all of the other.
    ],
)
def test_other_reshapes_keep_products_apart(kind: str, shape: tuple[int, ...]) -> None:
    names = [gv.name_hint for gv in fused(_exported(kind, shape)).functions]
    assert "gated" not in names
    assert any("matmul" in name for name in names)


@pytest.mark.parametrize(
    ("kind", "wishes"),
    [
        ("others", {}),  # Products of other rows.
        ("read", {}),  # Somebody else reads the gate.
        ("bias", {}),
        ("one", {"k": 36}),  # Rows that TMA cannot copy.
        ("one", {"dtype": "float32"}),
        ("packed", {"rows": ("n",)}),  # Of few they would be unpacked into memory.
    ],
)
def test_other_products_stay_apart(kind: str, wishes: dict[str, Any]) -> None:
    mod = fused(_module(kind, **wishes))
    assert not any("gated" in gv.name_hint for gv in mod.functions)


@pytest.mark.parametrize("rows", [(1, 1), (5, 8)])
def test_packed_halves_of_some_rows_are_unpacked_in_the_same_kernel(rows: tuple[int, ...]) -> None:
    rules = _rules(_module("packed", rows, k=128))
    assert rules.pop("gated") == "packed weights"
    assert all("reshape" in name for name in rules)


def test_halves_that_lanes_do_not_unpack_stay_apart() -> None:
    """Of 64 terms a lane's vectors are not whole."""
    rules = _rules(_module("packed", (1, 4)))
    assert not any("gated" in name for name in rules)
    assert "packed weights on threads" in rules.values()


def test_packed_weights_of_many_rows_are_unpacked_before() -> None:
    rules = _rules(_module("packed", (1, 70)))
    assert rules.pop("gated") == "gated products"
    assert list(rules.values()) == ["blocks"]


def test_other_gpus_keep_two_kernels() -> None:
    target = tlx.cuda_target("sm_80")
    with target:
        mod = tvm.transform.Sequential(lowered_passes(target))(_module("one"))
    assert not any("gated" in gv.name_hint for gv in mod.functions)


def test_the_tuner_tries_tiles_of_both_products() -> None:
    (one,) = scheduled(_module("one", (1, 9)))
    operator = operator_of(one.before)
    assert [knob.name for knob in operator.knobs] == ["tile", "group"]
    tile = Space(operator, (), "float16", architecture("sm_90a")).default()["tile"]
    assert one.choice.text.endswith(f"tiles of {tile}.")


def test_a_gated_mlp_compiles_by_the_pipeline() -> None:
    built = tvm.compile(_module("two"), TARGET, relax_pipeline=tlx.relax_pipeline(TARGET))
    assert isinstance(built, relax.VMExecutable)


@pytest.mark.parametrize("kind", ["one", "two", "gelu"])
def test_rows_of_any_number_have_one_kernel_for_few_and_one_for_many(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(any_rows, "MOST_FEW", 60)
    batch, length = (tvm.tirx.Var(name, "int64") for name in ("b", "n"))
    one = only(_module(kind, (batch, length), n=640), "gated")
    assert one.choice.rule == "gated products"
    assert "of up to 60 rows gated_matmul on tensor cores, both" in one.choice.text
    for size in (5, 70, 130):
        monkeypatch.setattr(running, "SIZE", size)
        assert len(check(one).launches) == 1
