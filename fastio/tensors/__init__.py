"""Arrays as tensors, and trees of tensors."""

from __future__ import annotations
