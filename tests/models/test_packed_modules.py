"""Modules of PyTorch whose weights come to 4 or 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_layout_ext as tlx
from benchmarks.decode import rounded
from tests.models.language_models import language_model
from tvm_layout_ext.models.for_torch import dynamo
from tvm_layout_ext.models.for_torch.state import imported
from tvm_layout_ext.models.for_torch.torch_module import TorchModule
from tvm_layout_ext.models.imported.export import exported
from tvm_layout_ext.models.quantised.pack_weights import BITS, PackWeights

torch = pytest.importorskip("torch")
HOPPER = tlx.cuda_target("sm_90a")


class Mlp(torch.nn.Module):  # type: ignore[misc]
    """A gated MLP with biases and a residual, and a head that is too narrow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up = (torch.nn.Linear(256, 512, bias=False) for _ in range(2))
        self.down, self.head = torch.nn.Linear(512, 256), torch.nn.Linear(256, 64)

    def forward(self, x: Any) -> Any:
        both = torch.nn.functional.silu(self.gate(x)) * self.up(x)
        return self.head(x + self.down(both))


def rules_of(fast: TorchModule) -> list[str]:
    return [one.rule for one in fast.choices if "matmul" in one.name or "gated" in one.name]


@pytest.mark.parametrize("weights", [*BITS])
@pytest.mark.parametrize(
    ("dtype", "how"),
    [("float16", {}), ("bfloat16", {}), ("float32", {"dtype": "bfloat16"})],
)
def test_products_are_by_packed_weights(weights: str, dtype: str, how: dict[str, str]) -> None:
    kind = getattr(torch, dtype)
    given = (torch.zeros(4, 256, dtype=kind),)
    fast = tlx.compile_torch(Mlp().to(kind).eval(), given, target=HOPPER, weights=weights, **how)
    assert rules_of(fast).count("packed weights") == 2
    assert [one.rule for one in fast.choices if "gated" in one.name] == ["packed weights"]
    words = [one for one in fast._weights if str(one.dtype) == "uint32"]
    size = 256 * 512 * BITS[weights] // 32
    assert [int(np.prod(one.shape)) for one in words] == [size] * len(words)
    # What is tuned, and told of arguments, is the module as it came.
    assert len(fast.mod["main"].params) == 1
    assert "uint32" not in fast.mod.script()


def test_weights_stay_where_nobody_asks() -> None:
    given = (torch.zeros(4, 256).half(),)
    plain, none = (
        tlx.compile_torch(Mlp().half().eval(), given, target=HOPPER, **how)
        for how in ({}, {"weights": None})
    )
    texts = [
        [(one.name, one.rule, one.text) for one in fast.choices] + [fast.mod.script()]
        for fast in (plain, none)
    ]
    assert texts[0] == texts[1]
    assert "packed" not in str(plain)


def test_rows_of_any_number() -> None:
    """The host chooses among kernels; launches are not captured, as without packed weights."""
    rows = torch.export.Dim("rows", min=1, max=4096)
    fast = tlx.compile_torch(
        Mlp().half().eval(),
        (torch.zeros(4, 256).half(),),
        dynamic_shapes=({0: rows},),
        target=HOPPER,
        weights="int4",
    )
    assert rules_of(fast).count("packed weights") == 3
    with pytest.raises(tlx.TargetError, match="GPU"):
        fast(torch.zeros(9, 256).half())


@pytest.mark.parametrize("weights", ["int3", 4, True, ("int4",), np.array(["int4"])])
def test_other_weights_are_refused_before_anything_is_exported(weights: Any) -> None:
    said = r"weights is one of int4, int8, not "
    with pytest.raises(tlx.ScheduleError, match=said):
        tlx.compile_torch(None, (), weights=weights)
    with pytest.raises(tlx.ScheduleError, match=said):
        tlx.torch_backend(None, (), options={"weights": weights})


@pytest.mark.parametrize("dtype", [None, "float32", "tf32"])
def test_products_of_32_bits_are_refused(dtype: Any) -> None:
    with pytest.raises(tlx.ScheduleError, match="packed for products of 16 bits; give dtype"):
        tlx.compile_torch(Mlp(), (torch.zeros(4, 256),), dtype=dtype, weights="int8")


def test_what_torch_compile_cuts_out_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[TorchModule]()

    def compiled(*args: Any, **options: Any) -> TorchModule:
        made.append(tlx.compile_torch(*args, **options))
        return made[-1]

    monkeypatch.setattr(dynamo, "compile_torch", compiled)
    monkeypatch.setattr(dynamo, "_are_on_gpu", bool)
    torch._dynamo.reset()
    options = {"weights": "int4", "target": HOPPER}
    net = torch.compile(Mlp().half().eval(), backend=tlx.torch_backend, options=options)
    with torch.no_grad(), pytest.raises(tlx.TargetError, match="GPU"):
        net(torch.zeros(4, 256).half())
    assert [rules_of(one).count("packed weights") for one in made] == [2]


