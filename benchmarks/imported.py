"""Time models that PyTorch's users have: torchvision's and timm's, imported by ``torch.export``.

``python -m benchmarks.imported --out FILE`` needs a CUDA GPU, torch, torchvision and timm;
``--dry-run`` builds everything without a GPU. A model with random weights is exported in float32,
imported by TVM's frontend, and brought to float16 by ``ToMixedPrecision`` and ``NarrowShortcuts``,
as torch's is whose shortcuts are in half precision; then it is compiled and timed as in
:mod:`benchmarks.models`, beside the same module of torch in half precision. ``--wide`` leaves the
shortcuts in float32, and ``--dynamic`` compiles for any batch.
"""

from __future__ import annotations

import copy
import warnings
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

#: Image sizes: batch, channels, rows and columns.
_IMAGES = (16, 3, 224, 224)


def _vision(name: str) -> Any:
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def _timm(name: str, **options: Any) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, **options)


#: What makes each module, which then takes images.
MODELS: dict[str, Callable[[], Any]] = {
    "ResNet-50": lambda: _vision("resnet50"),
    "EfficientNet-B0": lambda: _timm("efficientnet_b0"),
    "ConvNeXt-T": lambda: _timm("convnext_tiny"),
    "ViT-B/16, 4 layers": lambda: _timm("vit_base_patch16_224", depth=4),
    "DenseNet-121": lambda: _vision("densenet121"),
}


def imported(module: Any, wide: bool = False, dynamic: bool = False) -> Model:
    """A module of torch in Relax, in mixed precision, with its weights as constants."""
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    sizes = ({0: torch.export.Dim("batch", min=1, max=256)},) if dynamic else None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (torch.zeros(_IMAGES),), dynamic_shapes=sizes)
        mod = from_exported_program(program, unwrap_unit_return_tuple=True)
    mod = relax.transform.ToMixedPrecision()(mod)
    if not wide:
        mod = tlx.NarrowShortcuts()(mod)
    return Model(mod, ((_IMAGES, "float32"),), lambda _, *a: module(*a))


def prepared(
    name: str, wide: bool = False, dynamic: bool = False
) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """What is told of a model's compilation, and its calls."""
    import torch

    torch.manual_seed(0)
    module = MODELS[name]().eval()
    model = imported(module, wide, dynamic)
    executables, choices, seconds = models.built(model, tlx.default_target())
    half, full = copy.deepcopy(module).cuda().half(), module.cuda()
    in_half = replace(model, torch=lambda _, x: half(x.half()))
    calls = models.calls_of(in_half, executables)
    (image,) = models.inputs_of(model)
    on_gpu = torch.from_numpy(image).cuda()
    calls["float32"] = lambda: full(on_gpu)
    return {"choices": choices, "compile": seconds}, calls


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "",
    dry_run: Annotated[bool, typer.Option(help="Build everything, run nothing.")] = False,
    wide: Annotated[bool, typer.Option(help="Leave shortcuts in float32.")] = False,
    dynamic: Annotated[bool, typer.Option(help="Export with any batch.")] = False,
) -> None:
    """Import and build all models at once, each in a process, then time one after the other."""
    names = [name for name in MODELS if any(one in name for one in only.split("|"))]
    if not dry_run:
        models.timed(names, partial(prepared, wide=wide, dynamic=dynamic), "imported", out)
        return
    for name in names:
        model = imported(MODELS[name]().eval(), wide, dynamic)
        _, choices, seconds = models.built(model, tlx.default_target())
        print(name, "compiled in", {who: round(one, 1) for who, one in seconds.items()}, flush=True)
        print("\n".join(f"  {one}: {how}" for one, how in choices.items()), flush=True)


if __name__ == "__main__":
    typer.run(main)
