"""Modules of sizes that are known at a call alone, compared with torch on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_layout_ext as tlx
from tvm_layout_ext.models.for_torch.state import imported
from tvm_layout_ext.models.imported.export import exported

torch = pytest.importorskip("torch")
F = torch.nn.functional
BATCH, LENGTH = torch.export.Dim("batch", min=2, max=8), torch.export.Dim("n", min=4, max=64)
#: Where a GPU is there, tensors shall be on it.
NOT_HERE = "runs on a CUDA GPU|give those of one GPU"


class Does(torch.nn.Module):  # type: ignore[misc]
    """What a function does, with places that a buffer has."""

    def __init__(self, does: Any) -> None:
        super().__init__()
        self.does = does
        self.register_buffer("places", torch.arange(64)[None])

    def forward(self, x: Any) -> Any:
        return self.does(x, self.places)


def compared(module: Any, calls: list[tuple[Any, ...]], shapes: Any) -> tvm.IRModule:
    """The imported module, which gives what torch does at each call."""
    mod, _ = imported(exported(module.eval(), calls[0], None, shapes))
    main = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
    for given in calls:
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_leaves(module(*given))
        found = [torch.from_dlpack(one) for one in main(*map(tvm.runtime.from_dlpack, given))]
        for one, want in zip(found, wanted, strict=True):
            assert one.shape == want.shape
            assert one.dtype == want.dtype
            atol = 0.02 * float(want.abs().max()) if want.dtype.itemsize == 2 else 1e-5
            np.testing.assert_allclose(one.float(), want.float(), atol=atol)
    return mod


@pytest.mark.parametrize(
    "does",
    [
        lambda x, at: torch.diff(at[:, : x.shape[1]], prepend=at[:, :1] - 1).cumsum(-1) + x.sum(-1),
        lambda x, at: x[:, :1] + x[:, -1:] + x[:, -1][:, None] - x[:, -2:-1],
        lambda x, at: x[:, 1:] * x[:, :-1] + x[:, ::2].sum(1)[:, None] + x[:, 1::2].mean(),
        lambda x, at: at[:, :4].repeat(x.shape[0], 1) + x[:, 0],
        lambda x, at: at[:, None, :4].repeat(x.shape[0], x.shape[1], 2)[..., 3:7] + x,
        lambda x, at: x[torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None] - 1],
        lambda x, at: x.reshape(x.shape[0], -1, 2, 2).transpose(1, 2).reshape(-1, x.shape[1], 2),
        lambda x, at: F.one_hot(at[0, : x.shape[1]] % 5, 5)[None] + x[..., :1],
        lambda x, at: torch.tril(torch.ones(x.shape[1], x.shape[1])) @ x + x.new_ones(4),
        lambda x, at: x * (1.0 / x.shape[1]) + x.shape[0] ** 0.5,
        lambda x, at: torch.roll(F.pad(x, (0, 0, 1, 0))[:, :-1], 1, 1),
    ],
)  # fmt: skip
def test_sizes_are_those_of_each_call(does: Any) -> None:
    torch.manual_seed(0)
    calls = [(torch.randn(*sizes, 4),) for sizes in ((3, 8), (2, 4), (5, 13))]
    compared(Does(does), calls, ({0: BATCH, 1: LENGTH},))


def test_a_slice_that_begins_at_none_in_the_example() -> None:
    calls = [(torch.randn(n, 4),) for n in (4, 7, 13)]
    compared(Does(lambda x, at: x[x.shape[0] - 4 :] * 2), calls, {"x": {0: LENGTH}})


def test_multiples_of_a_size_are_refused() -> None:
    halves = Does(lambda x, at: x[: x.shape[0] // 2] + x[x.shape[0] // 2 :])
    with pytest.raises(tlx.ScheduleError, match=r"2\) \* s\d+ of an input does not tell s"):
        imported(exported(halves.eval(), (torch.randn(8, 8),), None, {"x": {0: 2 * BATCH}}))


def test_what_a_size_has_to_be_is_said() -> None:
    halves = Does(lambda x, at: x[:, x.shape[1] // 2 :] + x[:, : x.shape[1] // 2])
    with pytest.raises(tlx.ScheduleError, match=r"It suggests .*2\*_n") as caught:
        exported(halves.eval(), (torch.randn(2, 8, 4),), None, ({1: LENGTH},))
    assert "\n" not in str(caught.value)


def test_conditions_that_torch_cannot_prove_are_checked_at_calls() -> None:
    odd = Does(lambda x, at: x * 2 if (x.shape[1] - 1) // 2 % 2 else x * 3)
    fast = tlx.compile_torch(odd.eval(), (torch.randn(2, 16),), dynamic_shapes=({1: LENGTH},))
    with pytest.raises(tlx.TargetError, match=NOT_HERE):
        fast(torch.randn(2, 8))
    with pytest.raises(tlx.ScheduleError, match=r"Ne\(Mod.*x.shape\[1\] = 10 are not"):
        fast(torch.randn(2, 10))


def test_sizes_that_were_not_exported_for_are_refused() -> None:
    twice = Does(lambda x, at: x * 2)
    shapes = ({0: torch.export.Dim("rows", min=3), 1: LENGTH},)
    fast = tlx.compile_torch(twice.eval(), (torch.randn(4, 16),), dynamic_shapes=shapes)
    for shape, why in {
        (4, 65): r"x.shape\[1\] is 65, exported for 4 to 64",
        (4, 3): r"x.shape\[1\] is 3, exported for 4 to 64",
        (2, 8): r"x.shape\[0\] is 2, exported for 3 and more",
    }.items():
        with pytest.raises(tlx.ScheduleError, match=why):
            fast(torch.randn(shape))
    with pytest.raises(tlx.TargetError, match=NOT_HERE):
        fast(torch.randn(1000, 64))


#: Sizes of small models of transformers, by the names that their configurations have.
_PLAIN = {
    **dict.fromkeys(("hidden_size", "dim", "n_embd", "d_model"), 64),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff"), 128),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("head_dim", "d_kv"), 16),
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "image_size": 32,
    "patch_size": 8,
    "embedding_size": 16,
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
    "layer_type": "basic",
}


class First(torch.nn.Module):  # type: ignore[misc]
    """The first result of a model of transformers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        kind = getattr(transformers, name)
        config = kind.config_class()
        known = {key: size for key, size in _PLAIN.items() if hasattr(config, key)}
        self.model = kind(kind.config_class(**known, use_cache=False))

    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.model(x, **({} if mask is None else {"attention_mask": mask}))[0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("BertModel", "RobertaModel", "DistilBertModel", "T5EncoderModel"),
        *("LlamaForCausalLM", "Qwen3ForCausalLM", "GPT2LMHeadModel"),
    ],
)
def test_sequences_of_any_length(name: str, masked: bool) -> None:
    calls = []
    for sizes in ((3, 8), (2, 11), (5, 4)):
        tokens, mask = torch.randint(3, 100, sizes), torch.ones(sizes, dtype=torch.int64)
        mask[0, -2:] = 0
        calls.append((tokens, mask) if masked else (tokens,))
    compared(First(name), calls, ({0: BATCH, 1: LENGTH},) * len(calls[0]))


