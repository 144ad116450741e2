"""Colours and paper of plots: callers have laid out what they draw, the result is an SVG.

A drawing refers to no other site, font or id. Stages have the colours of Okabe and Ito (2008),
which people of any colour vision tell apart, a little darker on light paper where white text stands
on them. Colours are CSS variables, which fall back to those for light paper, so that one drawing
serves light and dark paper.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from fastio.diagnose import words
from fastio.runtime.files import write_output


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
    "augment": Colour("#d6c51c", "#e0d23c"),
    "transform": Colour("#cc79a7", "#d58ab4"),
    "copy": Colour("#e69f00", "#e69f00"),
    "compute": Colour("#007f5c", "#00845f"),
    "wait": Colour("#c94b00", "#c44e06"),
    "fastio": Colour("#0072b3", "#3a9fdb"),
    "other": Colour("#aab2bd", "#5d6775"),
}
# What text is readable on these; "on_dark" on the others.
_LIGHT_ONES = {"decode", "augment", "transform", "copy", "other"}


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


SIZE, SMALL = 13.0, 11.5  # pixels, of text
_TITLE, _MARGIN = 15.0, 20.0  # pixels, of files
WIDE, NARROW = 760, 350  # pixels, of a plot in a page and on a phone
ROOMY = 560  # from this width on, there is room for names beside what they name
_ANCHORS = {"left": "start", "center": "middle", "right": "end"}


class Canvas:
    """A rectangle to draw on. x grows to the right, y grows down; colours are names of the palette.

    Args:
        width, height: in pixels.
        label: what is shown, for those who do not see it.
    """

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height = width, height
        self.label = words.clean(label)
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, colour: str, *, hollow: bool = False
    ) -> None:
        """Draws a filled rectangle, or a dashed outline."""
        shade = variable(colour)
        inset = 0.75 if hollow else 0.0  # half the outline
        style = f"fill:{shade}"
        if hollow:
            style = f"fill:none;stroke:{shade};stroke-width:1.5;stroke-dasharray:4.5 3"
        width, height = max(0.0, width - 2 * inset), max(0.0, height - 2 * inset)
        self._parts.append(
            f'<rect x="{_pixels(x + inset)}" y="{_pixels(y + inset)}" width="{_pixels(width)}" '
            f'height="{_pixels(height)}" style="{style}"/>'
        )

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        *,
        width: float = 1.0,
        dashes: tuple[float, float] | None = None,
    ) -> None:
        """Draws a line through points."""
        places = " ".join(f"{_pixels(x)},{_pixels(y)}" for x, y in points)
        style = f"fill:none;stroke:{variable(colour)};stroke-width:{width:g}"
        if dashes:
            style += f";stroke-dasharray:{dashes[0] * width:g} {dashes[1] * width:g}"
        self._parts.append(f'<polyline points="{places}" style="{style}"/>')

    def dot(self, x: float, y: float, colour: str, *, width: float = 9.0) -> None:
        """Draws a round dot."""
        self._parts.append(
            f'<circle cx="{_pixels(x)}" cy="{_pixels(y)}" r="{width / 2:g}" '
            f'style="fill:{variable(colour)}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = "ink",
        *,
        align: Literal["left", "center", "right"] = "left",
        size: float = SIZE,
        bold: bool = False,
    ) -> None:
        """Draws one line of text; `y` is the middle of its height."""
        base = y + size * 0.36  # from the middle of small letters to the line they stand on
        style = f"fill:{variable(colour)};font-size:{size:g}px"
        style += ";font-weight:700" if bold else ""
        style += "" if align == "left" else f";text-anchor:{_ANCHORS[align]}"
        self._parts.append(
            f'<text x="{_pixels(x)}" y="{_pixels(base)}" style="{style}">'
            f"{html.escape(words.clean(text))}</text>"
        )

    def svg(self) -> str:
        """Returns an <svg> element for an HTML page; the page's CSS variables colour it (see
        css).
        """
        label = html.escape(self.label)
        box = f"0 0 {self.width:g} {self.height:g}"
        return f'<svg viewBox="{box}" role="img" aria-label="{label}">{"".join(self._parts)}</svg>'

    def write(self, path: str | Path) -> None:
        """Writes an .svg file with the label above the drawing, for light and dark mode.

        Raises:
            OSError: it cannot be written.
            ValueError: the path does not end in .svg.
        """
        if Path(path).suffix.lower() != ".svg":
            raise ValueError(
                f"{path}: plots are written as .svg files; other types are not supported"
            )
        write_output(path, self._file().encode())

    def _file(self) -> str:
        """Returns an SVG document with its own colours and fonts."""
        left, top = -_MARGIN, -_MARGIN - 34
        width, height = self.width + 2 * _MARGIN, self.height + 2 * _MARGIN + 34
        box = f'width="{width:g}" height="{height:g}"'
        title = Canvas(self.width, self.height, "")
        title.text(0, -20, self.label, size=_TITLE, bold=True)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} '
            f'viewBox="{left:g} {top:g} {width:g} {height:g}">'
            f"<title>{html.escape(self.label)}</title>"
            f"<style>{css()}text{{font-family:{FONTS}}}</style>"
            f'<rect x="{left:g}" y="{top:g}" {box} style="fill:var(--paper)"/>'
            f"{''.join(title._parts + self._parts)}</svg>\n"
        )


def _pixels(value: float) -> str:
    """Returns a length as text with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def width_of(text: str, size: float = SIZE, *, bold: bool = False) -> float:
    """Returns an upper estimate of a text's width in pixels, for the fonts of most systems."""
    return size * sum(map(_em, text)) * (1.12 if bold else 1.0)


def _em(letter: str) -> float:
    """Returns an upper estimate of a letter's width, relative to the font size."""
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if letter in "mwMW%@":
        return 0.96
    return 0.7 if letter.isupper() else 0.36 if letter in " ijlt.,:;|!'()[]·" else 0.63


def fitting(texts: Sequence[str], width: float, size: float = SIZE) -> str:
    """Returns the first text that fits into the width; "" if none does."""
    return next((text for text in texts if width_of(text, size) <= width), "")


def shortened(text: str, width: float, size: float = SIZE, *, bold: bool = False) -> str:
    """Returns a text that is cut off at its end until it fits into the width."""
    text = words.clean(text)
    if width_of(text, size, bold=bold) <= width:
        return text
    while text and width_of(text + "…", size, bold=bold) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def ticks(highest: float, about: int) -> Iterator[float]:
    """Yields round numbers from zero to a highest one."""
    raw = highest / about
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    for number in range(int(highest / step + 1e-9) + 1):
        yield number * step
