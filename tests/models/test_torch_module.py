"""A module of PyTorch as a function; what is refused, and on a GPU what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_layout_ext as tlx
from tests.models import running
from tests.models.cpu import OnCpu, by_cpu
from tests.models.language_models import language_model
from tvm_layout_ext._function_of_thread import FunctionOfThread
from tvm_layout_ext.ir.queries import nodes_in
from tvm_layout_ext.models.for_torch.state import imported
from tvm_layout_ext.models.for_torch.torch_module import TorchModule
from tvm_layout_ext.models.imported.experts import experts
from tvm_layout_ext.models.imported.export import _on_host, exported
from tvm_layout_ext.models.imported.legal_sizes import LegalSizes

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


def test_float32_stays_where_no_type_is_named_and_products_in_full_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"args": (torch.zeros(32, 64),), "target": HOPPER}
    fast = tlx.compile_torch(net(), **given)
    assert "float16" not in fast.mod.script()
    assert "threads" in repr(fast)
    tlx.compile_torch(net(), **given, dtype="float32")
    (told,) = [one.getMessage() for one in caplog.records if "in full" in one.getMessage()]
    assert told.startswith("float32 is multiplied in full, without tensor cores, by fused_NT_matm")


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_functions_check_their_arguments_where_sizes_are_symbolic_alone(is_dynamic: bool) -> None:
    """Of symbolic sizes they hold what kernels assume."""
    checks, builder = [], FunctionOfThread("target.build.llvm")

    def counting(host: tvm.IRModule, target: Any) -> Any:
        for func in host.functions.values():
            checks.extend(nodes_in(func.body, tirx.AssertStmt))
        return builder.before()(host, target)

    shapes = {"dynamic_shapes": ({0: torch.export.Dim("rows", min=2, max=64)},)}
    with builder.replaced(counting):
        module, x = torch.nn.Linear(64, 64).half().eval(), torch.zeros(32, 64).half()
        tlx.compile_torch(module, (x,), target=HOPPER, **(shapes if is_dynamic else {}))
    assert bool(checks) == is_dynamic


class Convolved(torch.nn.Module):  # type: ignore[misc]
    """A convolution, and a linear of what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(64, 64, 3), torch.nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return self.linear(self.conv(x).permute(0, 2, 3, 1))


@pytest.fixture
def settings() -> Iterator[Any]:
    """What torch rounds, left as it was."""
    backends = torch.backends
    before = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
    yield backends
    backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(
    ("dtype", "of_products", "of_convolutions", "rounded"),
    [
        (None, False, True, (False, True)),
        (None, False, False, (False, False)),
        (None, True, True, (True, True)),
        ("tf32", False, False, (True, True)),
        ("float32", True, True, (False, False)),
    ],
)
def test_float32_is_rounded_where_torch_rounds(
    settings: Any, dtype: Any, of_products: bool, of_convolutions: bool, rounded: Any
) -> None:
    settings.cuda.matmul.allow_tf32, settings.cudnn.allow_tf32 = of_products, of_convolutions
    x = torch.zeros(2, 64, 10, 10)
    fast = tlx.compile_torch(Convolved().eval(), (x,), dtype=dtype, target=HOPPER)
    texts = {one.name: one.text for one in fast.choices}
    found = (
        any("cores as tf32" in texts[n] for n in texts if kind in n) for kind in ("matmul", "conv")
    )
    assert tuple(found) == rounded


def test_a_module_of_16_bits_does_not_come_to_tf32() -> None:
    with pytest.raises(tlx.ScheduleError, match=r"holds float16 and keeps its types"):
        tlx.compile_torch(net().half(), (torch.zeros(32, 64).half(),), dtype="tf32", target=HOPPER)


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


