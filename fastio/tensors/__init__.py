"""Arrays as tensors, and trees of tensors.

- `trees`: trees of tensors, views of slots as tensors, Normalize and ToDtype
- `ragged`, `image_lists`: rows that differ in size, and lists of images
- `results`, `samples`: results of Python functions per sample, and the samples that they get
"""

from __future__ import annotations
