"""Stores to global memory that tell the L2 cache how long to keep what they write.

``createpolicy`` makes a policy of an eviction priority, and a store names it by
``.L2::cache_hint`` (PTX ISA, "Data Movement and Conversion Instructions": createpolicy, st; sm_80
and later). TVM's table of PTX has both, but its ``st`` takes a register at a time, so that a vector
would be taken apart and put together; here the helper does that, for any type of so many bytes.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.prim.expr import Ramp
from tvm.script import tirx as T

from ..ir.pointers import PREFIX

#: Eviction priorities, as Triton's ``eviction_policy`` names them.
POLICIES = ("evict_first", "evict_last")
#: First compute capability that has them.
POLICY_STORES_SINCE = (8, 0)
_WORD = 4
#: By the bytes of a store: vector suffix of ``st``, its operands, and the type of its words.
_FORMS = {
    4: ("", "%1", "unsigned int"),
    8: (".v2", "{%1, %2}", "uint2"),
    16: (".v4", "{%1, %2, %3, %4}", "uint4"),
}


def _source(name: str, policy: str, size: int) -> str:
    """Source of a helper.

    The value is passed and copied whole: of ``memcpy`` nvcc 13.0 makes loads of single bytes where
    it comes from memory. The clobber keeps other accesses in order, as a plain store does where
    pointers may alias; loads that are known to be of other buffers still come before it.
    """
    vector, operands, word_type = _FORMS[size]
    words = ["words"] if size == _WORD else [f"words.{c}" for c in "xyzw"[: size // _WORD]]
    inputs = ", ".join(f'"r"({word})' for word in words)
    return f"""
template <typename Value>
__forceinline__ __device__ void {name}(void* at, Value value) {{
  static_assert(sizeof(Value) == {size}, "{name} stores {size} bytes");
  alignas({size}) const Value held = value;
  const {word_type} words = *reinterpret_cast<const {word_type}*>(&held);
  unsigned long long policy;
  asm("createpolicy.fractional.L2::{policy}.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("st.global.L2::cache_hint{vector}.b32 [%0], {operands}, %{size // _WORD + 1};"
               :: "l"(__cvta_generic_to_global(at)), {inputs}, "l"(policy) : "memory");
}}
"""


def policy_store(store: Any, policy: str) -> Any:
    """Give a plain store of 4, 8 or 16 neighbouring bytes to global memory a policy.

    It calls a helper whose source TVM's CUDA code generation takes over.
    """
    value, index = store.value, store.indices[-1]
    size = _width(store)
    name = f"{PREFIX}{policy}_{size}"
    first = index.base if isinstance(index, Ramp) else index
    element = tirx.BufferLoad(store.buffer, [*store.indices[:-1], first])
    source = _source(name, policy, size)
    return tirx.Evaluate(T.cuda.func_call(name, T.address_of(element), value, source_code=source))


def _width(store: Any) -> int:
    """Bytes that a store moves; 0 for elements that are not whole bytes."""
    dtype = store.value.ty.dtype
    bits = int(dtype.bits)
    return 0 if bits % 8 or str(dtype).startswith("bool") else int(dtype.lanes) * bits // 8


def can_have_policy(store: Any) -> bool:
    """Whether there is a store with a policy for so many bytes, and the elements lie together."""
    index = store.indices[-1]
    lanes = int(index.ty.dtype.lanes)
    stride = index.stride if isinstance(index, Ramp) else None
    together = lanes == 1 or (isinstance(stride, tirx.IntImm) and int(stride) == 1)
    return together and _width(store) in _FORMS
