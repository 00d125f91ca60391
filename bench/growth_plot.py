"""Draws small curves over a logarithmic scale as one SVG file, one panel a curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WIDTH, _HEIGHT, _MARGIN = 230, 170, 34


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line."""

    title: str
    points: list[tuple[float, float]]


def draw(curves: list[Curve]) -> str:
    """Give the SVG of all panels side by side; each y-axis starts at 0."""
    panels = [_panel(curve, number * _WIDTH) for number, curve in enumerate(curves)]
    size = f'width="{_WIDTH * len(curves)}" height="{_HEIGHT}"'
    style = "text{font:11px sans-serif;fill:#333}path{fill:none;stroke:#1f6feb;stroke-width:2}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(panels)}</svg>\n'
    )


def _panel(curve: Curve, left: float) -> str:
    xs = [math.log10(x) for x, _ in curve.points]
    low, high = min(xs), max(xs)
    top = max(y for _, y in curve.points) * 1.25 or 1

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low) / ((high - low) or 1)
        return (
            left + _MARGIN + across * (_WIDTH - 2 * _MARGIN),
            _HEIGHT - _MARGIN - y / top * (_HEIGHT - 2 * _MARGIN),
        )

    spots = [place(x, y) for x, y in curve.points]
    parts = [f'<text x="{left + _MARGIN}" y="18">{curve.title}</text>']
    base = _HEIGHT - _MARGIN
    parts.append(
        f'<line x1="{left + _MARGIN}" y1="{base}" x2="{left + _WIDTH - _MARGIN}" y2="{base}" '
        'stroke="#999"/>'
    )
    parts.append('<path d="M' + " L".join(f"{x:.1f} {y:.1f}" for x, y in spots) + '"/>')
    for (x, y), (value, height) in zip(spots, curve.points, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f6feb"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y - 7:.1f}" text-anchor="middle">{_short(height)}</text>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{base + 15}" text-anchor="middle">{_short(value)}</text>'
        )
    return "".join(parts)


def _short(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"
