"""A module of PyTorch as a function; what is refused, and on a GPU what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_layout_ext as tlx

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


class WithNone(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x + 1, None


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (lambda: net().train(), {}, "in training"),
        (lambda: net().half(), {}, "module.float()"),
        (net, {"dtype": "bf16"}, "float32, float16"),
        (lambda: torch.relu, {}, "torch.nn.Module"),
        (lambda: Fourier().eval(), {}, "cannot import"),
        (lambda: Branching().eval(), {}, "torch.export refuses"),
        (lambda: Written("count").eval(), {}, "writes to count"),
        (lambda: Written("x").eval(), {}, "writes to x"),
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
