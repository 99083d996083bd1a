"""What torch.compile hands over, compiled; here by TVM's code for the CPU."""

from __future__ import annotations

import configparser
import copy
import gc
import logging
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm

import tvm_layout_ext as tlx
from tests.models.cpu import OnCpu
from tvm_layout_ext.models.for_torch import dynamo
from tvm_layout_ext.models.for_torch.state import imported
from tvm_layout_ext.models.imported.export import exported
from tvm_layout_ext.models.imported.legal_sizes import LegalSizes

torch = pytest.importorskip("torch")


class Parts(list[Any]):
    """What was compiled, with its options."""

    def compiled(self, module: Any, args: Any, *, dynamic_shapes: Any, **options: Any) -> OnCpu:
        # A GPU's constants are copies, too.
        program = exported(copy.deepcopy(module), args, None, dynamic_shapes)
        sizes = LegalSizes(program)
        mod, state = imported(program)
        self.append((module, options))
        return OnCpu(mod, None, [], program.call_spec, state, sizes, arch="sm_90a")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    found = Parts()
    monkeypatch.setattr(dynamo, "compile_torch", found.compiled)
    monkeypatch.setattr(dynamo, "_are_on_gpu", bool)
    torch._dynamo.reset()
    with torch.no_grad():
        yield found


def fast(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=tlx.torch_backend, options=options)


class Branching(torch.nn.Module):  # type: ignore[misc]
    """A linear, a buffer, and a choice by data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, x: Any, *, more: Any = None) -> dict[str, Any]:
        y = self.linear(x) + self.shift
        if y.sum() > 0:
            y = y * 2
        return {"rows": x.shape[0], "y": y if more is None else y + more, "none": None}


def same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_choice_by_data_cuts_a_program_into_parts(parts: Parts) -> None:
    net = Branching().eval()
    module, x = fast(net), torch.randn(4, 8)
    for sign in (1, -1):
        got, want = module(sign * 50 + x), net(sign * 50 + x)
        assert (got["rows"], got["none"]) == (4, None)
        same(got["y"], want["y"])
    assert len(parts) >= 2
    same(module(x, more=x)["y"], net(x, more=x)["y"])


def test_sizes_that_change_are_compiled_once_for_all(parts: Parts) -> None:
    net = Branching().eval()
    module = fast(net)
    for rows in (4, 5, 7, 11):
        x = torch.randn(rows, 8) + 50
        got = module(x)
        assert got["rows"] == rows
        same(got["y"], net(x)["y"])
    assert len(parts) <= 4  # Two of 4 rows, and two of any


class Reshaping(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any, y: Any) -> Any:
        rows = x.shape[0]
        return x.reshape(2 * rows, -1) @ y, rows * 2


def test_a_size_is_computed_with(parts: Parts) -> None:
    module = fast(Reshaping())
    for rows in (3, 4, 6):
        x, y = torch.randn(rows, 8), torch.randn(4, 5)
        got, want = module(x, y), Reshaping()(x, y)
        same(got[0], want[0])
        assert got[1] == want[1]


class Counting(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        return x + self.calls


def test_what_a_part_writes_is_torchs_own(parts: Parts) -> None:
    net = Counting().eval()
    module = fast(net)
    for n in (1, 2):
        same(module(torch.zeros(4)), torch.full((4,), float(n)))
        same(net.calls, torch.full((4,), float(n)))
    assert len(parts) == 1


class Filling(torch.nn.Module):  # type: ignore[misc]
    """Rows of a buffer, which kernels write in place, and another part that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 8))

    def forward(self, x: Any, at: Any) -> Any:
        self.rows.index_copy_(0, at, x)
        y = x * 2
        torch._dynamo.graph_break()
        return self.rows.sum(0) + y.sum()


def test_what_a_part_writes_another_one_sees(parts: Parts) -> None:
    net, module = Filling().eval(), fast(copy.deepcopy(Filling().eval()))
    for n in range(5):
        x, at = torch.full((1, 8), n + 1.0), torch.tensor([n])
        same(module(x, at), net(x, at))
    assert parts


