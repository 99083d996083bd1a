"""Attention of a paged cache on tensor cores, in the place of TVM's own kernels for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ...errors import ScheduleError
from ...gpu.hardware import Architecture
from ...transform.attention.ragged import Pages, Ragged, RaggedAttention, with_kernel


@dataclass(frozen=True)
class Role:
    """What a function of the cache is called with, and what it computes of that.

    ``form`` has a letter a parameter: ``q``, ``p``, ``s`` and ``i`` for queries and their like,
    pages, sums of rows and one-dimensional ``int32``; ``n`` and ``x`` for an integer and a float.
    """

    form: str
    read: Callable[[Sequence[Any]], RaggedAttention]


def _ragged(params: Sequence[Any]) -> RaggedAttention:
    q, first, k, v, keys, _, _, output, sums, causal, *_, scale = params
    return RaggedAttention(q, first, Ragged(k, v, keys), output, sums, causal, scale)


def _continued(params: Sequence[Any]) -> RaggedAttention:
    q, first, pages, begins, numbers, last, _, _, output, sums, causal, *_, scale = params
    return RaggedAttention(
        q, first, Pages(pages, begins, numbers, last), output, sums, causal, scale
    )


def _of_tokens(params: Sequence[Any]) -> RaggedAttention:
    q, pages, begins, numbers, last, _, _, output, sums, *_, scale = params
    keys, never = Pages(pages, begins, numbers, last), tirx.const(0, "int32")
    return RaggedAttention(q, None, keys, output, sums, never, scale)


#: By the place of a function among the arguments of the cache's creation: first prompts, whose keys
#: lie beside them; continued prompts; a token of each sequence. Then come those of sliding windows
#: and of trees, which stay TVM's.
ROLES = {
    16: Role("qiqqiiiqsnnxxx", _ragged),
    17: Role("qipiiiiiqsnnxxx", _continued),
    18: Role("qpiiiiiqsnxxx", _of_tokens),
}
#: By type and dims.
_LETTERS = {("int32", 1): "i", ("float32", 2): "s"}
_LETTERS |= {(kind, 3): "q" for kind in ("float16", "bfloat16")}
_LETTERS |= {(kind, 5): "p" for kind in ("float16", "bfloat16")}


def on_tensor_cores(func: tirx.PrimFunc, role: Role, gpu: Architecture) -> tirx.PrimFunc:
    """The same function by a kernel of warpgroups, for caches that hold keys turned already.

    Raises
    ------
    ScheduleError
        If it has other parameters, or heads that the kernel does not take.
    """
    form = "".join(map(_letter, func.params))
    if form != role.form:
        raise ScheduleError(f"Its parameters are {form}, not {role.form}.")
    return with_kernel(func, role.read(func.params), gpu)


def _letter(param: Any) -> str:
    """What a parameter may be, by its dims and type."""
    if not hasattr(param, "shape"):
        return "n" if "int" in str(param.ty) else "x"
    return _LETTERS.get((str(param.dtype), len(param.shape)), "?")
