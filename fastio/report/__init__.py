"""What people look at: tables in the terminal, plots, the page of a bench, sheets of pictures.

    Measured, findings -> summary, epochs, tables -> terminal
                                                  -> figures (plots, timeline, curve) -> page

The terminal and the page show the same texts. matplotlib, the extra fastio[bench], draws on the
canvas and nowhere else; without it the page has its tables.
"""

from __future__ import annotations

from fastio.report.contact_sheet import TILE, contact_sheet
from fastio.report.page import write_ladder, write_page
from fastio.report.rungs import Rung
from fastio.report.summary import machine_line
from fastio.report.terminal import print_ladder, print_report

__all__ = [
    "TILE",
    "Rung",
    "contact_sheet",
    "machine_line",
    "print_ladder",
    "print_report",
    "write_ladder",
    "write_page",
]
