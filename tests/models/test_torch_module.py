"""A module of PyTorch as a function; what is refused, and on a GPU what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_layout_ext as tlx
from tvm_layout_ext.models.imported.torch_module import exported, imported

torch = pytest.importorskip("torch")
HOPPER = tlx.cuda_target("sm_90a")


class Both(torch.nn.Module):  # type: ignore[misc]
    """A linear whose results have names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 128)

    def forward(self, x: Any, *, bias: Any = None) -> dict[str, Any]:
        y = self.linear(x)
        y = y if bias is None else y + bias
        return {"sums": y, "kept": [torch.relu(y)]}


def net() -> Any:
    torch.manual_seed(0)
    return Both().eval()


def test_a_module_is_compiled_without_a_gpu_and_left_as_it_is() -> None:
    module, x = net(), torch.zeros(32, 64)
    before = module.linear.weight.clone()
    fast = tlx.compile_torch(module, (x,), dtype="float16", target=HOPPER)
    assert "warpgroups" in repr(fast)
    assert [one for one in fast.choices if one.fell_back] == []
    assert len(fast.mod["main"].ret_ty.fields) == 2
    assert module.linear.weight.dtype == torch.float32
    assert torch.equal(module.linear.weight, before)


def test_float32_stays_where_no_type_is_named() -> None:
    fast = tlx.compile_torch(net(), (torch.zeros(32, 64),), target=HOPPER)
    assert "float16" not in fast.mod.script()
    assert "threads" in repr(fast)


