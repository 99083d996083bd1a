"""Attention in which a row sees no key behind its own, counted from the last one."""

from __future__ import annotations

from tvm_layout_ext.schedules.attention import operator

OPERATOR = operator("attention_causal", causal=True)
