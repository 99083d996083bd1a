"""Weights on a GPU, of which compiled modules that have the same share one copy."""

from __future__ import annotations

import sys
import weakref
from typing import Any

#: By device, type and shape, tensors that modules have.
_known: dict[Any, list[weakref.ref[Any]]] = {}


def on_device(weight: Any, device: Any) -> Any:
    """A tensor of torch's on a device, with the bits of one of TVM's.

    It is one that another module has, if one of the same bits is alive; nobody may write to it.
    """
    torch = sys.modules["torch"]
    new = torch.from_dlpack(weight).to(device, copy=True)
    places = _known.setdefault((device, new.dtype, new.shape), [])
    alive = [(place, one) for place in places if (one := place()) is not None]
    same = next((one for _, one in alive if torch.equal(_bits(one), _bits(new))), None)
    found = new if same is None else same
    places[:] = [place for place, _ in alive] + [weakref.ref(new)] * (same is None)
    return found


def _bits(tensor: Any) -> Any:
    return tensor.view(sys.modules["torch"].uint8)
