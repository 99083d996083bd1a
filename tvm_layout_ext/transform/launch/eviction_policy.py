"""Let what a block stores stay in the L2 cache, or leave it early."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ... import decisions
from ...errors import ScheduleError, TargetError
from ...intrin.policy_stores import POLICIES, POLICY_STORES_SINCE, can_have_policy, policy_store
from ...ir.annotations import AUTO, EVICTION_POLICY
from ...ir.rebuild import block_with, without_annotations
from ...target import capability
from ..base import function_pass, mapped

#: Stands for the policy that measured best for full stores, on targets that have policies.
_BEST = "evict_last"
_NAME = "eviction_policy"


def _policy_of(block: Any, func: tirx.PrimFunc) -> str:
    """The policy of a block on a function's target; empty for that of plain stores."""
    asked, target = str(block.annotations[EVICTION_POLICY]), func.attrs.get("target", None)
    has_policies = capability(target) >= POLICY_STORES_SINCE
    if asked == "":
        return ""
    if asked == AUTO:
        return _BEST if has_policies else ""
    if asked not in POLICIES:
        raise ScheduleError(
            f"Block {block.name_hint} asks for eviction policy {asked!r}; there are "
            f"{', '.join(POLICIES)} and {AUTO}, and the empty string for none."
        )
    if not has_policies:
        major, minor = POLICY_STORES_SINCE
        gpu = "" if target is None else target.attrs.get("arch", "")
        raise TargetError(
            f"Block {block.name_hint} asks for eviction policy {asked}, and "
            f"{gpu or 'a target that is no GPU of NVIDIA'} has no stores with one; they "
            f"need compute capability {major}.{minor}."
        )
    return asked


@function_pass(asks=EVICTION_POLICY)
def AttachEvictionPolicy(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that writes the eviction policy of a block at its stores.

    Blocks end at TVM's LowerOpaqueBlock, the stores do not. ``auto`` becomes ``evict_last`` where
    the target has policies, and nothing where it has not::

        with T.sblock("B"):               T.attr(0, "layout_ext.eviction_policy", "evict_last")
            B[i, j] = ...                 B[i, j] = ...
    """

    def kept(block: Any) -> Any:
        if EVICTION_POLICY not in block.annotations:
            return block
        policy = _policy_of(block, func)
        plain = without_annotations(block, EVICTION_POLICY)
        return block_with(plain, body=_marked(block, policy)) if policy else plain

    return mapped(func, (SBlock, kept))


def _marked(block: Any, policy: str) -> Any:
    """Put an attribute around the stores of a block to global buffers."""
    found: list[str] = []

    def mark(store: Any) -> Any:
        if store.buffer.scope() != "global":
            return store
        found.append(str(store.buffer.name))
        return tirx.AttrStmt(0, EVICTION_POLICY, tvm.ir.StringImm(policy), store)

    body = tvm_ffi.structural_map(block.body, [(tirx.BufferStore, mark)], order="post")
    name = block.name_hint
    if not found:
        raise ScheduleError(
            f"Block {name} asks for an eviction policy and stores to no global buffer when the "
            "program is lowered; ask it of the block that does, after all others are made."
        )
    for buffer in sorted(set(found)):
        decisions.note(_NAME, str(name), f"stores to {buffer} are {policy} in L2")
    return body


@function_pass(asks=EVICTION_POLICY)
def LowerEvictionPolicy(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that makes stores to global memory with an eviction policy of their own.

    Runs last before host and device part, so that all other passes see plain stores. Leaves as they
    are: stores of 1 and 2 bytes, which ``st`` has no policies for, of elements that do not lie
    together, and of elements of less than a byte.
    """

    def lowered(attribute: Any) -> Any:
        if str(attribute.attr_key) != EVICTION_POLICY:
            return attribute
        policy = str(attribute.value.value)

        def store(one: Any) -> Any:
            return policy_store(one, policy) if can_have_policy(one) else one

        return tvm_ffi.structural_map(attribute.body, [(tirx.BufferStore, store)], order="post")

    return mapped(func, (tirx.AttrStmt, lowered))
