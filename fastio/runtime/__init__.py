"""The machine underneath: the native module, cores, memory, sizes, threads and files."""

from __future__ import annotations
