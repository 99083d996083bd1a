"""Time models that PyTorch's users have: torchvision's and timm's, imported by ``torch.export``.

``python -m benchmarks.imported --out FILE`` needs a CUDA GPU, torch, torchvision and timm;
``--dry-run`` builds everything without a GPU. A model with random weights is exported in float32,
imported by TVM's frontend, and brought to float16 by ``MixedPrecision``, as torch's is whose
shortcuts are in half precision; then it is compiled and timed as in
:mod:`benchmarks.models`, beside the same module of torch in half precision. ``--wide`` leaves the
shortcuts in float32, ``--dynamic`` compiles for any batch, and ``--graphs`` lets all capture CUDA
graphs, torch.compile by its mode ``reduce-overhead``: whole runs are to be compared then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from tvm import relax

import tvm_layout_ext as tlx
from benchmarks import models
from benchmarks.model_zoo import Model
from tvm_layout_ext.models.imported.torch_module import exported

#: Inputs of most: images by batch, channels, rows and columns.
_IMAGES = (((16, 3, 224, 224), "float32"),)
#: Sequences, and how many of their tokens are no padding.
_SEQUENCES = (((16, 384, 768), "float32"), ((16,), "int64"))
_TOKENS = (((4, 512), "int64"),)


def _vision(name: str, **options: Any) -> Any:
    import torchvision

    return getattr(torchvision.models, name)(weights=None, **options)


def _segmenter() -> Any:
    """A segmentation network without its second head."""
    import torch
    import torchvision

    class Segmenter(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            make = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large
            self.model = make(weights=None, weights_backbone=None)

        def forward(self, x: Any) -> Any:
            return self.model(x)["out"]

    return Segmenter()


def _timm(name: str, **options: Any) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, **options)


def _encoder(layers: int) -> Any:
    """An encoder of PyTorch's own layers, to which keys of padding are hidden."""
    import torch

    class Encoder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(
                768, 12, 3072, activation="gelu", batch_first=True
            )
            self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

        def forward(self, x: Any, lengths: Any) -> Any:
            # A sequence of no token has no softmax.
            places = torch.arange(x.shape[1], device=x.device)[None, :]
            return self.layers(x, src_key_padding_mask=places > lengths[:, None] * 16)

    return Encoder()


def _transformer(kind: str, config: str, **sizes: Any) -> Any:
    """A model of transformers without a cache, which gives its first result."""
    import torch
    import transformers

    class Transformer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            made = getattr(transformers, config)(**sizes, attn_implementation="sdpa")
            made.use_cache = False
            self.model, self.inputs = getattr(transformers, kind)(made), _TOKENS

        def forward(self, tokens: Any) -> Any:
            return self.model(tokens)[0]

    return Transformer()


#: Heads of keys, and sizes, of TinyLlama, Qwen3-0.6B and Gemma-2B.
_TINY_LLAMA = {"hidden_size": 2048, "intermediate_size": 5632, "num_key_value_heads": 4}
_QWEN = {"hidden_size": 1024, "intermediate_size": 3072, "num_key_value_heads": 8, "head_dim": 128}
_GEMMA = {"hidden_size": 2048, "intermediate_size": 16384, "num_key_value_heads": 1}
#: What makes each module.
MODELS: dict[str, Callable[[], Any]] = {
    "ResNet-50": lambda: _vision("resnet50"),
    "EfficientNet-B0": lambda: _timm("efficientnet_b0"),
    "ConvNeXt-T": lambda: _timm("convnext_tiny"),
    "ViT-B/16, 4 layers": lambda: _timm("vit_base_patch16_224", depth=4),
    "DenseNet-121": lambda: _vision("densenet121"),
    "Encoder of 4 layers, padded": lambda: _encoder(4),
    "ResNeXt-50": lambda: _vision("resnext50_32x4d"),
    "RegNetY-800MF": lambda: _vision("regnet_y_800mf"),
    "MobileNetV3-L": lambda: _vision("mobilenet_v3_large"),
    "Swin-T": lambda: _vision("swin_t"),
    "MaxViT-T": lambda: _vision("maxvit_t"),
    "EfficientNetV2-S": lambda: _vision("efficientnet_v2_s"),
    "Inception-V3": lambda: _vision("inception_v3", aux_logits=False, init_weights=False),
    "DeepLabV3, MobileNetV3": _segmenter,
    "Mixer-B/16": lambda: _timm("mixer_b16_224"),
    "PoolFormer-S12": lambda: _timm("poolformer_s12"),
    "CoAtNet-0": lambda: _timm("coatnet_0_rw_224"),
    "HRNet-W18 small": lambda: _timm("hrnet_w18_small"),
    "BERT-base, 4 layers": lambda: _transformer("BertModel", "BertConfig", num_hidden_layers=4),
    "T5, encoder of 4 layers": lambda: _transformer(
        "T5EncoderModel", "T5Config", d_model=768, d_ff=3072, num_layers=4, num_heads=12
    ),
    "ModernBERT, 6 layers": lambda: _transformer(
        "ModernBertModel", "ModernBertConfig", num_hidden_layers=6
    ),
    "TinyLlama, 4 layers": lambda: _transformer(
        "LlamaModel", "LlamaConfig", num_hidden_layers=4, num_attention_heads=32, **_TINY_LLAMA
    ),
    "Qwen3-0.6B, 4 layers": lambda: _transformer(
        "Qwen3Model", "Qwen3Config", num_hidden_layers=4, num_attention_heads=16, **_QWEN
    ),
    "Gemma-2B, 2 layers": lambda: _transformer(
        "GemmaModel", "GemmaConfig", num_hidden_layers=2, num_attention_heads=8, **_GEMMA
    ),
}
#: Shapes and types of inputs that are no images.
INPUTS: dict[str, tuple[tuple[tuple[int, ...], str], ...]] = {
    "Encoder of 4 layers, padded": _SEQUENCES
}


