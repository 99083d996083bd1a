"""Attention to whose scores numbers are added, as positions of T5 or masks of any kind are."""

from __future__ import annotations

from tvm_layout_ext.schedules.attention import operator

OPERATOR = operator("attention_biased", biased=True)
