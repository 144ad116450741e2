"""The report: what a bench or a doctor found, in the terminal and as a page.

    facts, findings ---------------------------> terminal
    Measured, findings -> summary, epochs, tables -> terminal
                                                  -> plots -> page

The terminal and the page show the same texts. Plots are SVGs that the page contains.
"""

from __future__ import annotations

from fastio.diagnose.report.epochs import Rung
from fastio.diagnose.report.page import write_ladder, write_page
from fastio.diagnose.report.summary import fact_lines, machine_line
from fastio.diagnose.report.terminal import print_diagnosis, print_ladder, print_report

__all__ = [
    "Rung",
    "fact_lines",
    "machine_line",
    "print_diagnosis",
    "print_ladder",
    "print_report",
    "write_ladder",
    "write_page",
]
