"""Give small buffers of dynamic shared memory more than 32 bits.

TVM 0.27's MergeSharedMemoryAllocations takes one of at most 32 bits for a register, gives it no
place beside others, and then fails: "buffer_byte_offsets".
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.queries import nodes_in, substitute
from ..base import function_pass, mapped

_REGISTER_BITS = 32


def _wide(buffer: Any) -> Any:
    """A buffer with more bits than a register; itself if it has them."""
    bits, shape = tvm.DataType(str(buffer.dtype)).bits, list(buffer.shape)
    is_known = len(shape) == 1 and isinstance(shape[0], tirx.IntImm)
    if buffer.scope() != "shared.dyn" or not is_known or int(shape[0]) * bits > _REGISTER_BITS:
        return buffer
    return tirx.decl_buffer(
        (_REGISTER_BITS // bits + 1,),
        str(buffer.dtype),
        buffer.name,
        scope="shared.dyn",
        data_alignment=int(buffer.data_alignment),
        layout=None,
    )


@function_pass()
def WidenSmallBuffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that gives small buffers of dynamic shared memory more than 32 bits.

    Does not handle: buffers of several dims, of which flattening leaves none.
    """
    made = [one.buffer for one in nodes_in(func.body, tirx.AllocBuffer)]
    wide = {one: new for one in made if not (new := _wide(one)).same_as(one)}
    if not wide:
        return func
    renamed = mapped(
        func, (tirx.AllocBuffer, lambda one: tirx.AllocBuffer(wide.get(one.buffer, one.buffer)))
    )
    return renamed.with_body(substitute(renamed.body, wide))