class Half(torch.nn.Module):  # type: ignore[misc]
    """A part of a program that holds no weights, but a table of places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(256.0))

    def forward(self, x: Any) -> Any:
        return (x * 0.5 + self.places).half()


def test_a_module_without_weights_is_compiled_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    """As parts of a program that torch cuts out."""
    tlx.compile_torch(Half().eval(), (torch.zeros(4, 256),), target=HOPPER, weights="int4")
    assert "comes to" not in caplog.text


def packable(kind: str, **sizes: Any) -> Any:
    """A language model all of whose linears are packed."""
    plain = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 600}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    return language_model(kind, **plain, **heads, **sizes).requires_grad_(False)


@pytest.mark.costly
@pytest.mark.parametrize(("weights", "tied"), [("int4", True), ("int8", False)])
def test_a_language_model_keeps_its_keys(weights: str, tied: bool) -> None:
    """Step by step as the whole sequence by rounded weights, and otherwise than by its own."""
    model = packable("Llama", tie_word_embeddings=tied, num_hidden_layers=1)
    given = torch.randint(0, 600, (2, 8))
    net = tlx.with_static_cache(model, 20, batch=2)
    mod, state = imported(exported(net, (given[:, :1], torch.arange(1))))
    pack = PackWeights(BITS[weights])
    mod = pack.as_constants(pack(mod))
    tables = [one for one in constants(mod) if list(one.shape) == [600, 256]]
    assert [str(one.dtype) for one in tables] == ["bfloat16"]
    plain = model(given).logits.float()
    whole = rounded(model, weights)(given).logits.float()
    main = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    tensors = tvm.runtime.from_dlpack
    held = [tensors(one.clone()) for one in state.buffers.values()]
    atol, errors = 0.02 * float(whole.abs().max()), []
    for at in range(8):
        now = (given[:, at : at + 1].clone(), torch.tensor([at]))
        logits = torch.from_dlpack([*main(*held, *map(tensors, now))][-1]).float()
        np.testing.assert_allclose(logits[:, -1], whole[:, at], atol=atol)
        errors.append(float((logits[:, -1] - plain[:, at]).abs().max()))
    if weights == "int4":
        assert max(errors) > 2 * atol


def constants(mod: tvm.IRModule) -> list[Any]:
    """Constants of a module, each once."""
    found = dict[Any, Any]()

    def visit(one: Any) -> None:
        if isinstance(one, tvm.ir.GenericConst):
            found[one.value] = one.value

    relax.analysis.post_order_visit(mod["main"], visit)
    return [*found.values()]


def test_all_products_of_a_step_are_by_packed_weights() -> None:
    model = packable("Qwen3", head_dim=64, tie_word_embeddings=True)
    net = tlx.with_static_cache(model, 128)
    fast = tlx.compile_torch(
        net,
        (torch.zeros(1, 1, dtype=torch.int64), torch.arange(1)),
        target=HOPPER,
        weights="int4",
        cuda_graphs=True,
    )
    assert {*rules_of(fast)} == {"packed weights"}
    # A layer's gate is one of its products, and nothing is left beside it.
    assert [one.name for one in fast.choices if "sigmoid" in one.name] == []
    assert [one.name for one in fast.choices if "gated" in one.name] == ["gated"]
    assert [one.rule for one in fast.choices].count("attention") == 1
    assert not [one for one in fast.choices if one.fell_back or one.rule == "dlight"]
    # The table of embeddings, beside the head of the same weights.
    types = {tuple(map(int, one.shape)): str(one.dtype) for one in fast._weights}
    assert types[600, 256] == "bfloat16"
    assert types[600, 32] == "uint32"


@pytest.mark.gpu
@pytest.mark.parametrize("weights", [*BITS])
@pytest.mark.parametrize("graphs", [False, True])
def test_a_chunk_and_steps_on_a_gpu(weights: str, graphs: bool) -> None:
    """They share words and scales, and are torch's by rounded weights."""
    model = packable("Qwen3", head_dim=64, tie_word_embeddings=True)
    given = torch.randint(0, 600, (1, 24))
    net = tlx.with_static_cache(model, 128)
    chunk, step = (
        tlx.compile_torch(net, (given[:, :n], torch.arange(n)), weights=weights, cuda_graphs=graphs)
        for n in (16, 1)
    )
    whole = rounded(model, weights).cuda().float()(given.cuda()).logits.cpu()
    atol = 0.03 * float(whole.abs().max())
    logits = chunk(given[:, :16].cuda(), torch.arange(16).cuda())
    np.testing.assert_allclose(logits[:, -1].float().cpu(), whole[:, 15], atol=atol)
    step.buffers = chunk.buffers
    for at in range(16, 24):
        logits = step(given[:, at : at + 1].cuda(), torch.tensor([at]).cuda())
        np.testing.assert_allclose(logits[:, -1].float().cpu(), whole[:, at], atol=atol)
    (device,) = step._machines
    pairs = [one._machines[device].shared for one in (chunk, step)]
    shared = [{one.data_ptr() for one in found} for found in pairs]
    words = [one for one in pairs[1] if one.dtype == torch.uint32]
    assert words
    assert all(one.data_ptr() in shared[0] for one in words)
