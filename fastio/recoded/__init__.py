"""JPEG images that are recoded to block records in a cache while epochs run, and read from there.

- `piece`: the file of a block of rows: a directory and the records of its images
- `originals`: what identifies the bytes of an image that was recoded
- `table`: which rows are recoded, and where their records lie
- `recoder`: the thread that recodes blocks, and finds what other processes have recoded
- `images`: the reads of an image field: records of recoded images, and files of the others
"""

from __future__ import annotations

from fastio.recoded.images import RecodedImages

__all__ = ["RecodedImages"]
