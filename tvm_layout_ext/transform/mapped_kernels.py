"""The kernels that marked blocks become, before the rest of the lowering."""

from __future__ import annotations

import tvm

from .auto_coalesce import AutoCoalesce
from .fuse_rows import FuseRows
from .mark_annotated import MarkAnnotated
from .turn_tiles import TurnTiles


def mapped_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """Module in which blocks marked for a map, and chains along rows, have their threads.

    What models a program's time or counts its sectors before it is lowered asks for it.
    """
    passes = [MarkAnnotated(), FuseRows(), AutoCoalesce(), TurnTiles()]
    return tvm.transform.Sequential(passes)(mod)
