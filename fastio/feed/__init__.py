"""Batches for a loader: from the native engine, row groups, mixes and worker processes."""

from __future__ import annotations
