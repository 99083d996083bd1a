"""``with_static_cache``: a language model of ``transformers`` as a module that keeps its cache."""

from __future__ import annotations

from typing import Any

from ...checks import whole_number
from ...errors import ScheduleError


def with_static_cache(model: Any, length: int, batch: int = 1) -> Any:
    """Give a causal language model of ``transformers`` a cache that ``compile_torch`` takes.

    Keys and values of ``length`` places are buffers of the module that is returned, of the model's
    own type. It is called as ``net(tokens, places)``: integers of (batch, n), and of (n,), where
    they stand in the sequence. It gives the last place's logits, (batch, 1, vocabulary).

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In ``eval()``. Its weights are shared, not copied.
    length : int
        Places of the cache: the most tokens of a prompt and what is generated. Later ones are not
        kept, so that logits are wrong then.
    batch : int, optional
        Sequences, which all have the same length.

    Raises
    ------
    ScheduleError
        If it is no such model, or its layers cache something else.

    Examples
    --------
    >>> net = tlx.with_static_cache(model, 2048)  # doctest: +SKIP
    >>> step = tlx.compile_torch(net, (token, place))  # doctest: +SKIP
    """
    try:
        import transformers
    except ImportError as error:
        raise ScheduleError(f"with_static_cache needs transformers: {error}") from error
    if not isinstance(model, transformers.PreTrainedModel):
        raise ScheduleError(
            f"with_static_cache takes a model of transformers, not {type(model).__name__}."
        )
    length = whole_number("length", length, 1, ScheduleError)
    batch = whole_number("batch", batch, 1, ScheduleError)
    return _made(model, length, batch)


def _made(model: Any, length: int, batch: int) -> Any:
    import torch
    from transformers.cache_utils import StaticCache, StaticLayer, StaticSlidingWindowLayer
    from transformers.integrations.executorch import get_head_shapes

    config = model.config.get_text_config()
    cache = StaticCache(config=config, max_cache_len=length)
    for at, layer in enumerate(cache.layers):
        # A window's own layer moves what it holds. The mask hides what is outside of a window.
        if isinstance(layer, StaticSlidingWindowLayer):
            cache.layers[at] = StaticLayer(length)
    if others := {type(one).__name__ for one in cache.layers} - {"StaticLayer"}:
        raise ScheduleError(
            f"Layers of {type(model).__name__} cache {', '.join(sorted(others))}; keys and values"
            " of all places alone are kept."
        )
    cache.early_initialization(batch, *get_head_shapes(config), model.dtype, model.device)

    class WithStaticCache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            for at, layer in enumerate(cache.layers):
                self.register_buffer(f"keys_{at}", layer.keys, persistent=False)
                self.register_buffer(f"values_{at}", layer.values, persistent=False)

        def forward(self, tokens: Any, places: Any) -> Any:
            # torch.export takes tensors for buffers only where they are read from the module.
            for at, layer in enumerate(cache.layers):
                layer.keys, layer.values = (
                    self.get_buffer(f"keys_{at}"),
                    self.get_buffer(f"values_{at}"),
                )
                layer.cumulative_length = places[0].clone()
            given = {"position_ids": places[None], "past_key_values": cache, "use_cache": True}
            return self.model(tokens, logits_to_keep=1, **given).logits

    return WithStaticCache().train(model.training)
