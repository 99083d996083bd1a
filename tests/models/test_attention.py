"""Attention in models of Relax: gathered into one function, scheduled as one kernel, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from tests.models import running
from tests.models.running import check, fused, only, scheduled
from tests.programs.relaxed import relax_module


@pytest.fixture(autouse=True)
def _few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SIZE", 3)


class _Heads(nn.Module):  # type: ignore[misc]
    """Attention of ``heads`` by matmul and softmax; ``form`` says how keys are hidden."""

    def __init__(self, heads: int, kept: int, form: str) -> None:
        self.heads, self.kept, self.form = heads, kept, form

    def forward(self, q: nn.Tensor, k: nn.Tensor, v: nn.Tensor, more: nn.Tensor) -> nn.Tensor:
        op = nn.op
        rows, size = q.shape[1], q.shape[3]
        q, k, v = (op.permute_dims(one, (0, 2, 1, 3)) for one in (q, k, v))
        k, v = (op.repeat(one, self.heads // self.kept, axis=1) for one in (k, v))
        scores = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))) * size**-0.5
        if self.form in ("causal", "infinite"):
            lowest = -60000.0 if self.form == "causal" else -float("inf")
            hidden = op.full((rows, rows), lowest, "float16")
            scores = scores + op.triu(hidden, diagonal=1)
        elif self.form == "bias":
            scores = scores + more
        mixed = op.matmul(op.softmax(scores, axis=-1), v)
        return op.permute_dims(mixed, (0, 2, 1, 3))


def model(heads: int, kept: int, rows: int, size: int, form: str, dtype: str) -> tvm.IRModule:
    def spec(*shape: int) -> Any:
        return nn.spec.Tensor(shape, dtype)

    inputs = {
        "q": spec(1, rows, heads, size),
        "k": spec(1, rows, kept, size),
        "v": spec(1, rows, kept, size),
        "more": spec(1, 1, rows, rows),
    }
    mod, _ = _Heads(heads, kept, form).export_tvm({"forward": inputs})
    return mod


@pytest.mark.costly
@pytest.mark.parametrize(
    ("form", "kept", "dtype"),
    [
        ("plain", 2, "float16"),
        ("causal", 1, "float16"),
        ("infinite", 1, "float16"),
        ("bias", 2, "bfloat16"),
    ],
)
def test_products_and_softmax_become_one_kernel(form: str, kept: int, dtype: str) -> None:
    check(only(model(2, kept, 72, 64, form, dtype)), "attention")


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(1, 70, 2, 64), (2, 40, 2, 64), ("n", 70, 2, 64)])
def test_the_operator_of_relax_is_attention_too(shape: tuple[Any, ...]) -> None:
    def build(*qkv: Any) -> Any:
        return op.nn.attention(*qkv, causal_mask="TopLeft")

    check(only(relax_module(build, *[shape] * 3)), "attention")


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(1, "n", 4, 64), ("m", "n", 2, 64)])
def test_queries_of_any_number_by_a_cache_of_keys(shape: tuple[Any, ...]) -> None:
    """A mask says which keys each row sees; batches of any number read as many caches."""
    batch, rows, *heads = shape
    keys = (batch, 130, *heads)
    mod = relax_module(op.nn.attention, shape, keys, keys, (batch, 1, rows, 130))
    check(only(mod), "attention")


def test_heads_without_a_kernel_stay_products(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "tvm_layout_ext"):
        names = {gv.name_hint for gv in fused(model(2, 2, 72, 36, "plain", "float16")).functions}
    assert not any(name.startswith("attention") for name in names)
    assert "Attention stays products and a softmax: wgmma multiplies 36 columns" in caplog.text


def test_keys_that_are_divided_and_scores_that_a_number_replaces() -> None:
    # As DeBERTa's: K is turned, then divided by a root; a number stands where keys are hidden.
    def build(q: Any, k: Any, v: Any, shown: Any) -> Any:
        root = op.sqrt(op.multiply(*(relax.const(n, "float16") for n in (16, 3))))
        turned = op.divide(op.permute_dims(k, (0, 2, 1)), root)
        scores = op.astype(op.matmul(q, turned), "float32")
        scores = op.where(op.logical_not(shown), relax.const(-3e38, "float32"), scores)
        return op.matmul(op.astype(op.nn.softmax(scores), "float16"), v)

    functions = scheduled(relax_module(build, *[(2, 40, 48)] * 3, ((2, 40, 40), "bool")))
    (one,) = [one for one in functions if one.choice.rule == "attention"]
    check(one)


def test_slices_of_a_product_are_read_where_they_are() -> None:
    # In the product's rows, of all batches, 70 keys of a batch are followed by those of the next.
    batch, rows, heads, size = 2, 70, 2, 64

    def build(flat: Any) -> Any:
        every = op.reshape(flat, (batch, rows, 3, heads, size))
        parts = (op.strided_slice(every, [2], [at], [at + 1]) for at in range(3))
        return op.nn.attention(*(op.squeeze(one, [2]) for one in parts))

    check(only(relax_module(build, (batch * rows, 3 * heads * size))), "attention")


def test_a_scale_of_its_own_keeps_the_type() -> None:
    def build(*qkv: Any) -> Any:
        return op.add(op.nn.attention(*qkv, scale=0.25), qkv[0])

    # TVM lowers it to a function of float32, which is cast.
    functions = scheduled(relax_module(build, *[(1, 40, 2, 64)] * 3))
    assert "attention" in [one.choice.rule for one in functions]
    for one in functions:
        check(one)
    *_, last = functions
    assert [str(param.dtype) for param in last.after.params] == ["float16"] * len(last.after.params)


@pytest.mark.costly
@pytest.mark.parametrize("batch", [2, "n"])
def test_a_part_of_the_keys_may_be_hidden_whole(batch: Any) -> None:
    """Padding hides the last keys, and a few rows have blocks for parts of the keys."""
    keys = (batch, 700, 2, 64)
    one = only(relax_module(op.nn.attention, (batch, 5, 2, 64), keys, keys, (batch, 1, 1, 700)))
    assert "of them for the keys of a row" in one.choice.text
    mask = np.zeros((running.SIZE if batch == "n" else batch, 1, 1, 700), "float16")
    mask[..., 100:] = -np.inf
    (name,) = (p.name for p in one.before.params if int(p.shape[1]) == 1)
    report = check(one, **{name: mask})
    # No sign of a place is corrected.
    assert "rmod" not in report.script
