"""A page of HTML, parsed for tests: its elements and its texts."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A page's elements and texts.

    Attributes:
        elements: tag and attributes of each, in order.
        texts: of each element that directly holds some: tag, text.
    """

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data.strip()))

    @property
    def text(self) -> str:
        """All that is to be read, the style left out."""
        return "\n".join(text for tag, text in self.texts if tag != "style")

    @property
    def style(self) -> str:
        """The style sheet."""
        (found,) = [text for tag, text in self.texts if tag == "style"]
        return found

    def count(self, tag: str) -> int:
        """How many elements of a tag there are."""
        return sum(one == tag for one, _ in self.elements)

    def styles(self, *classes: str) -> list[dict[str, str]]:
        """The declarations in the style attribute of each element that has all these classes."""
        return [
            dict(part.strip().split(":") for part in (attributes["style"] or "").split(";"))
            for _, attributes in self.elements
            if {*classes} <= {*(attributes.get("class") or "").split()} and "style" in attributes
        ]

    def places(self, *classes: str, of: tuple[str, ...] = ("left", "width")) -> list[list[float]]:
        """The lengths of each of these elements, in percent."""
        return [[float(style[name].rstrip("%")) for name in of] for style in self.styles(*classes)]


def colours(style: str) -> dict[str, dict[str, str]]:
    """The colours of a style sheet as #rrggbb, by name, of light and of dark paper."""
    light, dark = (
        dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", rules)) for rules in style.split("@media")[:2]
    )
    return {"light": light, "dark": dark}
