"""What people look at: tables in the terminal, plots, one HTML page, sheets of pictures."""

from __future__ import annotations

from fastio.report.contact_sheet import TILE, contact_sheet

__all__ = ["TILE", "contact_sheet"]
