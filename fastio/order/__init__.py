"""Which rows come when, as arithmetic: orders, plans, sampling arguments and states."""

from __future__ import annotations
