"""Vega-Lite specifications -> SVG or PNG, by vl-convert: it holds the whole of Vega and needs neither browser nor network.

The library is in the extra `[plots]` and is imported when the first picture is asked for. Ink is a colour of its own so that a
picture inside a page can take the page's (`currentColor`) and follow its dark mode without a script.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

from longbench_sched.errors import UsageError

Spec = Mapping[str, Any]  # a Vega-Lite specification: plain data, as its JSON

ON_PAGE = ("currentColor", None)
ON_PAPER = ("#24292f", "#ffffff")
PNG_SCALE = 2.0
MISSING = "charts need the extra [plots] (vl-convert-python). In a checkout of longbench-sched: pip install '.[plots]'."

# One chart after the other stands in a page: what identifies a clipping path must not be the same in two of them.
_IDS = re.compile(r'(\bid="|url\(#|href="#)')


def is_available() -> bool:
    """Whether charts can be drawn: without loading the library, which takes a second."""
    return importlib.util.find_spec("vl_convert") is not None


def to_svg(spec: Spec, *, on_page: str | None = None) -> str:
    """The picture as SVG; `on_page` names it within a page, whose ink it then takes. Raises UsageError without the extra."""
    ink, paper = ON_PAPER if on_page is None else ON_PAGE
    svg: str = _library().vegalite_to_svg(_inked(spec, ink, paper))
    return svg if on_page is None else _IDS.sub(rf"\g<1>{on_page}-", svg)


def to_png(spec: Spec) -> bytes:
    """The picture as PNG, for places that take no SVG. Raises UsageError without the extra."""
    png: bytes = _library().vegalite_to_png(_inked(spec, *ON_PAPER), scale=PNG_SCALE)
    return png


def _library() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise UsageError(MISSING) from None
    return vl_convert


def _inked(spec: Spec, ink: str, paper: str | None) -> dict[str, Any]:
    """The specification with our looks: no frames, thin grids, one colour of ink."""
    font = "Arial, Helvetica, sans-serif"  # of the widths that the library lays out by
    return {
        **spec,
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "background": paper,
        "config": {
            "aria": False,
            "font": font,
            "view": {"stroke": None},
            "axis": {
                "labelColor": ink,
                "titleColor": ink,
                "tickColor": ink,
                "domainColor": ink,
                "gridColor": ink,
                "gridOpacity": 0.15,
                "tickOpacity": 0.4,
                "domainOpacity": 0.4,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "titlePadding": 8,
            },
            "axisX": {"labelOverlap": "greedy", "labelSeparation": 6},  # on a logarithmic axis figures ran into each other
            "legend": {
                "labelColor": ink,
                "titleColor": ink,
                "labelFontSize": 12,
                "labelLimit": 300,
                "columnPadding": 24,
                "orient": "bottom",
            },
            "title": {
                "color": ink,
                "subtitleColor": ink,
                "anchor": "start",
                "fontSize": 14,
                "subtitleFontSize": 12,
                "offset": 8,
            },
            "text": {"color": ink},
            "rule": {"color": ink},
        },
    }
