"""Datasets that are made of other datasets."""

from __future__ import annotations
