"""Images that are recoded to block records in a cache, while epochs run; read from there later.

- `piece`: the file of a block of rows, a directory and the records of its images
- `originals`: what identifies the bytes of an image that was recoded
- `table`: which rows are recoded, and where their records lie
- `recoder`: the thread that recodes blocks, and sees what other processes have recoded
- `images`: an image field's reads, from records where there are some
"""

from __future__ import annotations

from fastio.recoded.images import RecodedImages

__all__ = ["RecodedImages"]
