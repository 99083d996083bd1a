"""The rules by which functions are scheduled, in the order in which they are asked."""

from __future__ import annotations

from .attention.by_attention import by_attention
from .by_blocks import by_blocks
from .by_dlight import by_dlight
from .by_rows import by_rows
from .convolutions.by_windows import by_windows
from .few_rows.plain_rows import plain_rows
from .gated.by_members import by_members
from .on_tensor_cores import by_warpgroups, on_tensor_cores
from .on_threads import on_threads
from .quantised.few_rows import few_rows
from .quantised.tensor_rows import tensor_rows
from .rule import Apply

#: By the name in :attr:`.FunctionChoice.rule`. The last one takes what all others refuse.
RULES: dict[str, Apply] = {
    "attention": by_attention,
    "packed weights": tensor_rows,
    "packed weights on threads": few_rows,
    "few rows": plain_rows,
    "gated products": by_members,
    "warpgroups": by_warpgroups,
    "tensor cores": on_tensor_cores,
    "threads": on_threads,
    "windows": by_windows,
    "rows": by_rows,
    "blocks": by_blocks,
    "dlight": by_dlight,
}
LAST = "dlight"
#: Those whose kernels the model of memory-bound kernels counts.
MODELLED = ("rows", "blocks")
#: Those for products that the rules before them do faster; a choice of one tells what these refuse.
SLOWER = ("packed weights on threads", "tensor cores", "threads")