class Trained(torch.nn.Module):  # type: ignore[misc]
    """A norm that counts although the module does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)

    def forward(self, x: Any) -> Any:
        self.norm.training = True
        return self.norm(x)


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
        (net, {"dtype": "bf16"}, "float32, tf32, float16"),
        (lambda: torch.relu, {}, "torch.nn.Module"),
        (lambda: Fourier().eval(), {}, "cannot import"),
        (lambda: Branching().eval(), {}, "torch.export refuses"),
        (lambda: Written("x").eval(), {}, "writes to its inputs x"),
        (lambda: Trained().eval(), {}, "call its eval"),
        (lambda: WithNone().eval(), {}, "what is None"),
        (lambda: Steps(_masked, a=torch.zeros(4, 64)).eval(), {}, "cannot import"),
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
    with pytest.raises(tlx.ScheduleError, match=r"in a tuple, as \(x,\), not a Tensor"):
        tlx.compile_torch(net(), torch.zeros(32, 64), target=HOPPER)
    with pytest.raises(tlx.ScheduleError, match="by their names in a dict, not a list"):
        tlx.compile_torch(net(), (torch.zeros(32, 64),), [torch.zeros(32, 64)], target=HOPPER)


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


def on_cpu(module: Any, calls: list[tuple[Any, ...]]) -> TorchModule:
    """What is imported gives and keeps what the module does, call after call."""
    module = module.eval()
    program = exported(module, calls[0])
    sizes = LegalSizes(program)
    mod, state = imported(program)
    fast = OnCpu(mod, None, [], program.call_spec, state, sizes, arch="sm_90a")
    kept = dict(module.named_buffers())
    for one in calls:
        given = [x.clone() for x in one]
        found = torch.utils._pytree.tree_leaves(fast(*given))
        for x, before in zip(given, one, strict=True):
            assert torch.equal(x, before)
        with torch.no_grad():
            wanted = [x.clone() for x in torch.utils._pytree.tree_leaves(module(*one))]
        pairs = [*zip(found, wanted, strict=True)]
        pairs += [(new, kept[name]) for name, new in fast.buffers.items()]
        for new, want in pairs:
            assert new.dtype == want.dtype
            tolerance = 0.02 * float(want.abs().max()) if want.dtype.itemsize == 2 else 1e-4
            np.testing.assert_allclose(new.float(), want.float(), atol=tolerance)
    return fast


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_a_module_writes_is_kept(dtype: str) -> None:
    """Rows in place, of negative places, too; a counter not."""
    torch.manual_seed(0)
    module, kind = Rows().to(getattr(torch, dtype)).eval(), getattr(torch, dtype)
    places = [torch.tensor([3, 5, 0]), torch.tensor([5, 15, 4]), torch.tensor([-1, 2, -7])]
    fast = on_cpu(module, [(torch.randn(2, 3, 64, dtype=kind), at) for at in places])
    assert fast._state.in_place == {"kept"}
    assert {*fast.buffers} == {"kept", "calls"}


class Steps(torch.nn.Module):  # type: ignore[misc]
    """Does what a function says to two buffers."""

    def __init__(self, does: Any, **buffers: Any) -> None:
        super().__init__()
        self.does = does
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: Any, i: Any = None) -> Any:
        return self.does(self, x, i)


def put(target: Any, index: Any, value: Any) -> Any:
    return torch.index_put(target, (index,), value)


def put_at(target: Any, index: Any, value: Any) -> Any:
    target = target.clone()
    target[index] = value
    return target


def _old_value(m: Any, x: Any, i: Any) -> Any:
    old = m.a.clone()
    m.a.copy_(x)
    return old


def _moved_on(m: Any, x: Any, i: Any) -> Any:
    m.b.copy_(m.a)
    m.a.copy_(x)
    return m.b + 1


def _swapped(m: Any, x: Any, i: Any) -> Any:
    a = m.a.clone()
    m.a.copy_(m.b)
    m.b.copy_(a)
    return x + a


def _two_shapes(m: Any, x: Any, i: Any) -> Any:
    m.a[i] = x[i]
    m.b[:, i] = x[i].T
    return m.a + m.b.T


def _twice(m: Any, x: Any, i: Any) -> Any:
    m.a[i] = x[i]
    m.a[i + 1] = x[i] * 2
    return m.a * 3


def _read_before(m: Any, x: Any, i: Any) -> Any:
    before = m.a * 2
    m.a[i] = x[i]
    return before + m.a


def _put_elsewhere(m: Any, x: Any, i: Any) -> Any:
    y = put(m.a, i, x[i])
    m.a.copy_(x * 3)
    return y


def _masked(m: Any, x: Any, i: Any) -> Any:
    m.a[x[:, 0] > 0] = 2.0
    return m.a + x


def _narrow_places(m: Any, x: Any, i: Any) -> Any:
    m.a.index_copy_(0, i, x[: len(i)])
    return m.a[i.int()] + 1


def _one_dim(m: Any, x: Any, i: Any) -> Any:
    m.a[i] = x[i]
    return m.a, m.a * 2


SHAPE = (8, 4)


@pytest.mark.parametrize(
    ("does", "a", "b"),
    [
        *((one, SHAPE, SHAPE) for one in (_old_value, _moved_on, _swapped, _twice, _read_before)),
        (_put_elsewhere, SHAPE, SHAPE),
        (_narrow_places, SHAPE, SHAPE),
        (_two_shapes, SHAPE, SHAPE[::-1]),
        (_one_dim, (8,), (8,)),
        (lambda m, x, i: put(x, i, m.a[i] + 1), SHAPE, SHAPE),
        (lambda m, x, i: put(m.a, i, x[i]), SHAPE, SHAPE),
    ],
)
def test_state_is_read_before_it_is_written_and_nothing_else_is_written(
    does: Any, a: Any, b: Any
) -> None:
    torch.manual_seed(0)
    module = Steps(does, a=torch.randn(a), b=torch.randn(b))
    calls = [(torch.randn(a), torch.tensor(at)) for at in ([1, 5], [0, 6], [3, 2])]
    on_cpu(module, calls)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "unit", [torch.nn.SELU(), torch.nn.CELU(2.0), torch.nn.ELU(0.5), torch.nn.ELU()], ids=repr
)
def test_linear_units_with_exponentials_have_their_scales(unit: Any, dtype: str) -> None:
    x = torch.linspace(-6, 6, 97).to(getattr(torch, dtype))
    on_cpu(torch.nn.Sequential(unit), [(x,)])


@pytest.mark.parametrize(
    "does",
    [
        lambda m, x, i: torch.where(x > 0, x, m.a),
        lambda m, x, i: torch.cat([x, m.a], 1),
        lambda m, x, i: torch.cat([torch.cat([x, m.a[:, 4:]], -1), x[:, :0], m.a], -1),
        lambda m, x, i: torch.clamp(x, max=m.a.max()),
        lambda m, x, i: torch.div(x * 9, 2, rounding_mode="floor") + torch.div(x, m.a * 0.1),
        lambda m, x, i: torch.div(x * 9, m.a.sign() * 2, rounding_mode="trunc"),
        lambda m, x, i: torch.div(x.double() * 9, 2, rounding_mode="trunc"),
        lambda m, x, i: x[torch.div(i + 5, 2, rounding_mode="floor")],
        lambda m, x, i: torch.maximum(x, m.a) * (x > 9).any(),
        lambda m, x, i: x * (x.clamp(max=0) * (m.a > 0)).any(1, keepdim=True),
        lambda m, x, i: x * (m.a > 1).any((0, 1)) + (x > 1).any(-1)[:, None],
        lambda m, x, i: torch.group_norm(x[None], 4, m.c, m.c * 2),
        lambda m, x, i: torch.addmm(m.b, x, x.T).relu(),
    ],
)
def test_operands_of_several_types(does: Any) -> None:
    torch.manual_seed(0)
    narrow = {"b": torch.randn(8, 8).bfloat16(), "c": torch.randn(8).bfloat16()}
    module = Steps(does, a=torch.randn(8, 4), **narrow)
    on_cpu(module, [(torch.randn(8, 4).bfloat16(), torch.tensor([0])) for _ in range(2)])


@pytest.mark.parametrize(
    "does",
    [
        lambda m, x, i: x[:, -1] * x[..., -3, :][:, -2:-1],
        lambda m, x, i: x[i],
        lambda m, x, i: x[:, [-1, 0]],
        lambda m, x, i: x[:, i, i + 1],
        lambda m, x, i: x[:, :, i, i[:, None]],
        lambda m, x, i: x[i, :, i + 1],
        lambda m, x, i: x[i[:, None], :, i[None] + 1, 1],
        lambda m, x, i: x[i[:, None], i[None] - 1],
        lambda m, x, i: put(m.a, i, x[0, 0, :3, 0]),
        lambda m, x, i: torch.index_put(x, (i, i, i, i), x[0, 0, 0, :3]),
        lambda m, x, i: torch.index_put(x, (i, i + 1), x[i, i]),
        lambda m, x, i: torch.index_put(x, (i, i), x[0, 0, 0, 0], True),
        lambda m, x, i: put_at(x, (slice(None), i, i[:, None]), x[:, :3, :3] * 2),
        lambda m, x, i: put_at(x, (i, slice(None), i[:, None]), x[:3, :3, :5] * 2),
    ],
)
def test_places_are_counted_from_the_end_where_they_are_negative(does: Any) -> None:
    """TVM 0.27 reads before a tensor then, and takes several indices each for itself."""
    torch.manual_seed(0)
    module = Steps(does, a=torch.randn(6))
    on_cpu(
        module, [(torch.randn(4, 5, 6, 4), torch.tensor(at)) for at in ([0, -3, 2], [-1, 1, -2])]
    )


@pytest.mark.parametrize(
    "does",
    [
        lambda m, x, i: x.clamp(min=3),
        lambda m, x, i: x.clamp(max=9),
        lambda m, x, i: x.clamp(2, 7),
        lambda m, x, i: torch.clamp(x, x.flip(0), x * 2) + torch.clamp(x, max=x[3]),
        lambda m, x, i: torch.clamp_min(x, 4) + torch.clamp_max(x, 5),
    ],
)
def test_whole_numbers_are_clamped_by_one_bound(does: Any) -> None:
    on_cpu(Steps(does), [(torch.arange(12)[:, None],)])


@pytest.mark.parametrize(
    "does",
    [
        lambda m, x, i: (x > 3).cumsum(-1),
        lambda m, x, i: (x > 3).sum(),
        lambda m, x, i: (x > 3).sum(1, keepdim=True) * x,
        lambda m, x, i: x.int().sum(0) + (x > 1).prod(),
        lambda m, x, i: x / 5 + x / x.clamp(min=1),
        lambda m, x, i: x.int() * 0.5 + x.float() + (x > x.float() * x / 7),
        lambda m, x, i: torch.where(x > 4, x.half(), x) + torch.cat([x, x.float()])[:3],
    ],
)
def test_truth_values_are_counted_and_whole_numbers_divided(does: Any) -> None:
    on_cpu(Steps(does), [(torch.arange(12).reshape(3, 4),)])


@pytest.mark.parametrize(
    "does",
    [
        lambda m, x, i: torch.where(x != x, 0.0, x) + (x == x),
        lambda m, x, i: torch.add(x, i, alpha=2) - torch.sub(x, 3, alpha=3),
        lambda m, x, i: (i >= 2.5).int() + (i < 2.5) * (i == 2.5) + (i < float("inf")),
        lambda m, x, i: torch.where(x > 0, x > 0, i) + (i > 2).logical_and(x > 0),
        lambda m, x, i: (i > 2) + (i > 3) * (i < 4) == (x > 0),
        lambda m, x, i: 2.0**i + i**0.5 + i**2 + i.clamp(-500, 2**40),
        lambda m, x, i: i.to(torch.int8).clamp(0, 9) + i.int().clamp(i, i + 2),
        lambda m, x, i: i.clamp(min=1).reciprocal() * x.reciprocal(),
        lambda m, x, i: x.logsumexp(-1) + x.amax(1) - x.amin((0, 1)),
        lambda m, x, i: torch.nn.functional.selu(x) + torch.nn.functional.celu(x, 0.5),
        lambda m, x, i: x + torch.nn.functional.pad(m.a, (-1, 1)),
    ],
)
def test_arithmetic_is_that_of_torch(does: Any) -> None:
    torch.manual_seed(0)
    on_cpu(Steps(does, a=torch.randn(3, 4)), [(torch.randn(3, 4), torch.arange(4))])


@pytest.mark.parametrize("does", [lambda x: x.cumsum(1), lambda x: x.norm(dim=-1), torch.prod])
def test_halves_are_added_up_in_float32(does: Any) -> None:
    module = Steps(lambda m, x, i: does(x))
    fast = tlx.compile_torch(module.eval(), (torch.ones(1, 5000).half(),), target=HOPPER)
    text = fast.mod.script()
    assert "float32" in text
    assert "float16" in text


@pytest.mark.parametrize("does", [lambda x: x * x.shape[0], lambda x: x.sum(0) / x.shape[0]])
def test_symbolic_sizes_are_operands(does: Any) -> None:
    module, n = Steps(lambda m, x, i: does(x)).eval(), torch.export.Dim("n", min=2, max=64)
    program = exported(module, (torch.randn(5, 4),), dynamic_shapes=({0: n},))
    mod, _ = imported(program)
    main = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    given = torch.randn(7, 4)
    (found,) = main(tvm.runtime.from_dlpack(given))
    np.testing.assert_allclose(torch.from_dlpack(found), does(given), rtol=1e-5)


class Attends(torch.nn.Module):  # type: ignore[misc]
    """Torch's attention, under a mask that is given or a causal one."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, mask, is_causal=self.causal)


