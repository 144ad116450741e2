"""Objects by URL: read, ranges of them, written, listed; with retries, a deadline, clear errors.

The only part of fastio that imports obstore or fsspec. obstore takes s3, gs, az and http(s) where
it is installed and the options are such that it understands them; fsspec takes everything else.

- `api`: `Store`, and `open_store`
- `urls`: which paths are URLs, joining, and what of them may be shown
- `retry`: attempts, backoff, deadlines
- `ranges`: which ranges are fetched together, and how many at once
- `options`: storage_options in the words of both libraries
- `obstore_backend`, `fsspec_backend`: one attempt each
"""

from __future__ import annotations

from fastio.store.api import Store, open_store
from fastio.store.urls import is_remote, join, shown, split

__all__ = ["Store", "is_remote", "join", "open_store", "shown", "split"]
