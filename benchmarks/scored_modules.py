"""Attention whose scores are more than products, as transformers writes it, and by torch's flex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Kind of scores, batch, rows, heads of Q and of K, columns, and how many keys a row sees at most.
Case = tuple[str, int, int, int, int, int, int]
_CAP = 50.0


def module(case: Case, dtype: Any) -> Any:
    """Attention of Q, K and V as they leave a model's products: batch, rows, heads, columns."""
    import torch

    kind, _, rows, heads, kept, columns, reach = case

    class Attention(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            # What each head has: sinks, slopes, or factors of cosines.
            by_head = torch.linspace(1, 4, heads) * (1 if kind == "sink" else 8)
            self.register_buffer("by_head", by_head.to(dtype))
            self.register_buffer("slopes", 2.0 ** (-8 / heads * torch.arange(1, heads + 1)))
            bias = 16 * torch.randn(heads, rows, rows).sigmoid() if kind == "cosine" else None
            self.register_buffer("bias", None if bias is None else bias.to(dtype))

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            k, v = (_repeated(one, heads // kept) for one in (k, v))
            wide = torch.float64 if q.dtype == torch.float64 else torch.float32
            scores = torch.matmul(q, k.transpose(2, 3))
            if kind == "cosine":
                scores = scores * self.by_head[:, None, None] + self.bias[None]
            else:
                scores = scores * columns**-0.5
            if kind == "cap":
                scores = torch.tanh(scores / _CAP) * _CAP
            places = torch.arange(rows, device=q.device)
            if kind == "slopes":
                scores = scores + self.slopes[:, None, None] * (places + 1 - rows)
            if kind != "cosine":
                behind = places[:, None] - places[None]
                seen = (behind >= 0) & (behind < reach)
                lowest = torch.finfo(scores.dtype).min
                zero = torch.zeros((), dtype=scores.dtype, device=q.device)
                scores = scores + torch.where(seen, zero, lowest)
            if kind == "sink":
                sinks = self.by_head.reshape(1, -1, 1, 1).expand(len(q), -1, rows, -1)
                scores = torch.cat([scores, sinks], -1)
                scores = scores - scores.max(-1, keepdim=True).values
                weights = scores.softmax(-1)[..., :-1]
            else:
                weights = scores.softmax(-1, dtype=wide)
            return torch.matmul(weights.to(q.dtype), v)

    return Attention().eval()


def _repeated(one: Any, times: int) -> Any:
    b, heads, rows, columns = one.shape
    wide = one[:, :, None].expand(b, heads, times, rows, columns)
    return one if times == 1 else wide.reshape(b, heads * times, rows, columns)


def given(case: Case, dtype: Any, device: str) -> list[Any]:
    """Random Q, K and V: rows of length 1 for cosines, and scores that a cap bends."""
    import torch

    kind, batch, rows, heads, kept, columns, _ = case
    q, k, v = (torch.randn(batch, rows, h, columns, device=device) for h in (heads, kept, kept))
    if kind == "cosine":
        q, k = (torch.nn.functional.normalize(one, dim=-1) for one in (q, k))
    return [one.to(dtype) for one in (8 * q if kind == "cap" else q, k, v)]


def flex(case: Case, net: Any) -> Callable[..., Any]:
    """The same attention by torch's ``flex_attention``."""
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    kind, _, rows, _, _, columns, reach = case
    by_head, slopes, bias = net.by_head, net.slopes, net.bias

    def score(s: Any, _b: Any, h: Any, row: Any, key: Any) -> Any:
        if kind == "cap":
            return (s / _CAP).tanh() * _CAP
        if kind == "slopes":
            return s + slopes[h] * (key + 1 - rows)
        return s if kind == "sink" else s * by_head[h] + bias[h, row, key]

    def seen(_b: Any, _h: Any, row: Any, key: Any) -> Any:
        return (row >= key) & (row - key < reach)

    wide = kind == "cosine"
    device = str(by_head.device)
    mask = None if wide else create_block_mask(seen, None, None, rows, rows, device=device)
    more = {"score_mod": None if kind == "sink" else score, "block_mask": mask, "enable_gqa": True}
    more["scale"] = 1.0 if wide else columns**-0.5

    def run(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        if kind != "sink":
            return flex_attention(q, k, v, **more)
        out, aux = flex_attention(q, k, v, **more, return_aux=AuxRequest(lse=True))
        share = (aux.lse - by_head[:, None].float()).sigmoid()
        return out * share[..., None].to(out.dtype)

    return run
