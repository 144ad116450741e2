"""Loaders in Lightning, Accelerate and the Trainer of transformers."""

from __future__ import annotations