def attention_of(size: int, dtype: Any, mask: str) -> tuple[Any, list[Any]]:
    """Attention of heads of a size, and what it is given: scores of up to some 10."""
    torch.manual_seed(0)
    given = [torch.randn(1, 2, n, size) * scale for n, scale in ((24, 3), (40, 1), (40, 1))]
    if mask == "shared":  # Keys of one sequence, and rows that are hidden whole.
        given = [torch.cat([given[0]] * 2), *given[1:], torch.randn(1, 1, 24, 1)]
    if mask == "bias":
        given.append(torch.randn(1, 2, 24, 40))
    given = [one.to(dtype) for one in given]
    if mask == "hidden":  # One row sees no key.
        given.append((torch.rand(1, 1, 24, 40) < 0.5) & (torch.arange(24) != 3)[:, None])
    return Attends(mask == "causal").eval(), given


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", ["", "bias", "hidden", "causal", "shared"])
@pytest.mark.parametrize("size", [20, 320])
def test_attention_without_a_kernel_is_as_near_as_torchs(size: int, mask: str, dtype: str) -> None:
    module, given = attention_of(size, getattr(torch, dtype), mask)
    mod, _ = imported(exported(module, tuple(given)))
    lowered = running.fused(mod)
    main = relax.VirtualMachine(tvm.compile(lowered, "llvm"), tvm.cpu())["main"]
    found = torch.from_dlpack(main(*map(tvm.runtime.from_dlpack, given))[0])
    exact = module(*(one if one.dtype == torch.bool else one.float() for one in given))
    assert found.dtype == given[0].dtype
    own, torchs = (float((one.float() - exact).square().mean()) for one in (found, module(*given)))
    assert own**0.5 <= 2 * torchs**0.5


