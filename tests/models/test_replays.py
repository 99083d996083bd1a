"""Calls as graphs of CUDA, and weights that modules share."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import tvm

import tvm_layout_ext as tlx
from tvm_layout_ext.models.for_torch import replays, weights

torch = pytest.importorskip("torch")


class Recorded:
    """What a graph does, on a CPU: it runs a call again, of the same tensors."""

    made: ClassVar[list[Recorded]] = []

    def __init__(self, run: Any, held: Sequence[Any], given: Sequence[Any]) -> None:
        self.inputs = replays._copied(given)
        self.run, self.held = run, [*held]
        self.results: list[Any] = []
        Recorded.made.append(self)

    def replay(self) -> None:
        self.results[:] = self.run(self.held, self.inputs, None)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    def of(run: Any, memory: Any, held: Sequence[Any], given: Sequence[Any]) -> Any:
        one = Recorded(run, held, given)
        return replays._Capture(one, one.inputs, one.results, replays._places(held), memory)

    monkeypatch.setattr(replays._Capture, "of", of)
    monkeypatch.setattr(Recorded, "made", [])
    return Recorded.made


def counting(calls: list[int]) -> Callable[..., list[Any]]:
    """What adds an input to a buffer, and counts how often Python runs it."""

    def run(held: Sequence[Any], given: Sequence[Any], _memory: Any) -> list[Any]:
        calls.append(1)
        held[0].add_(given[0])
        return [held[0] * 2]

    return run


def test_each_call_happens_once_and_gives_results_of_its_own(graphs: list[Recorded]) -> None:
    replayed, held, found = replays.Replays(), [torch.zeros(3)], []
    for n in range(1, 8):
        found += replayed(counting([]), tuple, held, [torch.full((3,), float(n))])
        assert held[0].tolist() == [n * (n + 1) / 2] * 3
    assert [one[0].item() for one in found] == [n * (n + 1) for n in range(1, 8)]
    assert len(graphs) == 1


def test_what_a_module_writes_may_lie_elsewhere(graphs: list[Recorded]) -> None:
    replayed, first, other = replays.Replays(), torch.zeros(3), torch.full((3,), 10.0)
    for held in [first] * 5 + [other] * 4 + [first] * 2:
        replayed(counting([]), tuple, [held], [torch.ones(3)])
    assert (first[0].item(), other[0].item()) == (7, 14)
    assert len(graphs) == 3
    for held in [other, first] * 4:  # By turns it is not worth it.
        replayed(counting([]), tuple, [held], [torch.ones(3)])
    assert (first[0].item(), other[0].item()) == (11, 18)
    assert len(graphs) == 3


def test_other_inputs_are_run_not_replayed(graphs: list[Recorded]) -> None:
    """What is compiled refuses them, or takes another shape."""
    replayed, calls, held = replays.Replays(), list[int](), [torch.zeros(3)]
    for _ in range(4):
        replayed(counting(calls), tuple, held, [torch.ones(3)])
    (graph,), before = graphs, len(calls)
    graph.run = None  # Nothing is to be replayed.
    replayed(counting(calls), tuple, held, [torch.ones(1)])
    assert len(calls) == before + 1
    with pytest.raises(RuntimeError, match="can't be cast"):
        replayed(counting(calls), tuple, held, [torch.ones(3, dtype=torch.complex64)])


def test_a_buffer_of_another_shape_is_not_replayed(graphs: list[Recorded]) -> None:
    replayed, calls, held = replays.Replays(), list[int](), torch.zeros(4)
    for _ in range(4):
        replayed(counting(calls), tuple, [held], [torch.ones(1)])
    (found,) = replayed(counting(calls), tuple, [held[:2]], [torch.ones(1)])
    assert (len(graphs), found.shape) == (1, (2,))


def test_calls_in_inference_mode_and_others_are_one(graphs: list[Recorded]) -> None:
    replayed, held = replays.Replays(), [torch.zeros(3)]
    for n in range(8):
        with torch.inference_mode(n % 4 < 3):
            replayed(counting([]), tuple, held, [torch.ones(3)])
    assert held[0].tolist() == [8] * 3
    assert len(graphs) == 1


def test_calls_that_cannot_be_captured_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def of(*_all: Any) -> Any:
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        finally:  # As torch does at the end of a graph.
            raise RuntimeError("previous error during capture")

    monkeypatch.setattr(replays._Capture, "of", of)
    replayed, held = replays.Replays(), [torch.zeros(3)]
    try:
        raise ValueError("of the user")
    except ValueError:
        for _ in range(6):
            replayed(counting([]), tuple, held, [torch.ones(3)])
    assert held[0].tolist() == [6] * 3
    (told,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert told == "Launches are not captured: operation not permitted when stream is capturing."


def test_modules_share_weights_while_one_lives() -> None:
    device, rng = torch.device("cpu"), np.random.default_rng(0)
    first, other = (rng.standard_normal((8, 4)).astype("float32") for _ in range(2))
    one = weights.on_device(tvm.runtime.tensor(first), device)
    same = weights.on_device(tvm.runtime.tensor(first.copy()), device)
    assert one is same
    negative = np.where(first == first[0, 0], -first, first)
    for value in (other, negative, first.reshape(4, 8), first.astype("float16")):
        assert weights.on_device(tvm.runtime.tensor(value), device) is not one
    np.testing.assert_array_equal(one.numpy(), first)
    alive = weakref.ref(one)
    del one, same
    gc.collect()
    assert alive() is None


def test_nan_and_signs_of_zero_are_bits() -> None:
    device = torch.device("cpu")
    values = [np.array([[0.0, np.nan]], "float32"), np.array([[-0.0, np.nan]], "float32")]
    first, second = (weights.on_device(tvm.runtime.tensor(one), device) for one in values)
    assert weights.on_device(tvm.runtime.tensor(values[0].copy()), device) is first
    assert second is not first


class Sums(torch.nn.Module):  # type: ignore[misc]
    """A product, and a sum that takes two kernels and a workspace; it counts its calls."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)
        self.register_buffer("calls", torch.zeros(1))
        self.elements = elements

    def forward(self, x: Any, y: Any) -> tuple[Any, Any]:
        self.calls += 1
        return self.linear(x), y.sum() + self.calls


@pytest.mark.gpu
def test_replays_on_a_gpu_keep_their_workspaces() -> None:
    made = []
    for elements in (1 << 22, 1 << 25):
        torch.manual_seed(0)
        net, y = Sums(elements).eval(), torch.randn(elements)
        given = (torch.randn(32, 256), y)
        fast = tlx.compile_torch(net, given, dtype="float16", cuda_graphs=True)
        made.append((net, fast))
    found = []
    for _ in range(6):
        for net, fast in made:
            x, y = torch.randn(32, 256), torch.randn(net.elements)
            with torch.no_grad():
                wanted = net(x, y)
            found.append((fast(x.cuda(), y.cuda()), wanted))
    for got, wanted in found:
        np.testing.assert_allclose(got[0].cpu(), wanted[0], atol=0.02)
        np.testing.assert_allclose(got[1].cpu(), wanted[1], rtol=1e-3, atol=2)
    assert all(int(fast.buffers["calls"]) == 6 for _, fast in made)
    (first, second) = (fast._machines[torch.device("cuda:0")] for _, fast in made)
    assert first.replays._graph is not None
    assert [one.data_ptr() for one in first.shared] == [one.data_ptr() for one in second.shared]
    assert first.shared
