"""Write vectors of equal elements as vectors of equal words.

TVM 0.27 writes ``T.Broadcast(T.int8(3), 16)`` as ``make_int4`` of 16 arguments, and 8 elements of 4
bytes as ``make_ulonglong4``, which no compiler takes. Of 4 bytes it spreads constants alone, and of
FP8 it has no such vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import tirx

from ..base import function_pass, mapped

#: Times an element of so many bytes, a word full of it; words of 4 bytes, or of 8 for those of 4.
_REPEATED = {1: 0x01010101, 2: 0x00010001, 4: 0x0000000100000001}
#: TVM has CUDA types of one element a lane up to here; longer ones are ``int2``, ``uint4``, ...
_OWN_LANES = 4
_KINDS = (
    *("int8", "uint8", "int16", "uint16", "float8_e4m3fn", "float8_e5m2"),
    *("int32", "uint32", "float32"),
)


def _packed(spread: Any) -> Any:
    kind = str(spread.value.ty)
    if kind not in _KINDS or not isinstance(spread.lanes, int | tirx.IntImm):
        return spread
    lanes, size = int(spread.lanes), tvm.DataType(kind).bits // 8
    word = max(4, 2 * size) if size > 2 else 4
    words, rest = divmod(lanes * size, word)
    # Of 4 bytes TVM writes those of constants alone.
    is_own = size > 1 or kind.startswith("float8") or isinstance(spread.value, tirx.IntImm)
    if lanes < _OWN_LANES or (lanes == _OWN_LANES and is_own) or rest:
        return spread
    value = _word(spread.value, size, f"uint{8 * word}")
    return tirx.reinterpret(f"{kind}x{lanes}", tirx.Broadcast(value, words) if words > 1 else value)


def _word(value: Any, size: int, word: str) -> Any:
    """Fill a word with an element; the sign of one is none of its neighbour's business."""
    bits = f"uint{8 * size}"
    if isinstance(value, tirx.IntImm):
        return tirx.const((int(value.value) & (1 << 8 * size) - 1) * _REPEATED[size], word)
    if isinstance(value, tirx.FloatImm):
        # TVM would write the address of a literal, which has none.
        literal = np.array(float(value.value), str(value.ty))
        return tirx.const(int(literal.view(bits)) * _REPEATED[size], word)
    if str(value.ty).startswith("float"):
        element = tirx.reinterpret(bits, value)
    else:
        element = tirx.Cast(bits, value)
    return tirx.Cast(word, element) * tirx.const(_REPEATED[size], word)


@function_pass()
def PackBytes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that spreads an element of 1, 2 or 4 bytes over a long vector by words.

    Leaves alone: types and short vectors that TVM writes well, and vectors of no whole words.
    """
    return mapped(func, (tirx.Broadcast, _packed))