@pytest.mark.parametrize("mask", ["", "bias", "hidden", "causal"])
def test_attention_without_a_kernel_is_on_tensor_cores(mask: str) -> None:
    module, given = attention_of(320, torch.float16, mask)
    mod, _ = imported(exported(module, tuple(given)))
    functions = running.scheduled(mod)
    rules = sorted(one.choice.rule for one in functions if one.choice.rule != "blocks")
    assert rules == ["rows", "warpgroups", "warpgroups"]
    assert not any(one.choice.fell_back for one in functions)
    # Rows without a key are looked for by the softmax itself, and only under a mask.
    (softmax,) = (one for one in functions if one.choice.rule == "rows")
    assert ("maximum" in softmax.name) == bool(mask)
    for one in functions:
        running.check(one)


def test_attention_of_float32_looks_for_no_row_without_a_key() -> None:
    module, given = attention_of(64, torch.float32, "")
    fast = tlx.compile_torch(module, tuple(given), target=HOPPER)
    assert sorted(one.rule for one in fast.choices) == ["rows", "threads", "threads"]


@pytest.mark.parametrize("outside", ["zeros", "border"])
@pytest.mark.parametrize("corners", [True, False])
def test_pixels_between_places(outside: str, corners: bool) -> None:
    def does(_: Any, x: Any, places: Any) -> Any:
        how = {"padding_mode": outside, "align_corners": corners}
        return torch.nn.functional.grid_sample(x, places, **how)

    on_cpu(Steps(does), [(torch.randn(2, 3, 7, 9), torch.rand(2, 4, 5, 2) * 2 - 1)])


