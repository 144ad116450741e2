"""Objects by URL: read, ranges of them, written, listed; with retries, a deadline, clear errors.

The only part of fastio that imports obstore or fsspec. obstore is used for s3, gs, az and http(s)
if it supports the options, and fsspec for everything else.

- `api`: `Store`, and `open_store`
- `backends`: what a library must do, and which of them serves a URL
- `listing`: all objects below a URL, in arrays, listed in parallel
- `index_pages`: folders that a web server lists as pages of links
- `urls`: which paths are URLs, joining, their secrets, and the proxy that the environment names
- `versions`: which version of an object an answer is of
- `retry`: attempts, backoff, deadlines; counts of what was requested or fetched again
- `ranges`: which ranges are fetched together, and how many at once
- `options`: translates storage_options between the names of obstore and fsspec
- `obstore_backend`, `fsspec_backend`, `hub_backend` (hf:// URLs): one attempt each
- `web`: requests of fsspec to web servers; `answers`: checks of what servers send
- `receive`: ranges over plain http, into memory of the caller's
"""

from __future__ import annotations

# isort: off
from fastio.store.api import (
    OBJECTS_AT_ONCE as OBJECTS_AT_ONCE,
    Store as Store,
    open_store as open_store,
)
from fastio.store.listing import (
    Objects as Objects,
    list_objects as list_objects,
    open_together as open_together,
)
from fastio.store.retry import (
    FETCHES as FETCHES,
    NoConditionalWrites as NoConditionalWrites,
    Transfers as Transfers,
)
from fastio.store.urls import (
    absolute_path as absolute_path,
    is_remote as is_remote,
    join as join,
    local_only as local_only,
    local_path as local_path,
    split as split,
)
from fastio.store.versions import Stamp as Stamp
