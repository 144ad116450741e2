"""Paper to draw plots on, in pixels: matplotlib draws, whoever calls has laid out.

matplotlib comes with the extra fastio[bench]; it is imported here alone, and only when something
is drawn. Neither pyplot nor a setting outside this drawing is touched.
"""

from __future__ import annotations

import html
import io
import math
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from fastio.diagnose.report import palette, words
from fastio.files import write_output

SIZE, SMALL = 13.0, 11.5  # pixels, of text
_TITLE, _MARGIN = 15.0, 20.0  # pixels, of files
WIDE, NARROW = 760, 350  # pixels, of a plot in a page and on a phone
ROOMY = 560  # from this width on, there is room for names beside what they name
# Of what matplotlib writes: what is the same for every figure or refers to other sites.
_BLOCKS = re.compile(r"<metadata>.*?</metadata>|<defs>.*?</defs>|<!--.*?-->", re.DOTALL)
# Nothing refers to the ids, as nothing is clipped and no markers are drawn.
_ATTRIBUTES = re.compile(r' id="[^"]*"|font-family: [^;"]*;? ?')
_FONT = re.compile(r'font: (?:(\w+) )?([\d.]+px) [^;"]*')  # as older ones write it


def has_matplotlib() -> bool:
    """Whether plots can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


class Canvas:
    """A rectangle to draw on; x goes right, y goes down, colours are names of the palette.

    Args:
        width, height: in pixels.
        label: what is shown, for those who do not see it.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(self, width: float, height: float, label: str) -> None:
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.label = words.clean(label)
        self._figure = Figure(figsize=(width / 72, height / 72), dpi=72, frameon=False)
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)

    def box(
        self, x: float, y: float, width: float, height: float, colour: str, *, hollow: bool = False
    ) -> None:
        """A filled rectangle, or the dashed outline of one."""
        from matplotlib.patches import Rectangle

        shade = palette.light(colour)
        inset = 0.75 if hollow else 0.0  # half the outline
        corner = (x + inset, y + inset)
        drawn = Rectangle(corner, max(0.0, width - 2 * inset), max(0.0, height - 2 * inset))
        drawn.set(facecolor=shade, edgecolor="none", linewidth=2 * inset, clip_on=False)
        if hollow:
            drawn.set(facecolor="none", edgecolor=shade, linestyle=(0, (3, 2)))
        self._axes.add_patch(drawn)

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        *,
        width: float = 1.0,
        dashes: tuple[float, float] | None = None,
    ) -> None:
        """A line through points."""
        xs, ys = zip(*points, strict=True)
        (drawn,) = self._axes.plot(
            xs, ys, color=palette.light(colour), linewidth=width, clip_on=False
        )
        if dashes:
            drawn.set_linestyle((0, dashes))

    def dot(self, x: float, y: float, colour: str, *, width: float = 9.0) -> None:
        """A round dot."""
        # A marker would be a reference to a definition; the round ends of a short line are not.
        self._axes.plot(
            (x, x + 0.01),
            (y, y),
            color=palette.light(colour),
            linewidth=width,
            solid_capstyle="round",
            clip_on=False,
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
        """One line of text; `y` is the middle of its height."""
        self._axes.text(
            x,
            y + size * 0.36,  # from the middle of small letters to the line they stand on
            words.clean(text),
            color=palette.light(colour),
            fontsize=size,
            fontweight="bold" if bold else "normal",
            ha=align,
            va="baseline",
            parse_math=False,
            clip_on=False,
        )

    def svg(self) -> str:
        """An element for an HTML page, whose CSS variables colour it (see `palette`)."""
        label = html.escape(self.label)
        box = f"0 0 {self.width:g} {self.height:g}"
        return f'<svg viewBox="{box}" role="img" aria-label="{label}">{self._body()}</svg>'

    def write(self, path: str | Path) -> None:
        """A file of its own, with the label above the drawing.

        Args:
            path: its suffix tells its format: .svg on light and dark paper, .png and others on
                light paper.

        Raises:
            OSError: it cannot be written.
            ValueError: matplotlib writes no such files.
        """
        self.text(0, -20, self.label, size=_TITLE, bold=True)
        title = self._axes.texts[-1]
        try:
            if Path(path).suffix.lower() == ".svg":
                write_output(path, self._file().encode())
            else:
                self._save(path)
        finally:
            title.remove()

    def _save(self, path: str | Path) -> None:
        """The drawing in a format of matplotlib's."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of glyphs that its own font lacks
            drawn = io.BytesIO()
            self._figure.savefig(
                drawn,
                format=Path(path).suffix[1:].lower() or None,
                dpi=144,
                facecolor=palette.light("paper"),
                bbox_inches="tight",
                pad_inches=_MARGIN / 72,
            )
        write_output(path, drawn.getvalue())

    def _file(self) -> str:
        """An SVG that knows its colours and fonts."""
        left, top = -_MARGIN, -_MARGIN - 34
        width, height = self.width + 2 * _MARGIN, self.height + 2 * _MARGIN + 34
        box = f'width="{width:g}" height="{height:g}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} '
            f'viewBox="{left:g} {top:g} {width:g} {height:g}">'
            f"<title>{html.escape(self.label)}</title>"
            f"<style>{palette.css()}text{{font-family:{palette.FONTS}}}</style>"
            f'<rect x="{left:g}" y="{top:g}" {box} style="fill:var(--paper)"/>'
            f"{self._body()}</svg>\n"
        )

    def _body(self) -> str:
        """What is drawn, without what matplotlib writes around it."""
        import matplotlib

        buffer = io.StringIO()
        # Texts stay texts, in the reader's font.
        settings = matplotlib.rc_context({"svg.fonttype": "none", "path.simplify": False})
        with settings, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of glyphs that its own font lacks
            self._figure.savefig(buffer, format="svg")
        text = buffer.getvalue()
        text = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
        text = re.sub(r"\s+", " ", _BLOCKS.sub("", text)).replace("> <", "><")
        return re.sub("<[^>]*>", lambda tag: _tag(tag[0]), text)


def _tag(tag: str) -> str:
    """A tag in the reader's fonts and colours."""
    tag = _FONT.sub(lambda font: f"font-weight: {font[1] or 400}; font-size: {font[2]}", tag)
    return palette.themed(_ATTRIBUTES.sub("", tag))


def width_of(text: str, size: float = SIZE, *, bold: bool = False) -> float:
    """Pixels that a text takes at most, or nearly so, in the fonts of most systems."""
    return size * sum(map(_em, text)) * (1.12 if bold else 1.0)


def _em(letter: str) -> float:
    """A letter's width in sizes of the font, as wide fonts have it."""
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if letter in "mwMW%@":
        return 0.96
    return 0.7 if letter.isupper() else 0.36 if letter in " ijlt.,:;|!'()[]·" else 0.63


def fitting(texts: Sequence[str], width: float, size: float = SIZE) -> str:
    """The first of the texts that is not wider, "" where none is."""
    return next((text for text in texts if width_of(text, size) <= width), "")


def shortened(text: str, width: float, size: float = SIZE, *, bold: bool = False) -> str:
    """A text cut off at its end until it is not wider."""
    text = words.clean(text)
    if width_of(text, size, bold=bold) <= width:
        return text
    while text and width_of(text + "…", size, bold=bold) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def ticks(highest: float, about: int) -> Iterator[float]:
    """Round numbers from zero up to a highest one."""
    raw = highest / about
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    for number in range(int(highest / step + 1e-9) + 1):
        yield number * step