def test_the_last_place_of_a_symbolic_dim() -> None:
    module = Steps(lambda m, x, i: x[-1] + x[i]).eval()
    given = (torch.randn(6, 8), torch.tensor([0, -1, 2]))
    rows = torch.export.Dim("rows", min=4, max=64)
    mod, _ = imported(exported(module, given, None, {"x": {0: rows}, "i": None}))
    main = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    for n in (4, 9):
        x = torch.randn(n, 8)
        found = main(*map(tvm.runtime.from_dlpack, (x, given[1])))[0]
        np.testing.assert_allclose(torch.from_dlpack(found), module(x, given[1]), atol=1e-6)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda f, x: f.avg_pool2d(x, 2, divisor_override=3), "divisor_override=3"),
        (lambda f, x: f.max_pool2d(x, 2, return_indices=True)[1], "gives no indices"),
        (lambda f, x: f.interpolate(x, (2, 3), mode="bilinear", antialias=True), "antialias"),
    ],
)
def test_what_tvm_leaves_out_of_pools_is_refused(does: Any, said: str) -> None:
    module = Steps(lambda m, x, i: does(torch.nn.functional, x))
    with pytest.raises(tlx.ScheduleError, match=said):
        tlx.compile_torch(module.eval(), (torch.randn(1, 2, 4, 4),), target=HOPPER)


