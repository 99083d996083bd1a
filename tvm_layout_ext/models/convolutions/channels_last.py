"""Convolutions go to channels-last layouts, in which neighbours in memory are summed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ... import decisions
from ...text import lines_of
from ..merge_alike import MergeAlike
from ..moves.axes import PositiveAxes
from ..moves.clips import Clips
from ..moves.sizes import SizesAsTensors
from ..relax_values import name_of, operators_of, rewritten
from ..tf32 import CONV, types_of

_log = logging.getLogger(__name__)
#: Elements that a thread copies at a time; rows of fewer channels are no better than columns.
_VECTORS = {"float16": 8, "bfloat16": 8, "float32": 4}
#: Layouts that convolutions come in, and those of images, of weights, and of a channel a group.
_LAYOUTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "nn.conv2d": ("NCHW", "OIHW", ("NHWC", "OHWI", "HWIO")),
    "nn.conv3d": ("NCDHW", "OIDHW", ("NDHWC", "ODHWI", "DHWIO")),
}


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.ChannelsLast")
class ChannelsLast:
    """Let ``conv2d`` read and write NHWC, and ``conv3d`` NDHWC, so that vectors are of channels.

    TVM's pass moves the permutations as far as they go, so that a chain of convolutions is permuted
    at both of its ends; what clips, which it does not pass, is written as a maximum and a minimum.
    Weights that are constants are permuted while compiling. ``tf32`` are the kinds of products of
    ``float32`` that tensor cores multiply, too (:mod:`..tf32`).
    """

    def __init__(self, tf32: Iterable[str] = ()) -> None:
        self.types = types_of(CONV, tf32)

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        # TVM's pass knows fewer operators than a model without layouts may have.
        if operators_of(mod).isdisjoint(_LAYOUTS):
            return mod
        try:
            for one in (Clips, SizesAsTensors, PositiveAxes):
                mod = rewritten(mod, one)
            moved = relax.transform.ConvertLayout({}, partial(_layouts, self.types))(mod)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            reason = lines_of(error)[-1]
            text = f"Convolutions keep their layouts; ConvertLayout fails: {reason}"
            decisions.note("fused", "ConvertLayout", text, refused=True)
            _log.warning("%s", text)
            return mod
        return tvm.transform.Sequential([MergeAlike()])(moved)


def _layouts(products: Sequence[str], call: relax.Call) -> dict[str, list[str]]:
    """The layouts that a call shall have; none where it keeps its own.

    ``products`` are the types that tensor cores multiply.
    """
    name = name_of(call)
    data, kernel, last = _LAYOUTS.get(name, ("", "", ()))
    if not data or call.attrs.data_layout != data or call.attrs.kernel_layout != kernel:
        return {}
    image, weight = (one.ty for one in call.args)
    vector = _VECTORS.get(str(image.dtype))
    if vector is None or not hasattr(weight.shape, "values"):
        return {}
    channels = [int(n) for n in weight.shape.values[:2] if isinstance(n, tvm.tirx.IntImm)]
    groups, weights = int(call.attrs.groups), last[1]
    if groups != 1 and channels == [groups, 1]:
        # Each channel is summed alone, and a thread has some neighbours: their weights, too, are
        # to be neighbours.
        del channels[1]
        weights = last[2]
    elif len(channels) < 2 or (groups != 1 and str(image.dtype) not in products):
        # Groups that tensor cores do not multiply gain nothing by a permutation.
        return {}
    # Of several results, as the 12 of an image of 3 at four pixels, tensor cores have tiles of any
    # number; what is summed they read in vectors. A single result is a sum.
    is_product = str(image.dtype) in products and channels[0] > 1
    # Images of a symbolic number have tiles of their pixels, which are to be rows.
    is_any = is_product and not isinstance(image.shape.values[0], tvm.tirx.IntImm)
    if not is_any and any(n % vector for n in (channels[-1:] if is_product else channels)):
        return {}
    return {f"relax.{name}": [last[0], weights]}
