"""``with_static_cache``: a language model of ``transformers`` as a module that keeps its cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...checks import whole_number
from ...errors import ScheduleError
from .experts import experts_of_known_sizes


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
    if _is_said_not_to(model, transformers.PreTrainedModel):
        raise ScheduleError(
            f"transformers says that {type(model).__name__} takes no static cache; give"
            " compile_torch the model itself, for sequences of one length."
        )
    length = whole_number("length", length, 1, ScheduleError)
    batch = whole_number("batch", batch, 1, ScheduleError)
    return _made(model, length, batch)


def _is_said_not_to(model: Any, base: type) -> bool:
    """Whether a model's own class, not transformers' base, says that it is not compiled whole."""
    name = "_can_compile_fullgraph"
    own = [vars(one)[name] for one in type(model).__mro__ if name in vars(one) and one is not base]
    return bool(own) and not own[0]


def _made(model: Any, length: int, batch: int) -> Any:
    import torch

    cache = _cache(model, length)
    shapes = _head_shapes(model, batch)
    for layer, (heads, key_size, value_size) in zip(cache.layers, shapes, strict=True):
        kind = {"dtype": model.dtype, "device": model.device}
        keys, values = (
            torch.zeros((batch, heads, 0, size), **kind) for size in (key_size, value_size)
        )
        layer.lazy_initialization(keys, values)
    # Some models make a mask of as many places as there have been, which no compiled shape is.
    seen = torch.ones((batch, length), dtype=torch.int64, device=model.device)
    options = {"attention_mask": seen} if _counts_places(model, length, batch) else {}

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
            with experts_of_known_sizes(self.model):
                return self.model(tokens, logits_to_keep=1, **given, **options).logits

    return WithStaticCache().train(model.training)


def _cache(model: Any, length: int) -> Any:
    """A static cache of layers that keep all places; ScheduleError if a layer is another."""
    from transformers.cache_utils import StaticCache, StaticLayer, StaticSlidingWindowLayer

    cache = StaticCache(config=model.config.get_text_config(), max_cache_len=length)
    for at, layer in enumerate(cache.layers):
        # A window's own layer moves what it holds. The mask hides what is outside of a window.
        if isinstance(layer, StaticSlidingWindowLayer):
            cache.layers[at] = StaticLayer(length)
    if others := {type(one).__name__ for one in cache.layers} - {"StaticLayer"}:
        raise ScheduleError(
            f"Layers of {type(model).__name__} cache {', '.join(sorted(others))}; keys and values"
            " of all places alone are kept."
        )
    return cache


def _head_shapes(model: Any, batch: int) -> list[tuple[int, int, int]]:
    """Heads, and sizes of keys and of values, of each layer: as the model itself makes them.

    Its configuration does not say them of all, as of Falcon with one head of keys.
    """
    cache = _cache(model, 1)
    try:
        _without_data(model, cache, batch)
        return [(one.num_heads, one.k_head_dim, one.v_head_dim) for one in cache.layers]
    except Exception:  # What cannot run so may still be exported.
        config = model.config.get_text_config()
        of_queries = config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or of_queries
        size = getattr(config, "head_dim", None) or config.hidden_size // of_queries
        return [(heads, size, size)] * len(cache.layers)


def _counts_places(model: Any, length: int, batch: int) -> bool:
    """Whether a model reads how many places there have been, as for a mask of its own."""
    from torch._subclasses.fake_tensor import DataDependentOutputException

    cache = _cache(model, length)
    try:
        _without_data(model, cache, batch)
        _without_data(model, cache, batch)
    except DataDependentOutputException:
        return True
    except Exception:  # torch.export says what it refuses.
        return False
    return False


def _without_data(model: Any, cache: Any, batch: int) -> None:
    """Run a step of one token for its shapes alone."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    without = FakeTensorMode(allow_non_fake_inputs=True)
    with _left_alone(model), without, torch.no_grad(), experts_of_known_sizes(model):
        token = torch.zeros((batch, 1), dtype=torch.int64, device=model.device)
        for layer in cache.layers:
            layer.cumulative_length = torch.zeros((), dtype=torch.int64, device=model.device)
        given = {"position_ids": token[:1], "past_key_values": cache, "use_cache": True}
        model(token, logits_to_keep=1, **given)


@contextmanager
def _left_alone(model: Any) -> Iterator[None]:
    """Undo what a model keeps of a run, as frequencies of places that depend on its length."""
    kept = [
        (held, dict(held)) for module in model.modules() for held in (vars(module), module._buffers)
    ]
    try:
        yield
    finally:
        for held, before in kept:
            held.clear()
            held.update(before)
