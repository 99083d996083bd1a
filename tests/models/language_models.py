"""Small language models of transformers."""

from __future__ import annotations

from typing import Any

import pytest

#: What models have beside, or not at all.
_OTHERS: dict[str, dict[str, Any]] = {
    "Falcon": {"head_dim": None},
    "Phi3": {"pad_token_id": 0},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "GPTNeo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
}


def language_model(kind: str = "Llama", dtype: str = "bfloat16", **sizes: Any) -> Any:
    """A small causal model of transformers, with random weights; a size of None is left out."""
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    torch.manual_seed(0)
    plain = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "head_dim": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "max_position_embeddings": 256,
        **_OTHERS.get(kind, {}),
        **sizes,
    }
    given = {name: one for name, one in plain.items() if one is not None}
    config = getattr(transformers, f"{kind}Config")(**given)
    made = getattr(transformers, f"{kind}ForCausalLM")(config)
    return made.to(getattr(torch, dtype)).eval()