def test_pools_without_it_are_torchs() -> None:
    f = torch.nn.functional
    on_cpu(
        Steps(lambda m, x, i: f.max_pool2d(x, 2) + f.avg_pool2d(x, 2)), [(torch.randn(1, 2, 4, 4),)]
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "does",
    [
        lambda f, x: f.fold(x, (6, 6), 2, stride=2),
        lambda f, x: f.fold(x[..., :4], (6, 6), 2, stride=4),
        lambda f, x: f.fold(f.pad(x, (0, 40)), (6, 6), 2, padding=1, stride=1)[..., :5],
        lambda f, x: torch.index_put(
            torch.ones_like(x), (torch.arange(2)[:, None], torch.arange(8)[None]), x * 2
        ),
    ],
)
def test_what_is_put_to_known_places_is_gathered(does: Any, dtype: str) -> None:
    torch.manual_seed(0)
    module = Steps(lambda m, x, i: does(torch.nn.functional, x))
    fast = on_cpu(module, [(torch.randn(2, 8, 9).to(getattr(torch, dtype)),)])
    assert "index_put" not in fast.mod.script()


@pytest.mark.parametrize("options", [{"groups": 2}, {"padding": 1, "output_padding": 1}])
def test_a_transposed_convolution_of_volumes(options: dict[str, int]) -> None:
    torch.manual_seed(0)
    module = torch.nn.ConvTranspose3d(4, 6, 3, stride=2, **options)
    on_cpu(module, [(torch.randn(1, 4, 3, 4, 5),)])


def test_a_mask_as_an_index_is_refused() -> None:
    masked = Steps(lambda m, x, i: x[x > 0]).eval()
    with pytest.raises(tlx.ScheduleError, match=r"use torch.where"):
        tlx.compile_torch(masked, (torch.zeros(4, 4),), target=HOPPER)


def test_a_buffer_that_is_turned_is_kept_row_by_row() -> None:
    module = Steps(_old_value, a=torch.randn(4, 8).T, b=torch.zeros(1))
    fast = on_cpu(module, [(torch.randn(8, 4), torch.tensor([0]))])
    fast.buffers["a"] = torch.randn(4, 8).T
    before = fast.buffers["a"].clone()
    assert torch.equal(fast(torch.randn(8, 4), torch.tensor([0])), before)


@pytest.mark.parametrize(
    ("kind", "dtype", "tokens"),
    [("Llama", "bfloat16", 1), ("Llama", "float32", 8), ("Qwen3", "float16", 1),
     ("Gemma2", "float32", 1), ("Mistral", "float32", 4), ("Qwen2", "bfloat16", 1),
     ("Gemma", "bfloat16", 1), ("Olmo2", "bfloat16", 1), ("Falcon", "float32", 1),
     ("BioGpt", "float32", 4), ("Phi3", "bfloat16", 1), ("Qwen3Moe", "float32", 1),
     ("Qwen3Moe", "float32", 8)],
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
    wide = tlx.with_static_cache(language_model(dtype="float32"), 128)
    with pytest.raises(tlx.ScheduleError, match=r"give module.to\(torch.float16\)"):
        tlx.compile_torch(wide, example, dtype="float16", target=HOPPER)
    with pytest.raises(tlx.ScheduleError, match="a model of transformers, not Both"):
        tlx.with_static_cache(Both(), 128)


def test_experts_that_count_their_tokens_are_refused_and_others_left_as_they_are() -> None:
    model, token = language_model("Qwen3Moe"), torch.zeros(1, 1, dtype=torch.int64)
    model.config.use_cache = False
    before = model.config._experts_implementation
    tlx.with_static_cache(model, 16)(token, torch.zeros(1, dtype=torch.int64))
    assert model.config._experts_implementation == before
    with pytest.raises(tlx.ScheduleError, match="set_experts_implementation"):
        tlx.compile_torch(model, (token,), target=HOPPER)


def test_a_model_that_is_said_to_take_no_static_cache_is_refused() -> None:
    """Local attention of GPT-Neo cuts its mask by the cache's length: it would be wrong."""
    with pytest.raises(tlx.ScheduleError, match="takes no static cache"):
        tlx.with_static_cache(language_model("GPTNeo"), 128)


class Largest(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x - x.max(-1, keepdim=True).values, x.max(0).values


def test_nothing_is_sorted_for_a_maximum_whose_place_nobody_asks_for() -> None:
    x = torch.randn(4, 64)
    mod, _ = imported(exported(Largest().eval(), (x,)))
    assert "topk" not in mod.script()
    for found, wanted in zip(by_cpu(mod, [x.numpy()]), Largest()(x), strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())


def prompts(kind: str, dtype: str = "bfloat16", target: Any = None, **sizes: Any) -> Any:
    """A module for prompts of any length, by a cache of 128 places."""
    net = tlx.with_static_cache(language_model(kind, dtype, **sizes), 128)
    given = (torch.zeros(1, 16, dtype=torch.int64), torch.arange(16))
    length = torch.export.Dim("n", min=2, max=128)
    shapes = {"tokens": {1: length}, "places": {0: length}}
    return tlx.compile_torch(net, given, target=target, dynamic_shapes=shapes)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("Llama", {}), ("Qwen3", {"head_dim": 64}), ("Mistral", {"sliding_window": 48})],
)
def test_a_prompt_of_any_length_has_one_kernel_of_attention(
    kind: str, sizes: dict[str, int]
) -> None:
    fast = prompts(kind, target=HOPPER, **sizes)
    assert [one.rule for one in fast.choices].count("attention") == 1
    assert not [one for one in fast.choices if one.fell_back or one.rule == "dlight"]


