"""The report: what a bench, a ladder or a doctor found, in the terminal and as a page.

    facts, Measured, findings -> tables, plots -> Report -> terminal, page

`Report` is the one description of what is shown. Plots are SVGs that the page contains.
"""

from __future__ import annotations

# isort: off
from fastio.diagnose.report.page import write_page as write_page
from fastio.diagnose.report.report import (
    Report as Report,
    bench_report as bench_report,
    doctor_report as doctor_report,
    ladder_report as ladder_report,
    machine_line as machine_line,
)
from fastio.diagnose.report.terminal import print_report as print_report