class Fourier(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return torch.fft.fft(x)


class Branching(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x


class Written(torch.nn.Module):  # type: ignore[misc]
    """Counts its calls, or doubles what it is given."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.register_buffer("count", torch.zeros(64))

    def forward(self, x: Any) -> Any:
        target = self.count if self.where == "count" else x
        target.add_(1)
        return x + self.count


class Rows(torch.nn.Module):  # type: ignore[misc]
    """Keeps rows where it is told to, and gives the sums of all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("kept", torch.zeros(2, 16, 64), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any, places: Any) -> Any:
        self.calls.add_(1)
        self.kept[:, places] = self.linear(x)
        return self.kept.sum(1) * self.calls


class WithNone(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x + 1, None


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (lambda: net().train(), {}, "in training"),
        (lambda: net().bfloat16(), {"dtype": "float16"}, "holds bfloat16 and keeps its types"),
        (net, {"dtype": "bf16"}, "float32, float16"),
        (lambda: torch.relu, {}, "torch.nn.Module"),
        (lambda: Fourier().eval(), {}, "cannot import"),
        (lambda: Branching().eval(), {}, "torch.export refuses"),
        (lambda: Written("x").eval(), {}, "writes to its inputs x"),
        (lambda: WithNone().eval(), {}, "what is None"),
        (lambda: net().to("meta"), {}, "torch.export refuses"),
    ],
)
def test_what_is_refused(make: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(tlx.ScheduleError, match=said) as caught:
        tlx.compile_torch(make(), (torch.zeros(4, 64),), target=HOPPER, **options)
    assert "\n" not in str(caught.value)


def test_arguments_that_are_no_tensors_are_refused() -> None:
    with pytest.raises(tlx.ScheduleError, match="attribute of the module"):
        tlx.compile_torch(net(), (torch.zeros(4, 64),), {"bias": None}, target=HOPPER)


def test_arguments_of_another_form_are_refused_and_so_is_a_machine_without_a_gpu() -> None:
    fast = tlx.compile_torch(net(), (torch.zeros(32, 64),), target=HOPPER)
    with pytest.raises(tlx.ScheduleError, match="compiled for"):
        fast(torch.zeros(32, 64), torch.zeros(32, 64))
    with pytest.raises(tlx.ScheduleError, match="not a tensor of torch"):
        fast(np.zeros((32, 64), "float32"))
    with pytest.raises(tlx.TargetError, match="GPU"):
        fast(torch.zeros(32, 64))
    with pytest.raises(tlx.ScheduleError, match="no tensor"):
        tlx.compile_torch(net(), (), target=HOPPER)


def test_arguments_with_names_come_in_any_order() -> None:
    class Difference(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *, a: Any, b: Any) -> Any:
            return a - b

    given = {"a": torch.zeros(32, 64), "b": torch.ones(32, 64)}
    fast = tlx.compile_torch(Difference().eval(), (), given, target=HOPPER)
    with pytest.raises(tlx.TargetError, match="GPU"):
        fast(b=given["b"], a=given["a"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_module_of_16_bits_keeps_its_types(dtype: str) -> None:
    kind = getattr(torch, dtype)
    fast = tlx.compile_torch(net().to(kind), (torch.zeros(32, 64, dtype=kind),), target=HOPPER)
    assert "warpgroups" in repr(fast)
    assert {str(one.dtype) for one in fast.mod["main"].ret_ty.fields} == {dtype}
    assert str(fast.mod["main"].params[0].ty.dtype) == dtype


def on_cpu(module: Any, calls: list[tuple[Any, ...]]) -> None:
    """What is imported gives what the module does, call after call, by TVM's own code for CPUs."""
    tensors = tvm.runtime.from_dlpack
    mod, state = imported(exported(module, calls[0]))
    main = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    held = {name: tensors(one.clone()) for name, one in state.buffers.items()}
    kept = {**dict(module.named_buffers())}
    for one in calls:
        results = [*main(*held.values(), *(tensors(x.clone()) for x in one))]
        for name, new in zip(state.written, results, strict=False):
            if name in state.in_place:
                assert new.data_ptr() == held[name].data_ptr()
            held[name] = new
        with torch.no_grad():
            wanted = module(*one)
        tolerance = 1e-4 if wanted.dtype == torch.float32 else 0.02 * float(wanted.abs().max())
        for name, new in held.items():
            found = torch.from_dlpack(new).float()
            np.testing.assert_allclose(found, kept[name].float(), atol=tolerance)
        found = torch.from_dlpack(results[-1]).float()
        np.testing.assert_allclose(found, wanted.float(), atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_a_module_writes_is_kept(dtype: str) -> None:
    """Rows in place, of negative places, too; a counter not."""
    torch.manual_seed(0)
    module, kind = Rows().to(getattr(torch, dtype)).eval(), getattr(torch, dtype)
    places = [torch.tensor([3, 5, 0]), torch.tensor([5, 15, 4]), torch.tensor([-1, 2, -7])]
    on_cpu(module, [(torch.randn(2, 3, 64, dtype=kind), at) for at in places])
    _, state = imported(exported(Rows().eval(), (torch.zeros(2, 3, 64), places[0])))
    assert state.in_place == {"kept"}
    assert {*state.buffers} == {"kept", "calls"}


def language_model(kind: str = "Llama", dtype: str = "bfloat16", **sizes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        head_dim=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=500,
        **{"max_position_embeddings": 256, **sizes},
    )
    made = getattr(transformers, f"{kind}ForCausalLM")(config)
    return made.to(getattr(torch, dtype)).eval()


@pytest.mark.parametrize(
    ("kind", "dtype", "tokens"),
    [("Llama", "bfloat16", 1), ("Llama", "float32", 8), ("Qwen3", "float16", 1),
     ("Gemma2", "float32", 1), ("Mistral", "float32", 4)],
)  # fmt: skip
def test_a_language_model_keeps_its_keys(kind: str, dtype: str, tokens: int) -> None:
    """Step by step as the whole sequence, also where windows are shorter than it."""
    model = language_model(kind, dtype, **({"sliding_window": 6} if kind != "Llama" else {}))
    given = torch.randint(0, 500, (2, 16))
    with torch.no_grad():
        whole = model(given).logits.float()
    net, places = tlx.with_static_cache(model, 20, batch=2), torch.arange(tokens)
    mod, state = imported(exported(net, (given[:, :tokens], places)))
    assert state.in_place == {*state.buffers}
    main = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    tensors = tvm.runtime.from_dlpack
    held = [tensors(one.clone()) for one in state.buffers.values()]
    for at in range(0, 16, tokens):
        now = (given[:, at : at + tokens].clone(), places + at)
        logits = torch.from_dlpack([*main(*held, *map(tensors, now))][-1]).float()
        atol = 1e-5 if dtype == "float32" else 0.02 * float(whole.abs().max())
        np.testing.assert_allclose(logits[:, -1], whole[:, at + tokens - 1], atol=atol)


def test_a_step_of_16_bits_has_one_kernel_of_attention_and_no_fallback() -> None:
    net = tlx.with_static_cache(language_model(), 128)
    example = (torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    fast = tlx.compile_torch(net, example, target=HOPPER)
    rules = [one.rule for one in fast.choices]
    assert rules.count("attention") == 1
    assert not [one for one in fast.choices if one.fell_back or one.rule == "dlight"]
    with pytest.raises(tlx.ScheduleError, match="a model of transformers, not Both"):
        tlx.with_static_cache(Both(), 128)


@pytest.mark.gpu
def test_state_on_a_gpu_is_that_of_the_module() -> None:
    torch.manual_seed(0)
    module = Rows().eval()
    calls = [(torch.randn(2, 3, 64), torch.tensor(at)) for at in ([3, 5, 0], [5, 15, 4])]
    fast = tlx.compile_torch(module, calls[0])
    for x, places in calls:
        with torch.no_grad():
            wanted = module(x, places)
        found = fast(x.cuda(), places.cuda())
        np.testing.assert_allclose(found.cpu(), wanted, atol=1e-4)
        np.testing.assert_allclose(fast.buffers["kept"].cpu(), module.kept, atol=1e-4)
    assert int(fast.buffers["calls"]) == 2
    fast.buffers = {"kept": fast.buffers["kept"]}
    with pytest.raises(tlx.ScheduleError, match="buffers has no calls"):
        fast(x.cuda(), places.cuda())


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tokens"), [("bfloat16", 1), ("float16", 1), ("bfloat16", 8)])
def test_a_prompt_and_steps_on_a_gpu(dtype: str, tokens: int) -> None:
    """A prompt by one module and steps by another, of the same buffers, repeated by a graph."""
    model = language_model(dtype=dtype).cuda()
    given = torch.randint(0, 500, (1, 32)).cuda()
    with torch.no_grad():
        whole = model.float()(given).logits
    net = tlx.with_static_cache(model.to(getattr(torch, dtype)), 128)
    prompt = tlx.compile_torch(net, (given[:, :16], torch.arange(16)))
    step = tlx.compile_torch(net, (given[:, :tokens], torch.arange(tokens)))
    atol = 0.02 * float(whole.abs().max())
    logits = prompt(given[:, :16], torch.arange(16).cuda())
    np.testing.assert_allclose(logits[:, -1].float().cpu(), whole[:, 15].cpu(), atol=atol)
    step.buffers = prompt.buffers
    now, places = given[:, :tokens].clone(), torch.arange(tokens).cuda()
    for _ in range(3):  # Memory is there after them.
        step(now, places)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = step(now, places)
    # Both wrote to the first places, which are written again.
    prompt(given[:, :16], torch.arange(16).cuda())
    for at in range(16, 32, tokens):
        now.copy_(given[:, at : at + tokens])
        places.copy_(torch.arange(at, at + tokens))
        graph.replay()
        found = logits[:, -1].float().cpu()
        np.testing.assert_allclose(found, whole[:, at + tokens - 1].cpu(), atol=atol)


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
def test_results_are_the_modules_in_its_own_form(graphs: bool) -> None:
    module, x, bias = net(), torch.randn(32, 64), torch.randn(128)
    fast = tlx.compile_torch(module, (x,), {"bias": bias}, dtype="float16", cuda_graphs=graphs)
    for _ in range(3):
        x, bias = torch.randn(32, 64), torch.randn(128)
        with torch.no_grad():
            wanted = module(x, bias=bias)
        found = fast(x.cuda(), bias=bias.cuda())
        assert {*found} == {*wanted}
        assert found["sums"].is_cuda
        np.testing.assert_allclose(found["sums"].cpu(), wanted["sums"], atol=0.02)
        np.testing.assert_allclose(found["kept"][0].cpu(), wanted["kept"][0], atol=0.02)


@pytest.mark.gpu
def test_tensors_that_are_turned_or_begin_anywhere_are_copied_and_others_refused() -> None:
    module = net()
    fast = tlx.compile_torch(module, (torch.zeros(32, 64),))
    turned, shifted = torch.randn(64, 32).cuda().T, torch.randn(32 * 64 + 1).cuda()[1:]
    for x in (turned, shifted.view(32, 64)):
        with torch.no_grad():
            wanted = module(x.cpu())["sums"]
        np.testing.assert_allclose(fast(x)["sums"].cpu(), wanted, atol=1e-4)
    for other in (torch.zeros(16, 64), torch.zeros(32, 64).half(), torch.zeros(1, 32, 64)):
        with pytest.raises(tlx.ScheduleError, match="compiled for"):
            fast(other.cuda())
    with pytest.raises(tlx.TargetError, match="one GPU"):
        fast(torch.zeros(32, 64))


@pytest.mark.gpu
def test_kernels_run_on_torchs_stream() -> None:
    """What a graph of torch captures is run again by it."""
    module = net()
    fast = tlx.compile_torch(module, (torch.zeros(32, 64),), dtype="float16")
    x = torch.randn(32, 64).cuda()
    for _ in range(3):
        fast(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fast(x)
    x.copy_(torch.randn(32, 64))
    graph.replay()
    torch.cuda.synchronize()
    with torch.no_grad():
        wanted = module(x.cpu())["sums"]
    np.testing.assert_allclose(found["sums"].cpu(), wanted, atol=0.02)


@pytest.mark.gpu
def test_any_batch() -> None:
    module, batch = net(), torch.export.Dim("batch", min=1, max=256)
    shapes = {"x": {0: batch}}
    fast = tlx.compile_torch(module, (torch.zeros(8, 64),), dtype="float16", dynamic_shapes=shapes)
    for rows in (1, 3, 64, 200):
        x = torch.randn(rows, 64)
        with torch.no_grad():
            wanted = module(x)["sums"]
        np.testing.assert_allclose(fast(x.cuda())["sums"].cpu(), wanted, atol=0.02)
