"""What people look at: tables in the terminal, plots, the page of a bench, sheets of pictures.

    Measured, findings -> summary, epochs, tables -> terminal
                                                  -> figures (plots, timeline, curve) -> page

The terminal and the page show the same texts. Plots are SVGs that the page contains.
"""

from __future__ import annotations

from fastio.diagnose.report.page import write_ladder, write_page
from fastio.diagnose.report.rungs import Rung
from fastio.diagnose.report.summary import machine_line
from fastio.diagnose.report.terminal import print_ladder, print_report

__all__ = [
    "Rung",
    "machine_line",
    "print_ladder",
    "print_report",
    "write_ladder",
    "write_page",
]