HEIGHT, WIDTH = (torch.export.Dim(name, min=8, max=64) for name in ("h", "w"))


@pytest.mark.parametrize(
    "does",
    [
        lambda x, at: F.interpolate(F.max_pool2d(x, 2), size=x.shape[-2:], mode="bilinear"),
        lambda x, at: F.interpolate(F.max_pool2d(x, 3), size=x.shape[-2:], mode="nearest"),
        lambda x, at: F.interpolate(
            F.max_pool2d(x, 2), size=x.shape[-2:], mode="bilinear", align_corners=True
        ),
        lambda x, at: F.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x, at: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x, at: F.pixel_shuffle(F.relu(x), 2) + x.mean(),
    ],
)
def test_images_of_any_height_and_width(does: Any) -> None:
    calls = [(torch.randn(2, 4, *size),) for size in ((24, 20), (13, 31))]
    try:
        compared(Does(does), calls, ({2: HEIGHT, 3: WIDTH},))
    except tlx.ScheduleError as error:
        # Torch 2.11 rounds a pool's result by a guard, and wants even sizes.
        if "It suggests" not in str(error):
            raise
        pytest.skip(str(error))


def test_the_nearest_pixels_are_those_of_torch() -> None:
    calls = [(torch.randn(2, 3, 24, 20),)]
    compared(Does(lambda x, at: F.interpolate(x, size=(40, 50), mode="nearest")), calls, None)
    with pytest.raises(tlx.ScheduleError, match="nearest pixels of no known one"):
        compared(
            Does(lambda x, at: F.interpolate(x, size=(40, 50), mode="nearest")),
            calls,
            ({2: HEIGHT, 3: WIDTH},),
        )


@pytest.mark.parametrize("name", ["ViTModel", "ResNetModel"])
def test_any_number_of_images(name: str) -> None:
    calls = [(torch.randn(batch, 3, 32, 32),) for batch in (3, 2, 7)]
    compared(First(name), calls, ({0: BATCH},))