#: Sizes of the smallest of language models.
ONE_LAYER = {
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("vocab_size", "intermediate_size"), 64),
    "hidden_size": 32,
    "num_hidden_layers": 1,
}


def test_an_expert_that_no_token_chose_may_overflow() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(**ONE_LAYER, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.MixtralForCausalLM(config).eval().half()
    held = next(one for name, one in model.named_modules() if name.endswith("experts"))
    rows, index = torch.ones(4, 32).half(), torch.tensor([[0, 1]] * 4)
    shares = torch.full((4, 2), 0.5).half()
    with torch.no_grad():
        wanted = experts(held, rows, index, shares)
        held.down_proj[3], held.gate_up_proj[3] = 60000.0, 4.0
        assert torch.equal(experts(held, rows, index, shares), wanted)


def test_a_cache_leaves_nothing_in_a_model() -> None:
    """Phi-3 keeps frequencies of long sequences at its first run, which is one without data."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Phi3Config(
        **ONE_LAYER,
        max_position_embeddings=64,
        original_max_position_embeddings=32,
        pad_token_id=0,
        rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    )
    model = transformers.Phi3ForCausalLM(config).eval()
    before = [dict(vars(one)) for one in model.modules()]
    tlx.with_static_cache(model, 48)
    assert [dict(vars(one)) for one in model.modules()] == before


class Special(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter of somebody's own class."""


def test_a_module_of_a_gpu_is_copied_to_the_host_as_it_is() -> None:
    module = net()
    module.linear.weight = Special(module.linear.weight.detach())
    module.register_buffer("kept", torch.arange(4.0), persistent=False)
    module.tied = torch.nn.Linear(64, 128)
    module.tied.weight = module.linear.weight
    copied = _on_host(torch, module)
    assert copied.linear.weight is copied.tied.weight
    assert copied.linear.weight is not module.linear.weight
    assert torch.equal(copied.kept, module.kept)
    x = torch.randn(32, 64)
    with torch.no_grad():
        wanted = module(x)["sums"]
    program = exported(copied, (x,))
    assert torch.equal(program.module()(x)["sums"], wanted)


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
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_prompts_of_any_length_on_a_gpu(dtype: str) -> None:
    """Chunks of unlike lengths of one sequence, by one module."""
    model = language_model(dtype=dtype).cuda()
    given = torch.randint(0, 500, (1, 128)).cuda()
    with torch.no_grad():
        whole = model.float()(given).logits
    fast = prompts("Llama", dtype)
    atol, at = 0.02 * float(whole.abs().max()), 0
    for length in (2, 5, 17, 64, 33):
        places = torch.arange(at, at + length).cuda()
        logits = fast(given[:, at : at + length], places)
        at += length
        np.testing.assert_allclose(logits[:, -1].float().cpu(), whole[:, at - 1].cpu(), atol=atol)


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True])
def test_results_are_the_modules_in_its_own_form(graphs: bool) -> None:
    module, x, bias = net(), torch.randn(32, 64), torch.randn(128)
    fast = tlx.compile_torch(module, (x,), {"bias": bias}, dtype="float16", cuda_graphs=graphs)
    calls = []
    for _ in range(6):
        x, bias = torch.randn(32, 64), torch.randn(128)
        with torch.no_grad():
            calls.append((fast(x.cuda(), bias=bias.cuda()), module(x, bias=bias)))
    for found, wanted in calls:
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
def test_what_a_graph_writes_to_is_nobody_elses() -> None:
    """Memory of a captured call goes to no weights and results of modules that come later."""
    module, x = net(), torch.randn(32, 64).cuda()
    fast = tlx.compile_torch(module, (torch.zeros(32, 64),), dtype="float16")
    for _ in range(3):
        fast(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fast(x)
    others = [tlx.compile_torch(module, (torch.zeros(32, 64),), dtype="float16") for _ in range(2)]
    before = [one(x)["sums"] for one in others for _ in range(4)]
    kept = [one.clone() for one in before]
    x.copy_(torch.randn(32, 64))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(before, kept, strict=True))
    with torch.no_grad():
        wanted = module(x.cpu())["sums"]
    for one in others:
        np.testing.assert_allclose(one(x)["sums"].cpu(), wanted, atol=0.02)


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


