"""Replaces a manifest in a store by a copy, so that the object has a new version.

A process that packs replaces only the version of the manifest that it has read. After the version
has changed, it cannot replace the manifest any more, even if it was suspended right before that.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fastio.errors import SourceChanged, SourceNotFound
from fastio.pack.destination import is_same
from fastio.packed import MANIFEST_NAME, Manifest, rewrite_manifest
from fastio.packed.stored import fetch_to
from fastio.runtime.files import mapped
from fastio.store import Stamp, Store


def stamp_of(store: Store, name: str) -> Stamp | None:
    """Returns the version of an object; None if there is no such object."""
    try:
        return store.stat(name)
    except SourceNotFound:
        return None


def renew_manifest(store: Store, base: Manifest) -> None:
    """Replaces the manifest of a dataset by a copy with other bytes.

    Args:
        store: The store of the dataset's folder.
        base: The manifest that was read.

    Raises:
        SourceChanged: Another process has replaced the manifest since it was read.
        SourceNotFound: The manifest was deleted.
        NoConditionalWrites: The store has no conditional writes.
    """
    stamp = store.stat(MANIFEST_NAME)
    with tempfile.TemporaryDirectory(prefix="fastio-") as folder:
        path = Path(folder) / "found"
        with open(path, "wb") as file:
            fetch_to(store, MANIFEST_NAME, file, stamp)
        found = Manifest(store.url, str(path))
        if not is_same(found, base):
            raise SourceChanged(f"{found.path} was replaced by another process")
        rewrite_manifest(found, folder)
        store.replace(MANIFEST_NAME, mapped(Path(folder) / MANIFEST_NAME), stamp)
