"""Colours of the plots and the page, on light and on dark paper.

Stages have the colours of Okabe and Ito (2008), which people of any colour vision tell apart, a
little darker on light paper where white text stands on them. Plots are drawn in CSS variables,
which fall back to the light colours, so that one drawing serves both papers.
"""

from __future__ import annotations

from typing import NamedTuple


class Colour(NamedTuple):
    """A colour of the palette, for light and for dark paper, as #rrggbb."""

    light: str
    dark: str


FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','Noto Sans',sans-serif"
COLOURS = {
    "paper": Colour("#ffffff", "#14171c"),
    "panel": Colour("#f6f7f9", "#1c2027"),
    "line": Colour("#dfe3e8", "#333a45"),
    "ink": Colour("#1b1f24", "#e9ecf0"),
    "soft": Colour("#5b6572", "#a3acb8"),
    "on_dark": Colour("#fefefe", "#ffffff"),
    "on_light": Colour("#101214", "#101214"),
    "good": Colour("#007f5d", "#35c79b"),
    "fetch": Colour("#0072b2", "#1878b5"),
    "decode": Colour("#56b4e9", "#56b4e9"),
    "transform": Colour("#cc79a7", "#d58ab4"),
    "copy": Colour("#e69f00", "#e69f00"),
    "compute": Colour("#007f5c", "#00845f"),
    "wait": Colour("#c94b00", "#c44e06"),
    "fastio": Colour("#0072b3", "#3a9fdb"),
    "other": Colour("#aab2bd", "#5d6775"),
}
# What text is readable on these; "on_dark" on the others.
_LIGHT_ONES = {"decode", "transform", "copy", "other"}


def variable(name: str) -> str:
    """Returns the CSS value of a colour."""
    return f"var(--{name},{COLOURS[name].light})"


def text_on(name: str) -> str:
    """Returns the name of the colour for text on a colour."""
    return "on_light" if name in _LIGHT_ONES else "on_dark"


def css() -> str:
    """Returns the CSS variables, with dark ones for readers whose system is in dark mode."""
    bright, dim = (
        "".join(f"--{name}:{getattr(colour, paper)};" for name, colour in COLOURS.items())
        for paper in ("light", "dark")
    )
    dark = f"@media (prefers-color-scheme:dark){{:root{{{dim}}}}}"
    return f":root{{color-scheme:light dark;{bright}}}@media screen{{{dark}}}"