def _causal(scores: Any, hidden: float = -float("inf")) -> Any:
    rows = scores.shape[-1]
    return scores + torch.full((rows, rows), hidden).triu(1)


def _unseen(_: Any, x: Any, __: Any) -> Any:
    seen = torch.ones(24, 24, dtype=torch.bool).tril(-4)
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=seen)


@pytest.mark.parametrize(
    "does",
    [
        lambda m, x, i: torch.softmax(_causal(x[0, 0] @ x[0, 1].T), -1) @ x[0, 0],
        lambda m, x, i: torch.softmax(_causal(x[0] @ x[0].mT), -1) @ x[0],
        lambda m, x, i: torch.softmax(x[0, 0] @ x[0, 1].T + torch.zeros(3, 24, 24), -1) @ x[0, 0],
        lambda m, x, i: _causal(x @ x.mT),
        lambda m, x, i: torch.softmax(_causal(1e4 * x @ x.mT), -1) @ x,
        lambda m, x, i: torch.softmax(x, -1) @ x.mT + _causal(x @ x.mT, -2e4),
        lambda m, x, i: torch.softmax(torch.cat([x @ x.mT, x @ -x.mT], -1), -1)[..., :24] @ x,
        lambda m, x, i: x.half() @ x[:, :1].mT.half(),
        _unseen,
    ],
)
def test_what_looks_like_attention_is_what_torch_computes(does: Any) -> None:
    """Masks of any dims, rows without a key, other uses of scores, and blocks of keys."""
    x = torch.randn(1, 2, 24, 16)
    mod, _ = imported(exported(Steps(does).eval(), (x,)))
    main = relax.VirtualMachine(tvm.compile(running.fused(mod), "llvm"), tvm.cpu())["main"]
    found, want = torch.from_dlpack(main(tvm.runtime.from_dlpack(x))[0]), does(None, x, None)
    assert found.shape == want.shape
    np.testing.assert_allclose(found.float(), want.float(), atol=1e-2, rtol=1e-4)


def test_a_like_tensor_of_infinity() -> None:
    low = Steps(lambda m, x, i: torch.where(x > 0, x, torch.full_like(x, -float("inf"))))
    tlx.compile_torch(low.eval(), (torch.randn(8, 8),), target=HOPPER)


class Classifying(torch.nn.Module):  # type: ignore[misc]
    """An LSTM, and what is made of its last state."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.lstm, self.head = torch.nn.LSTM(8, 16, **options), torch.nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        y, (hidden, cell) = self.lstm(x)
        return y, hidden, cell, self.head(hidden[-1])


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_first": True}, {"num_layers": 2}, {"bidirectional": True, "bias": False}],
)
def test_states_of_an_lstm_have_their_dims(options: Any) -> None:
    """Torch 2.11 writes them out with one more."""
    on_cpu(Classifying(**options), [(torch.randn(3, 2, 8),)])
