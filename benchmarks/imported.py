"""Time models that PyTorch's users have: torchvision's, timm's and transformers', by compile_torch.

``python -m benchmarks.imported --out FILE`` needs a CUDA GPU, torch, torchvision, timm and
transformers; ``--dry-run`` compiles without a GPU. A model has random weights of ``--dtype``, and
is compiled by ``tlx.compile_torch`` in its own types; then it is timed as in
:mod:`benchmarks.models`, beside torch.compile and eager torch, and held against ``float32``.
``--dtype tf32`` has weights of ``float32`` and both round what they multiply. ``--batch`` is that
of images, ``--dynamic`` compiles for any, and for any length of tokens,
``--any-image`` also for any height and width, and ``--graphs`` captures launches by a graph of
torch, and torch.compile's by its mode ``reduce-overhead``: whole runs are to be compared then.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

import tvm_layout_ext as tlx
from benchmarks import models
from tvm_layout_ext.ir.annotations import TF32

#: Images: channels, rows and columns.
_IMAGE = (3, 224, 224)
#: Sequences, and how many of their tokens are no padding.
_SEQUENCES = (((16, 384, 768), "float32"), ((16,), "int64"))
_TOKENS = (((4, 512), "int64"),)
#: Of Stable Diffusion 1.5, with and without guidance: latent images, a step, and words.
_LATENTS = (((2, 4, 64, 64), "float32"), ((1,), "int64"), ((2, 77, 768), "float32"))


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


def _volumes() -> Any:
    """A U-Net of volumes in three levels, as nnU-Net has its own."""
    import torch
    from torch import nn

    def block(inside: int, out: int) -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (inside, out):
            layers += [nn.Conv3d(channels, out, 3, padding=1), nn.InstanceNorm3d(out, affine=True)]
            layers.append(nn.LeakyReLU(0.01))
        return nn.Sequential(*layers)

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self, channels: tuple[int, ...] = (32, 64, 128)) -> None:
            super().__init__()
            pairs = [*pairwise((1, *channels))]
            self.down = nn.ModuleList(block(*pair) for pair in pairs)
            self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in pairs[:0:-1])
            self.join = nn.ModuleList(block(2 * a, a) for a, _ in pairs[:0:-1])
            self.last, self.pool = nn.Conv3d(channels[0], 3, 1), nn.MaxPool3d(2)

        def forward(self, x: Any) -> Any:
            kept: list[Any] = []
            for level in self.down:
                kept.append(level(self.pool(kept[-1]) if kept else x))
            x = kept.pop()
            for up, join in zip(self.up, self.join, strict=True):
                x = join(torch.cat([up(x), kept.pop()], 1))
            return self.last(x)

    net = UNet()
    net.inputs = (((2, 1, 96, 96, 96), "float32"),)
    return net


def _video(name: str, side: int) -> Any:
    """A network for clips of 16 frames, of convolutions of volumes."""
    import torchvision

    net = getattr(torchvision.models.video, name)(weights=None)
    net.image = (3, 16, side, side)
    return net


def _swin_v2() -> Any:
    """Swin-V2 in windows of 8 x 8, which takes larger images."""
    net = _timm("swinv2_tiny_window8_256")
    net.image = (3, 256, 256)
    return net


def _hiera() -> Any:
    """Hiera, whose attention in windows is written out, as its authors have it.

    Of five dims torch's own is two products in float32.
    """
    # Its head begins as zeros.
    net = _timm("hiera_tiny_224", num_classes=0)
    for one in net.modules():
        if hasattr(one, "use_mask_unit_attn"):
            one.fused_attn = not one.use_mask_unit_attn
    return net


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


def _first(module: Any, inputs: tuple[tuple[tuple[int, ...], str], ...]) -> Any:
    """A module that gives the first result of another one."""
    import torch

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.inputs = module, inputs

        def forward(self, *given: Any) -> Any:
            return self.model(*given, return_dict=False)[0]

    return First()


def _transformer(kind: str, config: str, attention: str = "sdpa", **sizes: Any) -> Any:
    """A model of transformers without a cache, which gives its first result."""
    import transformers

    made = getattr(transformers, config)(**sizes, attn_implementation=attention)
    made.use_cache = False
    return _first(getattr(transformers, kind)(made), _TOKENS)


def _denoiser() -> Any:
    import diffusers

    net = diffusers.UNet2DConditionModel(
        sample_size=64, cross_attention_dim=768, attention_head_dim=8
    )
    return _first(net, _LATENTS)


def _vae_decoder() -> Any:
    import diffusers

    blocks = 4
    vae = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
    )
    # Its forward takes an image; latent images have a method of their own.
    vae.forward = vae.decode
    del vae.encoder, vae.quant_conv
    return _first(vae, (((1, 4, 64, 64), "float32"),))


def _whisper_encoder() -> Any:
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    # Whisper-base: 30 seconds of 80 mel bins.
    config = transformers.WhisperConfig(
        d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048
    )
    return _first(WhisperEncoder(config), (((1, 80, 3000), "float32"),))


def _generator() -> Any:
    """DCGAN's generator, as PyTorch's tutorial has it."""
    import torch

    layers: list[Any] = []
    channels = (100, 512, 256, 128, 64)
    for i, (inside, out) in enumerate(pairwise(channels)):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layers += [
            torch.nn.ConvTranspose2d(inside, out, 4, stride, padding, bias=False),
            torch.nn.BatchNorm2d(out),
            torch.nn.ReLU(),
        ]
    net = torch.nn.Sequential(
        *layers, torch.nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), torch.nn.Tanh()
    )
    net.inputs = (((64, 100, 1, 1), "float32"),)
    return net


#: Heads of keys, and sizes, of TinyLlama, Qwen3-0.6B and Gemma-2B.
_TINY_LLAMA = {"hidden_size": 2048, "intermediate_size": 5632, "num_key_value_heads": 4}
_QWEN = {"hidden_size": 1024, "intermediate_size": 3072, "num_key_value_heads": 8, "head_dim": 128}
_GEMMA = {"hidden_size": 2048, "intermediate_size": 16384, "num_key_value_heads": 1}
#: Of Gemma-2-2B and Bloom-560M with fewer words, which torch has no one kernel of attention for.
_GEMMA_2 = {"hidden_size": 2304, "intermediate_size": 9216, "num_key_value_heads": 4}
_BLOOM = {"hidden_size": 1024, "n_head": 16}
_WRITTEN: dict[str, Any] = {"attention": "eager", "vocab_size": 32000}
#: What makes each module.
MODELS: dict[str, Callable[[], Any]] = {
    "ResNet-50": lambda: _vision("resnet50"),
    "ResNet-18": lambda: _vision("resnet18"),
    "VGG-16": lambda: _vision("vgg16_bn"),
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
    "Stable Diffusion 1.5, U-Net": _denoiser,
    "Stable Diffusion 1.5, decoder": _vae_decoder,
    "Whisper-base, encoder": _whisper_encoder,
    "DCGAN, generator": _generator,
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
    "Gemma-2-2B, 2 layers": lambda: _transformer(
        "Gemma2Model", "Gemma2Config", num_hidden_layers=2, **_GEMMA_2, **_WRITTEN
    ),
    "Bloom-560M, 4 layers": lambda: _transformer(
        "BloomModel", "BloomConfig", n_layer=4, **_BLOOM, **_WRITTEN
    ),
    "GPT-BigCode-1B, 2 layers": lambda: _transformer(
        "GPTBigCodeModel", "GPTBigCodeConfig", n_layer=2, n_embd=2048, n_head=16
    ),
    "Swin-V2-T": _swin_v2,
    "Hiera-T": _hiera,
    "U-Net of volumes": _volumes,
    "R3D-18, clips": lambda: _video("r3d_18", 112),
    "S3D, clips": lambda: _video("s3d", 224),
    "Swin3D-T, clips": lambda: _video("swin3d_t", 224),
    "MViT-V2-S, clips": lambda: _video("mvit_v2_s", 224),
}
#: Shapes and types of inputs that are no images.
INPUTS: dict[str, tuple[tuple[tuple[int, ...], str], ...]] = {
    "Encoder of 4 layers, padded": _SEQUENCES
}


def inputs_of(name: str, module: Any, batch: int, dtype: str) -> list[Any]:
    """Random inputs of a model on the CPU; tokens are some 1000, padding ends at any place."""
    import torch

    image = (((batch, *getattr(module, "image", _IMAGE)), "float32"),)
    shapes = INPUTS.get(name, getattr(module, "inputs", image))
    most = shapes[0][0][0] if len(shapes) > 1 else 1000
    return [
        torch.randint(0, most, shape)
        if "int" in type_
        else torch.randn(shape).to(getattr(torch, dtype))
        for shape, type_ in shapes
    ]


def _any_size(module: Any, given: list[Any], any_image: bool) -> Any:
    """Any batch, and any length of tokens that a model has places for, or size of images."""
    import torch

    if any_image:
        names = {0: ("batch", 1, 256), 2: ("height", 64, 1024), 3: ("width", 64, 1024)}
        dims = {at: torch.export.Dim(name, min=a, max=b) for at, (name, a, b) in names.items()}
        return tuple(dims for _ in given)
    if len(given) > 1 or given[0].ndim != 2 or given[0].is_floating_point():
        return tuple({0: torch.export.Dim("batch", min=1, max=256)} for _ in given)
    longest = min(4096, getattr(module.model.config, "max_position_embeddings", 4096))
    sizes = {
        0: torch.export.Dim("batch", min=1, max=64),
        1: torch.export.Dim("length", min=2, max=longest),
    }
    return ((sizes,),)  # Its inputs are any number, so that they count as one.


def compiled(
    name: str, batch: int, dtype: str, dynamic: bool, any_image: bool
) -> tuple[Any, list[Any], tlx.TorchModule, float]:
    """A module in its type, inputs, what compile_torch made of it, and the seconds it took."""
    import torch

    torch.manual_seed(0)
    rounded = dtype == TF32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounded
    dtype = "float32" if rounded else dtype
    module = MODELS[name]().eval().to(getattr(torch, dtype))
    given = inputs_of(name, module, batch, dtype)
    begun = time.perf_counter()
    shapes = _any_size(module, given, any_image) if dynamic or any_image else None
    fast = tlx.compile_torch(module, given, dynamic_shapes=shapes)
    return module, given, fast, time.perf_counter() - begun


def prepared(
    name: str, batch: int, dtype: str, dynamic: bool, any_image: bool, graphs: bool
) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """What is told of a model's compilation, and its calls."""
    module, given, fast, seconds = compiled(name, batch, dtype, dynamic, any_image)
    row, calls = beside(module, given, fast, seconds, graphs)
    return {"batch": len(given[0]), **row}, calls


