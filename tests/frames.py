"""A quick ``inspect.getouterframes``: TVM's parser asks for the whole stack at every function.

``T.prim_func`` and ``inline`` call ``inspect.stack()``, which looks each frame's module up by going
through all of ``sys.modules``: 93% of the time to parse TVM's 248 intrinsics, and more the deeper
the stack, as below pytest. The lines of a file come from ``linecache`` here, by the file's name.
"""

from __future__ import annotations

import inspect
import linecache
from types import FrameType

__all__ = ["outer_frames"]


def outer_frames(frame: FrameType | None, context: int = 1) -> list[inspect.FrameInfo]:
    """What ``inspect.getouterframes`` gives, without a look at any module.

    Parameters
    ----------
    frame : FrameType or None
        The innermost frame.
    context : int
        Source lines of each frame, around the one that runs; 0 for none.
    """
    found = []
    while frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        lines = linecache.getlines(name, frame.f_globals) if context > 0 else []
        start = max(0, min(line - 1 - context // 2, len(lines) - context))
        near = (lines[start : start + context], line - 1 - start) if lines else (None, None)
        found.append(inspect.FrameInfo(frame, name, line, frame.f_code.co_name, *near))
        frame = frame.f_back
    return found
