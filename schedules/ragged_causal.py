"""Attention of sequences of any lengths in which a row sees no key behind its own."""

from __future__ import annotations

from tvm_layout_ext.schedules.ragged_attention import operator

OPERATOR = operator("ragged_causal", causal=True)