def test_autocast_is_torchs(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    """Softmax has another type by that of a GPU, and none of it is on the host."""
    weight, x = torch.randn(4, 4), torch.randn(2, 4)

    def forward(x: Any) -> Any:
        with torch.autocast("cuda", torch.float16):
            return torch.softmax(x @ weight, -1)

    with caplog.at_level(logging.WARNING, logger="tvm_layout_ext"):
        same(fast(forward)(x), torch.softmax(x @ weight, -1))
    assert parts == []
    assert "is run by torch: It has torch.autocast" in caplog.text


def test_a_part_keeps_no_inputs(parts: Parts) -> None:
    module, x = fast(Branching().eval()), torch.randn(4, 8)
    given = weakref.ref(x)
    module(x)
    del x
    gc.collect()
    assert given() is None


class Layer(torch.nn.Module):  # type: ignore[misc]
    """A linear, a cut, and a buffer that only the second part reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(8))

    def forward(self, x: Any) -> Any:
        y = self.linear(x) + self.calls.add_(1).sum()
        torch._dynamo.graph_break()
        return torch.relu(y) + self.linear.bias + self.calls


def test_layers_of_one_class_have_their_own_weights(parts: Parts) -> None:
    net = torch.nn.Sequential(Layer(), Layer(), Layer()).eval()
    module, twin, x = fast(net), copy.deepcopy(net), torch.randn(4, 8)
    for _ in range(3):
        same(module(x), twin(x))
    same([*net.buffers()], [*twin.buffers()])
    compiled = len(parts)
    same(module(x), twin(x))
    assert len(parts) == compiled


def test_weights_that_change_are_compiled_again(parts: Parts) -> None:
    net, other, x = Branching().eval(), Branching().eval(), torch.randn(4, 8) + 50
    module = fast(net)
    module(x)
    net.load_state_dict(other.state_dict())
    same(module(x)["y"], other(x)["y"])
    net.linear.weight = torch.nn.Parameter(torch.ones(8, 8))
    same(module(x)["y"], net(x)["y"])
    net.shift.add_(1)
    for _ in range(3):
        net.shift.add_(1)
        same(module(x)["y"], net(x)["y"])


@pytest.mark.parametrize("holds", [True, False])
def test_views_are_torchs(parts: Parts, holds: bool) -> None:
    kept = torch.zeros(4)

    def written(x: Any) -> Any:
        view, y = (kept if holds else x)[:2], x * 2
        torch._dynamo.graph_break()
        view.add_(1)
        return y + (kept if holds else x)

    x, twin = torch.ones(4), torch.ones(4)
    got = torch.compile(written, backend=tlx.torch_backend)(x)
    kept.zero_()
    same(got, written(twin))
    same(x, twin)


def test_results_lie_as_torchs_do(parts: Parts) -> None:
    def turned(x: Any) -> Any:
        return (x * 2).transpose(0, 1)

    got, want = fast(turned)(torch.randn(4, 6)), turned(torch.randn(4, 6))
    assert got.stride() == want.stride()
    assert got.transpose(0, 1).view(-1).shape == (24,)


def test_dropout_in_training_is_torchs(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5))
    with caplog.at_level(logging.WARNING, logger="tvm_layout_ext"):
        zeros = (fast(net.train())(torch.randn(64, 8)) == 0).float().mean()
    assert 0.3 < float(zeros) < 0.7
    assert "drops elements by chance" in caplog.text
    caplog.clear()
    same(fast(net.eval())(torch.ones(4, 8)), net(torch.ones(4, 8)))
    assert "run by torch" not in caplog.text


def test_a_buffer_that_kernels_cannot_write_is_torchs(parts: Parts) -> None:
    net = Counting().eval()
    net.calls = torch.zeros(9)[1:5]
    module = fast(net)
    for n in (1, 2):
        same(module(torch.zeros(4)), torch.full((4,), float(n)))
        same(net.calls, torch.full((4,), float(n)))


class Writing(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x.add_(1) * 2


def test_a_part_that_is_refused_is_torchs_and_told(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    module, x = fast(Writing()), torch.zeros(4)
    with caplog.at_level(logging.WARNING, logger="tvm_layout_ext"):
        same(module(x), torch.full((4,), 2.0))
    same(x, torch.ones(4))
    assert not parts
    assert "is run by torch: The module writes to its inputs" in caplog.text


def test_a_part_that_fails_is_torchs_and_told(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise tvm.error.InternalError("Check failed: it is so\nat all")

    monkeypatch.setattr(dynamo, "compile_torch", fails)
    net, x = Branching().eval(), torch.randn(4, 8)
    with caplog.at_level(logging.WARNING, logger="tvm_layout_ext"):
        same(fast(net)(x)["y"], net(x)["y"])
    assert "is run by torch: Check failed: it is so" in caplog.text


def test_tensors_on_no_gpu_are_torchs(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    net, x = Branching().eval(), torch.randn(4, 8)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="tvm_layout_ext"):
        same(fast(net)(x)["y"], net(x)["y"])
    assert "is run by torch: Not all of its tensors lie on a GPU." in caplog.text


def test_what_torch_makes_on_a_gpu_is_traced_on_the_host() -> None:
    graph, gpu = torch.fx.Graph(), torch.device("cuda", 0)
    x = graph.placeholder("x")
    made = graph.call_function(torch.arange, (4,), {"device": "cuda:0"})
    y = graph.call_method("cuda", (graph.call_method("to", (x, gpu)), 0))
    y = graph.call_function(torch.add, (made, y))
    y = graph.call_method("to", (y,), {"device": "cuda", "dtype": torch.float64})
    graph.output(graph.call_function(torch.div, (y, 2), {"rounding_mode": "floor"}))
    module = torch.fx.GraphModule({}, graph)
    for node in graph.nodes:
        dynamo._to_host(torch, node)
    module.recompile()
    given = torch.randn(4)
    assert torch.equal(module(given), (torch.arange(4) + given).double().div(2).floor())


def test_results_on_another_device_are_torchs() -> None:
    graph, x = torch.fx.Graph(), torch.randn(4)
    node = graph.placeholder("x")
    moved = graph.call_method("to", (node, "cuda:1"))
    graph.output((moved,))
    node.meta["example_value"] = x
    moved.meta["example_value"] = torch.randn(4, device="meta")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamo, "_are_on_gpu", bool)
        with pytest.raises(tlx.ScheduleError, match="on several devices"):
            dynamo._Graph(torch, torch.fx.GraphModule({}, graph), [x], set())


def test_gradients_are_refused(parts: Parts) -> None:
    with torch.enable_grad(), pytest.raises(tlx.ScheduleError, match=r"torch\.no_grad\(\)"):
        fast(Branching().eval())(torch.randn(4, 8))


def test_options_are_those_of_compile_torch(parts: Parts) -> None:
    fast(Branching().eval(), dtype="float16")(torch.randn(4, 8))
    assert parts[0][1] == {"dtype": "float16"}
    with pytest.raises(
        Exception, match=r"options has 'mode'; dtype, weights, cuda_graphs, log, target are legal\."
    ):
        fast(Branching().eval(), mode="fast")(torch.randn(4, 8))


def test_a_mode_captures_launches(parts: Parts) -> None:
    torch.compile(Branching().eval(), backend=tlx.torch_backend, mode="reduce-overhead")(
        torch.randn(4, 8)
    )
    assert parts[0][1] == {"cuda_graphs": True}
    made = tlx.torch_backend(None, (), mode="reduce-overhead", options={"weights": "int4"})
    assert made.options == {"weights": "int4", "cuda_graphs": True}
    with pytest.raises(Exception, match="mode is one of default, reduce-overhead, not 'max"):
        torch.compile(Branching(), backend=tlx.torch_backend, mode="max-autotune")(torch.ones(4, 8))


def test_generate_compiles_a_step_with_a_static_cache(parts: Parts) -> None:
    """As the documents of transformers say; torch hands over the tensors of the cache."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=64, intermediate_size=64)
    model, tokens = transformers.LlamaForCausalLM(config).eval(), torch.randint(0, 64, (1, 5))
    given = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}
    how = transformers.CompileConfig(backend=tlx.torch_backend)
    how._compile_all_devices = True
    want = model.generate(tokens, **given, disable_compile=True)
    got = model.generate(tokens, **given, compile_config=how)
    assert torch.equal(got, want)
    assert [options for _, options in parts] == [{"cuda_graphs": True}]


def test_torch_finds_it_by_name() -> None:
    config = configparser.ConfigParser()
    config.read(Path(tlx.__file__).parents[1] / "setup.cfg")
    named = config["options.entry_points"]["torch_dynamo_backends"].strip()
    name, _, place = named.partition(" = ")
    module, _, function = place.partition(":")
    assert (name, function) == ("tvm_layout_ext", "torch_backend")
    assert module == dynamo.__name__
    assert getattr(dynamo, function) is tlx.torch_backend


class Choosing(torch.nn.Module):  # type: ignore[misc]
    """Convolutions, and a choice by data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(8, 64, 3), torch.nn.Conv2d(64, 64, 3)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.first(x))
        return self.second(y) if y.mean() > 0 else y


@pytest.mark.gpu
def test_parts_run_on_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    net = Choosing().eval().cuda().half()
    module = fast(net)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="tvm_layout_ext"):
        for images in (1, 3, 5):
            x = torch.randn(images, 8, 16, 16, device="cuda").half()
            torch.testing.assert_close(module(x), net(x), rtol=2e-2, atol=2e-2)
    assert "run by torch" not in caplog.text
