"""Networks of PyTorch as their users write them, in a few lines each, for ``families.py``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Recommender(nn.Module):
    """DLRM: rows of 26 tables, products of all pairs of features, and two MLPs."""

    def __init__(self, tables: int = 26, width: int = 64, rows: int = 100000) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _mlp(13, 512, 256, width, last=nn.ReLU())
        features = tables + 1
        pairs = features * (features - 1) // 2
        self.top = _mlp(width + pairs, 512, 256, 1, last=nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(features, features, -1), persistent=False)

    def forward(self, dense: Any, chosen: Any) -> Any:
        """Probabilities, of numbers (N, 13) and rows of tables (N, 26)."""
        first = self.bottom(dense)
        rows = [table(chosen[:, i]) for i, table in enumerate(self.tables)]
        every = torch.stack([first, *rows], 1)
        products = torch.bmm(every, every.transpose(1, 2))
        return self.top(torch.cat([first, products[:, self.pairs[0], self.pairs[1]]], 1))


def _mlp(*sizes: int, last: nn.Module) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


class Conformer(nn.Module):
    """Two blocks of a recogniser of speech: attention and convolutions along time."""

    def __init__(self, width: int = 512, heads: int = 8, reach: int = 31, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ConformerBlock(width, heads, reach) for _ in range(blocks))

    def forward(self, x: Any) -> Any:
        """Steps (N, T, width)."""
        for block in self.blocks:
            x = block(x)
        return x


class ConformerBlock(nn.Module):
    """Half an MLP, attention, a gated convolution, and half an MLP."""

    def __init__(self, width: int, heads: int, reach: int) -> None:
        super().__init__()
        self.before, self.after = (
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.SiLU(),
                nn.Linear(4 * width, width),
            )
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.gates = nn.Conv1d(width, 2 * width, 1)
        self.windows = nn.Conv1d(width, width, reach, padding=reach // 2, groups=width)
        self.batch_norm, self.out = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: Any) -> Any:
        """Steps (N, T, width)."""
        x = x + 0.5 * self.before(x)
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.glu(self.gates(self.norms[1](x).transpose(1, 2)), 1)
        x = x + self.out(F.silu(self.batch_norm(self.windows(y)))).transpose(1, 2)
        return self.norms[2](x + 0.5 * self.after(x))


class Evoformer(nn.Module):
    """Pairs of residues as AlphaFold 2 has them: outer products, triangles and attention."""

    def __init__(self, seq: int = 64, pair: int = 128, heads: int = 4, head: int = 32) -> None:
        super().__init__()
        self.heads, self.head = heads, head
        self.seq_norm = nn.LayerNorm(seq)
        self.left, self.right = nn.Linear(seq, 32), nn.Linear(seq, 32)
        self.outer = nn.Linear(1024, pair)
        self.norms = nn.ModuleList(nn.LayerNorm(pair) for _ in range(3))
        self.edges, self.edge_gates = nn.Linear(pair, 2 * pair), nn.Linear(pair, 2 * pair)
        self.triangle, self.gate = nn.Linear(pair, pair), nn.Linear(pair, pair)
        self.qkv = nn.Linear(pair, 3 * heads * head, bias=False)
        self.bias = nn.Linear(pair, heads, bias=False)
        self.attention_gate = nn.Linear(pair, heads * head)
        self.out = nn.Linear(heads * head, pair)
        self.transition = nn.Sequential(
            nn.LayerNorm(pair), nn.Linear(pair, 4 * pair), nn.ReLU(), nn.Linear(4 * pair, pair)
        )

    def forward(self, seqs: Any, pairs: Any) -> Any:
        """Sequences (S, N, seq) and pairs (N, N, pair)."""
        y = self.seq_norm(seqs)
        outer = torch.einsum("sic,sjd->ijcd", self.left(y), self.right(y)) / seqs.shape[0]
        pairs = pairs + self.outer(outer.flatten(-2))
        y = self.norms[0](pairs)
        a, b = (self.edges(y) * torch.sigmoid(self.edge_gates(y))).chunk(2, -1)
        sums = self.norms[1](torch.einsum("ikc,jkc->ijc", a, b))
        pairs = pairs + torch.sigmoid(self.gate(y)) * self.triangle(sums)
        y, n = self.norms[2](pairs), pairs.shape[0]
        q, k, v = self.qkv(y).view(n, n, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
        bias = self.bias(y).permute(2, 0, 1)[None]
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        seen = seen.transpose(1, 2).reshape(n, n, -1)
        pairs = pairs + self.out(seen * torch.sigmoid(self.attention_gate(y)))
        return pairs + self.transition(pairs)


class Radiance(nn.Module):
    """NeRF: colours and densities of points, by eight layers."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        sizes = [63, *[width] * 7]
        sizes[5] += 63
        self.layers = nn.ModuleList(nn.Linear(one, width) for one in sizes)
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.view, self.colour = nn.Linear(width + 27, width // 2), nn.Linear(width // 2, 3)

    def forward(self, places: Any, views: Any) -> Any:
        """Points (N, 3), seen from (N, 3)."""
        near = _waves(places, 10)
        x = near
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([near, x], -1) if i == 5 else x))
        shown = F.relu(self.view(torch.cat([self.feature(x), _waves(views, 4)], -1)))
        return torch.cat([torch.sigmoid(self.colour(shown)), self.density(x)], -1)


def _waves(x: Any, count: int) -> Any:
    powers = (2.0 ** torch.arange(count, device=x.device)).to(x.dtype)
    turned = (x[..., None] * powers).flatten(-2)
    return torch.cat([x, torch.sin(turned), torch.cos(turned)], -1)


class Pyramid(nn.Module):
    """PSPNet: pools of 1, 2, 3 and 6 windows behind a ResNet-18."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        import torchvision

        layers = [*torchvision.models.resnet18(weights=None).children()]
        self.trunk = nn.Sequential(*layers[:-2])
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(one), *_block(512, 128, 1)) for one in (1, 2, 3, 6)
        )
        self.head = nn.Sequential(*_block(1024, 128, 3), nn.Conv2d(128, classes, 1))

    def forward(self, x: Any) -> Any:
        """Images (N, 3, H, W)."""
        kept = self.trunk(x)
        pooled = [self._resized(one(kept), kept) for one in self.pools]
        return self._resized(self.head(torch.cat([kept, *pooled], 1)), x)

    @staticmethod
    def _resized(x: Any, like: Any) -> Any:
        return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)


def _block(before: int, after: int, window: int) -> list[nn.Module]:
    layer = nn.Conv2d(before, after, window, padding=window // 2, bias=False)
    return [layer, nn.BatchNorm2d(after), nn.ReLU()]


#: What makes each network, and shapes of its inputs; whole numbers are below 100,000.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[tuple[int, ...], str], ...]]] = {
    "DLRM, 26 tables": (Recommender, (((2048, 13), "float16"), ((2048, 26), "int64"))),
    "Conformer, 2 blocks": (Conformer, (((8, 500, 512), "float16"),)),
    "Evoformer, a block": (
        Evoformer,
        (((128, 256, 64), "float16"), ((256, 256, 128), "float16")),
    ),
    "NeRF, 65536 points": (Radiance, (((65536, 3), "float16"), ((65536, 3), "float16"))),
    "PSPNet, 4x473x473": (Pyramid, (((4, 3, 473, 473), "float16"),)),
}
