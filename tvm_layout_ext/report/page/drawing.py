"""Small parts of charts as SVG: scales with round ticks, text, frames, marks that tell details."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

__all__ = ["GREY", "INK", "Frame", "Scale", "mark", "number", "sheet", "text"]

INK, GREY, _RULE = "#1b1f24", "#5f6772", "#e3e6ea"
_FONT = 13


@dataclass(frozen=True)
class Scale:
    """Values to pixels, along one axis.

    Attributes
    ----------
    low, high : float
        The range shown; for a logarithmic scale above 0.
    start, end : float
        Pixels of ``low`` and ``high``.
    logarithmic : bool
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    @classmethod
    def around(
        cls, values: list[float], start: float, end: float, *, logarithmic: bool = False
    ) -> Scale:
        """A scale that holds some values with a margin."""
        low, high = min(values), max(values)
        if logarithmic:
            return cls(low / 1.6, high * 1.6, start, end, True)
        margin = 0.08 * (high - low) or 0.5 * abs(high) or 1.0
        return cls(max(0.0, low - margin) if low >= 0 else low - margin, high + margin, start, end)

    def at(self, value: float) -> float:
        """The pixel of a value.

        Examples
        --------
        >>> Scale(1.0, 100.0, 0.0, 200.0, logarithmic=True).at(10.0)
        100.0
        """
        if self.logarithmic:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values within the range: powers of ten, or multiples of 1, 2 or 5."""
        if self.logarithmic and self.high / self.low > 30:
            first = math.ceil(math.log10(self.low))
            last = math.floor(math.log10(self.high))
            every = max(1, math.ceil((last - first + 1) / (count + 1)))
            return [10.0**power for power in range(first, last + 1, every)]
        step = _round_up((self.high - self.low) / count)
        lowest = math.ceil(self.low / step)
        return [i * step for i in range(lowest, math.floor(self.high / step) + 1)]


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(f * power for f in (1.0, 2.0, 5.0, 10.0) if f * power >= value * 0.999)


def number(value: float) -> str:
    """A number for people, of about four digits: ``1,234``, ``12.35``, ``0.0123``."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 12)}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def text(x: float, y: float, words: str, *, fill: str = INK, anchor: str = "start") -> str:
    """One line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def mark(shape: str, detail: str, name: str = "") -> str:
    """A shape that tells a detail where one points; ``name`` is its class."""
    kind = f' class="{escape(name)}"' if name else ""
    return f"<g{kind}><title>{escape(detail)}</title>{shape}</g>"


def sheet(width: float, height: float, title: str, parts: list[str]) -> str:
    """A whole SVG, which shrinks with the page."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}" '
            f'font-family="system-ui, sans-serif" font-size="{_FONT}">',
            *parts,
            "</svg>",
        ]
    )


@dataclass(frozen=True)
class Frame:
    """Two axes with ticks and names.

    Attributes
    ----------
    x, y : Scale
    x_name, y_name : str
    """

    x: Scale
    y: Scale
    x_name: str
    y_name: str

    def draw(self) -> list[str]:
        """Rules, ticks and names, to lie under the data."""
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts = [text(left, top - 12, self.y_name, fill=GREY)]
        parts.append(text((left + right) / 2, bottom + 36, self.x_name, fill=GREY, anchor="middle"))
        for value in self.y.ticks():
            at = self.y.at(value)
            parts.append(_rule(left, at, right, at))
            parts.append(text(left - 6, at + 4, number(value), fill=GREY, anchor="end"))
        for value in self.x.ticks():
            at = self.x.at(value)
            parts.append(_rule(at, bottom, at, bottom + 4))
            parts.append(text(at, bottom + 18, number(value), fill=GREY, anchor="middle"))
        return parts


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_RULE}"/>'
