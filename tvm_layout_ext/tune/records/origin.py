"""Where a record of the database comes from: TVM's own format has a target, but no versions.

TVM writes a target's ``tag`` down, reads it back and asks nothing of it, so that is where they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm.target import Target

from ..measure import environment
from .record import MODELLED

__all__ = ["Origin", "plain", "seal_of", "sealed", "tagged"]

_PREFIX = "layout_ext"
_BETWEEN, _IS = "; ", "="
_SEAL = f"{_BETWEEN}sha256{_IS}"


@dataclass(frozen=True)
class Origin:
    """What must agree, beside workload and architecture, before a record stands for a kernel.

    Attributes
    ----------
    tvm, package : str
        Versions: both decide what a schedule becomes.
    runner : str
        ``"cuda"`` or ``"rpc"`` if ``run_secs`` are times, ``"simulate"`` if they are modelled.
    device : str
        Name of the GPU.
    """

    tvm: str
    package: str
    runner: str
    device: str

    @classmethod
    def here(cls, runner: str, device: str) -> Origin:
        """What this process makes."""
        versions = environment.versions()
        return cls(str(versions["tvm"]), str(versions["package"]), runner, device)

    @property
    def versions(self) -> tuple[str, str]:
        """Of TVM and of this package."""
        return self.tvm, self.package

    @property
    def measured(self) -> bool:
        """Whether its seconds are times, not a model's."""
        return self.runner != MODELLED

    def tag(self) -> str:
        """One line of text; inverse of :meth:`from_tag`.

        Examples
        --------
        >>> Origin("0.27.0", "0.1.0", "cuda", "NVIDIA H200").tag()
        'layout_ext; tvm=0.27.0; package=0.1.0; runner=cuda; device=NVIDIA H200'
        """
        return _BETWEEN.join(
            (_PREFIX, *(f"{name}{_IS}{value}" for name, value in vars(self).items()))
        )

    @classmethod
    def from_tag(cls, tag: str) -> Origin | None:
        """Read a tag; None if nobody wrote an origin there."""
        tag, _ = seal_of(tag)
        first, *rest = tag.split(_BETWEEN, 4)
        values = dict(part.split(_IS, 1) for part in rest if _IS in part)
        if first != _PREFIX or list(values) != list(cls.__annotations__):
            return None
        return cls(**values)


def tagged(target: Target, origin: Origin) -> Target:
    """Give a target that names its origin, and is otherwise the same."""
    return Target(plain(target) | {"tag": origin.tag()})


def sealed(tag: str, digest: str) -> str:
    """Add to a tag a digest of the record that it is in."""
    return f"{tag}{_SEAL}{digest}"


def seal_of(tag: str) -> tuple[str, str | None]:
    """Take a tag and its digest apart; None if it has none."""
    before, seal, digest = tag.rpartition(_SEAL)
    return (before, digest) if seal else (tag, None)


def plain(target: Target) -> dict[str, Any]:
    """A target as plain JSON values."""
    return _plain(target.export())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, str | bool | int | float):
        return json.loads(json.dumps(value))
    return [_plain(one) for one in value]
