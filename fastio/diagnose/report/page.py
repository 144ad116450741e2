"""A report as one HTML page that needs nothing else: no network, no fonts, no scripts."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fastio.diagnose import words
from fastio.diagnose.report.report import Report
from fastio.runtime.files import write_output


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Writes a report as a page, atomically.

    Args:
        report: what is shown.
        path: file to write; one that is there is replaced.

    Raises:
        OSError: it cannot be written.
    """
    write_output(path, page(report).encode())


def page(report: Report) -> str:
    """Returns a report as HTML."""
    return _templates().get_template("page.html").render(report=report)


@cache
def _templates() -> Environment:
    """Returns the templates beside this file. Every text that they show is cleaned and escaped."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_cleaned,
        # An undefined name in a template raises an error instead of leaving a gap in the report.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    found.globals["words"] = words
    found.filters["coded"] = coded
    return found


def _cleaned(value: Any) -> Any:
    return words.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def coded(text: str) -> Markup:
    """Returns text as HTML; parts between backticks become <code> elements."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(words.clean(text))))