def imported(name: str, module: Any, wide: bool = False, dynamic: bool = False) -> Model:
    """A module of torch in Relax, in mixed precision, with its weights as constants."""
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    inputs = INPUTS.get(name, getattr(module, "inputs", _IMAGES))
    batch = {0: torch.export.Dim("batch", min=1, max=256)}
    given = tuple(torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in inputs)
    sizes = tuple(batch for _ in inputs) if dynamic else None
    program = exported(module, given, dynamic_shapes=sizes)
    options = {"run_ep_decomposition": False, "unwrap_unit_return_tuple": True}
    mod = from_exported_program(program, **options)
    mod = (relax.transform.ToMixedPrecision if wide else tlx.MixedPrecision)()(mod)
    return Model(mod, inputs, lambda _, *a: module(*a))


def prepared(
    name: str, wide: bool = False, dynamic: bool = False, graphs: bool = False
) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """What is told of a model's compilation, and its calls."""
    import torch

    torch.manual_seed(0)
    module = MODELS[name]().eval()
    model = imported(name, module, wide, dynamic)
    executables, choices, seconds = models.built(model, tlx.default_target(), graphs)
    half, full = copy.deepcopy(module).cuda().half(), module.cuda()

    def halved(x: Any) -> Any:
        return x.half() if x.is_floating_point() else x

    in_half = replace(model, torch=lambda _, x, *more: half(halved(x), *more))
    calls = models.calls_of(in_half, executables, "reduce-overhead" if graphs else None)
    on_gpu = [torch.from_numpy(one).cuda() for one in models.inputs_of(model)]
    calls["float32"] = lambda: full(*on_gpu)
    return {"choices": choices, "compile": seconds}, calls


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "",
    dry_run: Annotated[bool, typer.Option(help="Build everything, run nothing.")] = False,
    wide: Annotated[bool, typer.Option(help="Leave shortcuts in float32.")] = False,
    dynamic: Annotated[bool, typer.Option(help="Export with any batch.")] = False,
    graphs: Annotated[bool, typer.Option(help="Capture CUDA graphs, as torch.compile.")] = False,
) -> None:
    """Import and build all models at once, each in a process, then time one after the other."""
    names = [name for name in MODELS if any(one in name for one in only.split("|"))]
    if not dry_run:
        models.timed(
            names, partial(prepared, wide=wide, dynamic=dynamic, graphs=graphs), "imported", out
        )
        return
    for name in names:
        model = imported(name, MODELS[name]().eval(), wide, dynamic)
        _, choices, seconds = models.built(model, tlx.default_target(), graphs)
        print(name, "compiled in", {who: round(one, 1) for who, one in seconds.items()}, flush=True)
        print("\n".join(f"  {one}: {how}" for one, how in choices.items()), flush=True)


if __name__ == "__main__":
    typer.run(main)