def beside(
    module: Any, given: list[Any], fast: tlx.TorchModule, seconds: float, graphs: bool = False
) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """Choices and seconds of a compiled module, and its calls beside those of torch's."""
    import torch

    module, given = module.cuda(), [one.cuda() for one in given]
    wider = torch.float64 if torch.backends.cudnn.allow_tf32 else torch.float32
    wide = [one.to(wider) if one.is_floating_point() else one for one in given]
    full = copy.deepcopy(module).to(wider)
    theirs = torch.compile(module, dynamic=False, mode="reduce-overhead" if graphs else None)
    calls: dict[str, Callable[[], Any]] = {
        "ours": models.captured(fast, *given) if graphs else partial(fast, *given),
        "torch eager": partial(module, *given),
        "torch.compile": partial(theirs, *given),
        "float32": partial(full, *wide),
    }
    choices = {one.name: f"{one.rule}: {one.text}" for one in fast.choices}
    return {"choices": choices, "compile": {"ours": seconds}}, calls


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "",
    batch: Annotated[int, typer.Option(help="Images at once.")] = 16,
    dtype: Annotated[str, typer.Option(help="Type of weights and images.")] = "float16",
    dry_run: Annotated[bool, typer.Option(help="Compile everything, run nothing.")] = False,
    dynamic: Annotated[bool, typer.Option(help="Export with any batch and length.")] = False,
    any_image: Annotated[bool, typer.Option(help="Export images of any height and width.")] = False,
    graphs: Annotated[bool, typer.Option(help="Capture CUDA graphs, as torch.compile.")] = False,
) -> None:
    """Compile all models at once, each in a process, then time one after the other."""
    names = [name for name in MODELS if any(one in name for one in only.split("|"))]
    given = {"batch": batch, "dtype": dtype, "dynamic": dynamic, "any_image": any_image}
    if not dry_run:
        models.timed(names, partial(prepared, **given, graphs=graphs), "imported", out)
        return
    for name in names:
        _, _, fast, seconds = compiled(name, **given)
        print(f"{name} compiled in {seconds:.1f} s: {fast}", flush=True)
        print(
            "\n".join(f"  {one.name}: {one.rule}: {one.text}" for one in fast.choices), flush=True
        )


if __name__ == "__main__":
    typer.run(main)
