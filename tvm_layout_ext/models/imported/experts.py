"""Mixtures of experts of ``transformers``, by products whose sizes are known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAME, _FIELD = "tvm_layout_ext", "_experts_implementation"


@contextmanager
def experts_of_known_sizes(model: Any) -> Iterator[None]:
    """Let the experts of a model of ``transformers`` multiply as :func:`experts` does, meanwhile.

    Its own ways count the tokens of each expert, which a compiled shape cannot depend on.
    """
    config = model.config.get_text_config()
    before = getattr(config, _FIELD, None)
    if before is None:
        yield
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(_NAME, experts)
    setattr(config, _FIELD, _NAME)
    try:
        yield
    finally:
        setattr(config, _FIELD, before)


def experts(self: Any, hidden: Any, index: Any, weights: Any) -> Any:
    """What experts make of tokens: (tokens, size), given which of them, and their weights.

    Of fewer pairs than experts each reads the weights of its own; else all experts take all
    tokens, so that each weight is read once.
    """
    import torch
    from transformers.integrations.moe import batched_mm_experts_forward

    # What releases of transformers before 5.24 have no field for, they do not do.
    def does(what: str, unsaid: bool = False) -> bool:
        return bool(getattr(self, what, unsaid))

    # Of a dynamic number of tokens there may be many.
    count = index.numel()
    few = isinstance(count, int) and count < self.num_experts
    if few or does("_is_expert_parallel"):
        return batched_mm_experts_forward(self, hidden, index, weights)

    def linear(rows: Any, name: str) -> Any:
        matrix = getattr(self, name)
        found = rows @ (matrix if does("is_transposed") else matrix.transpose(1, 2))
        return found + getattr(self, f"{name}_bias")[:, None] if does("has_bias") else found

    rows = hidden[None].expand(self.num_experts, -1, -1)
    if does("has_gate", True):
        inner = self._apply_gate(linear(rows, "gate_up_proj"))
    else:
        inner = self.act_fn(linear(rows, "up_proj"))
    made = linear(inner, "down_proj")
    if does("has_post_expert_norm"):
        made = self.post_expert_norm(made)
    shares = _shares(index, weights, self.num_experts)
    # What an expert makes of tokens that are not its own may be no number.
    made = made.where(shares != 0, torch.zeros((), dtype=made.dtype, device=made.device))
    return (made * shares).sum(0).to(hidden.dtype)


def _shares(index: Any, weights: Any, count: int) -> Any:
    """The weight of each expert for each token, (experts, tokens, 1)."""
    import torch

    chosen = index[None] == torch.arange(count, device=index.device)[:, None, None]
    return (chosen * weights[None]).sum(2, keepdim=True)
