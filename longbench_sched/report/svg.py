"""SVG, as much of it as a picture of this project needs: boxes, lines and words, escaped, with coordinates that are short."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

FONT = "font-family='system-ui, sans-serif'"


def number(value: float) -> str:
    """A coordinate: two decimals are finer than any screen."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def box(x: float, y: float, width: float, height: float, fill: str, title: str | None = None) -> str:
    """A filled rectangle; `title` is what a browser shows beside the pointer."""
    frame = f"<rect x='{number(x)}' y='{number(y)}' width='{number(width)}' height='{number(height)}' fill='{fill}'"
    return f"{frame}/>" if title is None else f"{frame}><title>{escape(title)}</title></rect>"


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    """A straight line."""
    ends = f"x1='{number(x1)}' y1='{number(y1)}' x2='{number(x2)}' y2='{number(y2)}'"
    return f"<line {ends} stroke='{colour}' stroke-width='{number(width)}'/>"


def path(points: Iterable[tuple[float, float]], colour: str, width: float = 1.5) -> str:
    """A line through points."""
    steps = " ".join(f"{'L' if place else 'M'}{number(x)} {number(y)}" for place, (x, y) in enumerate(points))
    return f"<path d='{steps}' fill='none' stroke='{colour}' stroke-width='{number(width)}'/>"


def text(x: float, y: float, words: str, *, size: float = 11, anchor: str = "start", colour: str = "#333") -> str:
    """A line of words; `anchor` is start, middle or end."""
    place = f"x='{number(x)}' y='{number(y)}' font-size='{number(size)}' text-anchor='{anchor}' fill='{colour}'"
    return f"<text {place}>{escape(words)}</text>"


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """A whole document on white ground; `title` is for those who cannot see it."""
    size = f"width='{number(width)}' height='{number(height)}' viewBox='0 0 {number(width)} {number(height)}'"
    # Crisp edges: thousands of boxes side by side must not fade into the ground between them.
    opening = f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' shape-rendering='crispEdges' {FONT}>"
    return "\n".join([opening, f"<title>{escape(title)}</title>", box(0, 0, width, height, "#fff"), *parts, "</svg>"]) + "\n"
