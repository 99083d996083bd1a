"""CUDA targets with the shared-memory limit that the hardware has, which TVM's own tags understate.

TVM reads the limit without opt-in (49,152 bytes) and writes ``sm_90`` without the ``a`` that
wgmma and TMA need; its tag for H100 has the same 49,152, and there is none for H200.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any

import tvm
from tvm.target import Target

from ._compat import has_gpu
from .errors import TargetError
from .gpu import hardware

ARCH_VARIABLE = "TVM_LAYOUT_EXT_ARCH"
_log = logging.getLogger("tvm_layout_ext")


def cuda_target(arch: str) -> Target:
    """Build the TVM target of an architecture (``sm_80``, ``sm_90a``, ...) with its true limits.

    ``max_shared_memory_per_block`` is in bytes after opt-in: 232,448 on sm_90a.
    """
    facts = hardware.architecture(arch)
    return Target(
        {
            "kind": "cuda",
            "arch": facts.name,
            "max_threads_per_block": facts.threads_per_block,
            "max_shared_memory_per_block": facts.shared_per_block,
            "thread_warp_size": hardware.WARP_SIZE,
        }
    )


def default_arch() -> str:
    """Architecture of ``TVM_LAYOUT_EXT_ARCH``, else of the first GPU, else ``sm_90a``."""
    named = os.environ.get(ARCH_VARIABLE)
    if named:
        return named
    if not has_gpu():
        return hardware.DEFAULT_ARCH
    digits = tvm.cuda(0).compute_version.replace(".", "")
    # Only the "a" variant may use the architecture's own instructions (PTX ISA, .target).
    return f"sm_{digits}a" if int(digits) >= 90 else f"sm_{digits}"


def default_target() -> Target:
    """Return what ``target="cuda"`` means to this package on this machine."""
    return cuda_target(default_arch())


@lru_cache(maxsize=1)
def _say_once(arch: str) -> None:
    _log.warning(
        "No CUDA GPU here: target 'cuda' means %s for functions with layout_ext annotations "
        "(set %s to change it).",
        arch,
        ARCH_VARIABLE,
    )


def resolve(target: str | Target | None) -> Target:
    """Turn a user's target into one with true limits; explicit targets pass through.

    None and ``"cuda"`` mean :func:`default_target`; TargetError if TVM does not know the target.
    """
    if isinstance(target, Target):
        return target
    if target is None or (isinstance(target, str) and target == "cuda"):
        return default_target()
    try:
        return Target(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TargetError(
            f"TVM knows no target {target!r}; give 'cuda', 'llvm' or a tvm.target.Target."
        ) from error


@lru_cache(maxsize=1)
def _tvm_guess() -> dict[str, Any]:
    """Attributes that TVM gives the bare word ``"cuda"`` on this machine (sm_50 without a GPU)."""
    # Without a GPU TVM says on stderr that it found none, which is no news here.
    return dict(Target("cuda" if has_gpu() else {"kind": "cuda", "arch": "sm_50"}).attrs)


def better_than_guess(target: Target) -> Target | None:
    """Return the default target if ``target`` is only TVM's guess for ``"cuda"``, else None."""
    if target.kind.name != "cuda" or dict(target.attrs) != _tvm_guess():
        return None
    better = default_target()
    if not has_gpu():
        _say_once(str(better.attrs["arch"]))
    return better if target.host is None else better.with_host(target.host)


def target_arch(func: tvm.tirx.PrimFunc | None = None) -> str:
    """Architecture of a function's own CUDA target, else of the one around, else the default."""
    target = _around(func)
    return default_arch() if target is None else str(target.attrs["arch"])


def capability(target: Target | None) -> tuple[int, int]:
    """Compute capability of a target's GPU, also of one that we have no facts of; else (0, 0)."""
    if target is None or target.kind.name != "cuda":
        return 0, 0
    digits = "".join(filter(str.isdigit, str(target.attrs.get("arch", ""))))
    return int(digits[:-1] or 0), int(digits[-1:] or 0)


def has_warpgroups_around() -> bool:
    """Whether the target around is ``sm_90a``, whose warpgroups multiply, as it was given."""
    target = Target.current(allow_none=True)
    return target is not None and str(target.attrs.get("arch", "")) == "sm_90a"


def _around(func: tvm.tirx.PrimFunc | None) -> Target | None:
    """The CUDA target of a function, or of the ``with`` around; TVM's guess means the default."""
    own = None if func is None else func.attrs.get("target", None)
    target = own if own is not None else Target.current(allow_none=True)
    if target is None or target.kind.name != "cuda":
        return None
    return better_than_guess(target) or target
