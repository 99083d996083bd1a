"""Exported programs in core operators: as torch's own decomposition, and what is left to it."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
import tvm_ffi

import tvm_layout_ext as tlx
from tests.models.language_models import language_model
from tvm_layout_ext.models.for_torch.state import imported
from tvm_layout_ext.models.imported import decompose
from tvm_layout_ext.models.imported.decompose import UntraceableError, decomposed

torch = pytest.importorskip("torch")
Net = torch.nn.Module


def exported(net: Any, *args: Any, **how: Any) -> Any:
    with torch.no_grad():
        return torch.export.export(net.eval(), args, **how)


def light(program: Any) -> Any:
    table = torch.export.default_decompositions()
    with torch.no_grad():
        return decomposed(torch, program, dict(table.items()))


def relax(program: Any) -> tuple[tvm.IRModule, list[str]]:
    mod, state = imported(program)
    return mod, state.written


def check(net: Any, *args: Any) -> None:
    """Fail unless a module becomes what torch's decomposition makes of it."""
    mod, written = relax(light(exported(net, *args)))
    with torch.no_grad():
        wanted, names = relax(exported(net, *args).run_decompositions())
    assert written == names
    tvm_ffi.structural_equal(mod, wanted, map_free_vars=True) or pytest.fail(
        str(tvm_ffi.get_first_structural_mismatch(mod, wanted, map_free_vars=True))
    )


class Of(Net):  # type: ignore[misc]
    """A function, and a buffer that it may write."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("kept", torch.zeros(4, 8))

    def forward(self, *given: Any) -> Any:
        return self.function(self, *given)


def convolutions() -> Any:
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True)]
    return torch.nn.Sequential(*layers, torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 8, 1))


def encoder(layers: int = 2) -> Any:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


NETS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "convolutions": (convolutions, (torch.ones(2, 3, 18, 18),)),
    "encoder": (encoder, (torch.ones(2, 8, 32),)),
    "a value is written": (lambda: Of(lambda _, x: ((y := x * 2).relu_(), y + 1)),
                           (torch.ones(4, 8),)),
    "written twice": (lambda: Of(lambda _, x: (x * 2).add_(x).mul_(3)), (torch.ones(4, 8),)),
    "a buffer is written": (
        lambda: Of(lambda net, x: net.kept.index_copy_(0, torch.arange(2), x) + 1),
        (torch.ones(2, 8),),
    ),
    "parts": (lambda: Of(lambda _, x: [one + 1 for one in x.split(2)]), (torch.ones(4, 8),)),
    "numbers by type": (lambda: Of(lambda _, x: (x + 1, x + True, x + 1.0)), (torch.ones(4, 8),)),
    "a resize": (
        lambda: Of(lambda _, x: torch.nn.functional.interpolate(x, scale_factor=2.0)),
        (torch.ones(1, 2, 4, 4),),
    ),
    "a smooth resize": (
        lambda: Of(lambda _, x: torch.nn.functional.interpolate(x, size=9, mode="bilinear")),
        (torch.ones(1, 2, 4, 4),),
    ),
    "an input named as Python's": (lambda: Input(), (torch.ones(4, 8),)),
}  # fmt: skip


class Input(Net):  # type: ignore[misc]
    """Its input has a name that a graph does not give."""

    def forward(self, input: Any) -> Any:
        return input + 1


@pytest.mark.parametrize("name", NETS)
def test_a_program_is_as_torch_decomposes_it(name: str) -> None:
    torch.manual_seed(0)
    make, args = NETS[name]
    check(make(), *args)


def test_a_step_with_a_cache_is_as_torch_decomposes_it() -> None:
    net = tlx.with_static_cache(language_model("Qwen3"), 64)
    check(net, torch.zeros(1, 1, dtype=torch.int64), torch.arange(1))


def test_layers_that_are_alike_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = list[Any]()
    piece = decompose._Program._piece

    def counted(self: Any, target: Any, *given: Any) -> Any:
        traced.append(target)
        return piece(self, target, *given)

    monkeypatch.setattr(decompose._Program, "_piece", counted)
    light(exported(encoder(1), torch.ones(2, 8, 32)))
    once = len(traced)
    light(exported(encoder(4), torch.ones(2, 8, 32)))
    assert 0 < len(traced) - once <= once + 1


def copied(net: Any, x: Any) -> Any:
    """What is copied is not written afterwards, though the copy is."""
    y = torch.zeros_like(x)
    y.copy_(x)
    y.add_(1)
    return x + y


def test_a_copy_is_a_tensor_of_its_own() -> None:
    x = torch.arange(32.0).reshape(4, 8)
    program = light(exported(Of(copied), x))
    (found,) = program.graph_module(torch.zeros(4, 8), x)
    assert torch.equal(found, 2 * x + 1)


def viewed(net: Any, x: Any) -> Any:
    y = x * 2
    rows = y[1:3]
    y.add_(1)
    return rows * y.sum()


def narrow(net: Any, x: Any) -> Any:
    return x.half().add_(x)


def decayed(net: Any, x: Any) -> Any:
    y = x + net.kept
    net.kept.mul_(0.5)
    net.kept[:, 0] = x[:, 0]
    return y


def halved(net: Any, x: Any) -> Any:
    y = x + 1
    first, _ = y.chunk(2)
    first.add_(1)
    return y


REFUSED: dict[str, tuple[Any, str]] = {
    "a part of a buffer that was written": (decayed, "a view of what aten"),
    "a part of a value": (halved, "a view of what aten.add_.Tensor writes is read"),
    "a matrix by turned rows": (
        lambda net, x: x.reshape(2, 4, 4).transpose(0, 1) @ torch.ones(4, 3),
        "a matrix is multiplied by rows",
    ),
    "other strides": (
        lambda net, x: torch.empty(4, 8).copy_(x.reshape(8, 4).t()).as_strided((32,), (1,)),
        "other strides",
    ),
    "a view of what is written": (viewed, "a view of what aten.add_.Tensor writes is read"),
    "a part of a buffer": (
        lambda net, x: net.kept[:2].add_(1) + x[:2],
        "a view of what aten.add_.Tensor writes is read",
    ),
    "an input": (lambda net, x: x.add_(1), "it writes to given_0"),
    "another type": (narrow, "another type"),
    "sizes by data": (lambda net, x: x.nonzero(), "sizes are dynamic"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_has_to_trace_is_told(name: str) -> None:
    function, why = REFUSED[name]
    with pytest.raises(UntraceableError, match=why):
        light(exported(Of(function), torch.ones(4, 8)))


class Shared(Net):  # type: ignore[misc]
    """Two buffers, of which one is a part of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(4, 4))
        self.register_buffer("row", self.whole[0])

    def forward(self, x: Any) -> Any:
        self.whole.add_(1)
        return x + self.row


def test_buffers_in_one_place_are_torchs() -> None:
    with pytest.raises(UntraceableError, match="it writes to b_whole"):
        light(exported(Shared(), torch.ones(4)))


def test_dynamic_sizes_and_recurrent_layers_are_torchs() -> None:
    rows = {0: torch.export.Dim("n", min=2, max=64)}
    program = exported(torch.nn.Linear(8, 4), torch.ones(4, 8), dynamic_shapes=(rows,))
    with pytest.raises(UntraceableError, match="dynamic"):
        light(program)
    program = exported(torch.nn.LSTM(8, 4, batch_first=True), torch.ones(2, 3, 8))
    with pytest.raises(UntraceableError, match="recurrent"):
        light(program)
