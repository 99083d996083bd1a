"""Operators of torch that other people's models have, and TVM 0.27 has not, or has wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_layout_ext as tlx
from tvm_layout_ext.models.for_torch.state import imported
from tvm_layout_ext.models.imported.export import exported

torch = pytest.importorskip("torch")
# Without torch that module is none to import from.
from tests.models.test_torch_module import HOPPER, Steps, by_cpu, on_cpu  # noqa: E402


def _to_tokens(_: Any, x: Any, i: Any) -> Any:
    """Rows of an image in the place of some tokens, as LLaVA has them, and a check of both."""
    torch._check_tensor_all((i == 1).sum() * 8 == x[:4].numel())
    return x.masked_scatter((i == 1)[:, None], x[:4])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "does",
    [
        _to_tokens,
        lambda m, x, i: x.masked_scatter((i == 1)[:, None].expand_as(x), x[:4]),
        lambda m, x, i: x.masked_scatter((i == 1)[:, None], x.flatten()[:37]),
        lambda m, x, i: x[None].repeat(2, 1, 1).masked_scatter(m.held, x.repeat(2, 1)),
    ],
)
def test_elements_come_in_order_where_a_mask_is_true(does: Any, dtype: str) -> None:
    torch.manual_seed(0)
    module = Steps(does, held=torch.rand(6, 8) < 0.5)
    on_cpu(
        module,
        [(torch.randn(6, 8).to(getattr(torch, dtype)), torch.tensor([1, 0, 1, 1, 0, 1]))],
    )


@pytest.mark.parametrize(("dim", "size", "step"), [(-1, 4, 2), (0, 3, 3), (1, 8, 1)])
def test_windows_along_a_dim(dim: int, size: int, step: int) -> None:
    module = Steps(lambda m, x, i: x.unfold(dim, size, step))
    on_cpu(module, [(torch.randn(6, 8, 4), torch.zeros(1))])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("more", [{}, {"affine": True, "eps": 0.25}, {"track_running_stats": True}])
def test_instance_norms(more: dict[str, Any], count: int) -> None:
    torch.manual_seed(0)
    norm = torch.nn.InstanceNorm2d(4, **more)
    for one in norm.parameters():
        torch.nn.init.normal_(one)
    if more.get("track_running_stats"):
        norm(torch.randn(8, 4, 5, 5))  # Whose statistics it then takes.
    module = Steps(lambda m, x, i: m.norm(x))
    module.norm = norm
    on_cpu(module, [(torch.randn(count, 4, 6, 7) * 3 + 1, torch.zeros(1))])


def test_an_instance_norm_in_a_branch_keeps_its_statistics() -> None:
    torch.manual_seed(0)
    norm = torch.nn.InstanceNorm2d(4, track_running_stats=True)
    norm(torch.randn(8, 4, 5, 5))

    def does(m: Any, x: Any, i: Any) -> Any:
        return torch.cond(i.sum() > 0, lambda y: m.norm(y), lambda y: y * 2, (x,))

    module = Steps(does)
    module.norm = norm
    on_cpu(module, [(torch.randn(2, 4, 6, 7) * 3 + 1, torch.ones(1))])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("has", ["", "weight", "weight and bias"])
def test_group_norms_without_factors(has: str, dtype: str) -> None:
    """As PoolFormer's second version has them; TVM ends with "Found null pointer"."""
    torch.manual_seed(0)
    norm = torch.nn.GroupNorm(2, 4, affine=bool(has))
    if has == "weight":
        norm.bias = None
    for one in norm.parameters():
        torch.nn.init.normal_(one)
    module = Steps(lambda m, x, i: m.norm(x))
    module.norm = norm.to(getattr(torch, dtype))
    on_cpu(module, [((torch.randn(2, 4, 6, 7) * 3 + 1).to(getattr(torch, dtype)), torch.zeros(1))])


@pytest.mark.parametrize("order", [(3, 0, 4, 1, 2, 5), (3, 0, 1, 4, 2, 5), (3, 4, 0, 1, 2, 5)])
@pytest.mark.parametrize("keys", [20, 5])
def test_attention_in_windows(order: tuple[int, ...], keys: int) -> None:
    """Of five dims torch multiplies in float32; here it is an attention as any other."""
    torch.manual_seed(0)

    def does(m: Any, x: Any, i: Any) -> Any:
        q, k, v = x.permute(order).unbind(0)
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k[..., :keys, :], v[..., :keys, :])

    given = (torch.randn(2, 3, 20, 3, 2, 32).half(), torch.zeros(1))
    rules = [
        one.rule for one in tlx.compile_torch(Steps(does).eval(), given, target=HOPPER).choices
    ]
    assert rules.count("attention") == 1
    assert {*rules} <= {"attention", "blocks"}


@pytest.mark.parametrize("sizes", [(16, 0, -1), (16, -17, -2), (5, -0.5, -0.5)])
def test_numbers_that_go_down(sizes: tuple[float, ...]) -> None:
    module = Steps(lambda m, x, i: x[:, None] + torch.arange(*sizes))
    on_cpu(module, [(torch.randn(4), torch.zeros(1))])


def test_the_least_and_its_place() -> None:
    module = Steps(lambda m, x, i: (*x.min(-1, keepdim=True), *x.min(0)))
    on_cpu(module, [(torch.randn(6, 8), torch.zeros(1))])
    module = Steps(lambda m, x, i: x - x.min(-1, keepdim=True).values)
    mod, _ = imported(exported(module.eval(), (torch.randn(6, 8), torch.zeros(1))))
    assert "topk" not in mod.script()


@pytest.mark.parametrize("how", [(), (-1,), (0, False), (1, True, False)])
def test_the_first_of_an_order_that_nobody_asks_for(how: tuple[Any, ...]) -> None:
    """As the routers of DeepSeek have it."""
    module = Steps(lambda m, x, i: x.topk(3, *how)[0].sort(how[0] if how else -1).values)
    on_cpu(module, [(torch.randn(6, 8), torch.zeros(1))])


@pytest.mark.parametrize(
    "known",
    [
        lambda f, w: f.interpolate(w, size=(3, 3), mode="bicubic", antialias=True),
        lambda f, w: torch.fft.fft(w).real,
        lambda f, w: torch.view_as_real(torch.polar(torch.ones(8), torch.arange(8.0))).sum(),
    ],
)
def test_what_depends_on_no_input_is_computed_by_torch(known: Any) -> None:
    torch.manual_seed(0)
    module = Steps(
        lambda m, x, i: x * known(torch.nn.functional, m.held).sum(), held=torch.randn(1, 2, 8, 8)
    )
    on_cpu(module, [(torch.randn(4), torch.zeros(1))])


@pytest.mark.parametrize("does", [torch.rand_like, lambda x: torch.fft.fft(x).real])
def test_what_is_random_or_of_an_input_is_not(does: Any) -> None:
    module = Steps(lambda m, x, i: x + does(x))
    with pytest.raises(tlx.ScheduleError, match="Unsupported function types"):
        tlx.compile_torch(module.eval(), (torch.randn(4, 8), torch.zeros(1)), target=HOPPER)


def _put(begin: int | None, end: int | None, step: int = 1) -> Any:
    def put(m: Any, x: Any, _: Any) -> Any:
        new = x @ m.held
        new[:, begin:end:step] = 2 * x[:, begin:end:step]
        return new

    return put


@pytest.mark.parametrize("part", [(0, 4), (4, 9), (-4, None), (None, None), (3, 99), (1, 8, 3)])
def test_a_slice_is_put_between_what_is_around_it(part: Any) -> None:
    """TVM's ``ToMixedPrecision`` fails where slices are put into what is computed (Swin-V2)."""
    torch.manual_seed(0)
    module, x = Steps(_put(*part), held=torch.randn(16, 16)), torch.randn(4, 16)
    mod, _ = imported(exported(module.eval(), (x, torch.zeros(1))))
    (found,) = by_cpu(tlx.MixedPrecision()(mod), [x.numpy(), np.zeros(1, "float32")])
    np.testing.assert_allclose(found, module(x, None).numpy(), atol=0.02)


def test_constants_of_no_element_do_not_matter() -> None:
    """As no register tokens are (DINOv3)."""
    module = Steps(lambda m, x, i: torch.cat([x, m.held.expand(4, 0)], 1), held=torch.zeros(1, 0))
    mod, _ = imported(exported(module.eval(), (torch.randn(4, 8), torch.zeros(1))))
    tlx.MixedPrecision()(mod)
