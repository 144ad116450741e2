"""Images that a list names by URLs: finding their URLs and versions, and reading them ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastio.errors import SchemaError, SourceChanged, SourceNotFound
from fastio.pack.items import Item, unreadable
from fastio.runtime.ahead import in_order
from fastio.shown import without_secrets
from fastio.sources.stored_files import StoredFiles, of_urls
from fastio.store import OBJECTS_AT_ONCE, is_remote, join, split

_AHEAD_BYTES = 64 << 20  # of objects that are read at once


@dataclass
class UrlColumn:
    """The URLs of a column of a list, whose values are either all URLs or all paths.

    Attributes:
        urls: The URLs, one for each sample; empty if the values are paths.
        root, where: The bucket or host of the URLs, and the line of the first value.
    """

    urls: list[str] = field(default_factory=list)
    root: str = ""
    where: str = ""

    def add(self, value: Any, where: str) -> None:
        """Adds the value of the next sample, from a line of the list.

        Raises:
            SchemaError: It is a path and the others are URLs, or is in another bucket.
        """
        remote = isinstance(value, str) and is_remote(value)
        first = not self.where
        if first:
            self.where = where
        elif remote != bool(self.urls):
            kinds = ("a URL", "a path") if remote else ("a path", "a URL")
            raise SchemaError(
                f"{where}: {_shown(value)} is {kinds[0]}, but {self.where} has {kinds[1]}. Make "
                "one list of the URLs and one of the paths"
            )
        if not remote:
            return
        root = split(value)[0]
        if first:
            self.root = root
        elif root != self.root:
            raise SchemaError(
                f"{where}: {_shown(value)} is in {without_secrets(root)}, but {self.where} is in "
                f"{without_secrets(self.root)}: all URLs of a list must be in one bucket or on one "
                "host. Make a list for each, pack the first, and append the others (--append)"
            )
        self.urls.append(value)


def _shown(value: Any) -> str:
    return repr(without_secrets(value) if isinstance(value, str) else value)


class ListedObjects:
    """The objects of some columns of a list.

    Args:
        path: The list.
        columns: The URLs of each column, one for each sample.
        storage_options: Options of their file system.

    Raises:
        SourceNotFound, StoreError: The store cannot be asked for their versions. Single objects
            that do not exist are errors of their samples.
    """

    def __init__(
        self,
        path: str,
        columns: Mapping[str, list[str]],
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        self._path = path
        self._files = {
            column: of_urls(urls, storage_options, may_lack=True)
            for column, urls in columns.items()
        }
        sizes = [int(files.objects.sizes.clip(0).mean()) for files in self._files.values()]
        self._at_once = max(1, min(OBJECTS_AT_ONCE, _AHEAD_BYTES // max(1, sum(sizes))))

    def name(self, column: str, row: int) -> str:
        """Returns the URL of the object of a sample."""
        files = self._files[column]
        return without_secrets(join(files.store.url, files.objects.names[row]))

    def filled(self, items: Iterable[Item], columns: Mapping[int, str]) -> Iterator[Item]:
        """Yields samples with the bytes of their objects, which are read several at a time.

        Args:
            items: The samples, in which the values of images are missing.
            columns: The columns of the missing values, by place in the sample.
        """
        fill = partial(self._filled, columns=columns)
        return in_order(fill, items, self._at_once, ahead=2 * self._at_once)

    def named(self, item: Item, columns: Mapping[int, str]) -> Item:
        """Returns a sample without the values of some columns, with its whole key.

        Args:
            item: The sample, in which these values are missing.
            columns: The columns, by place in the sample.
        """
        if item.error is not None:
            return item
        stamps = (self._files[column].objects.stamp(item.position) for column in columns.values())
        return item._replace(key=" ".join([item.key, *(stamp.key for stamp in stamps)]))

    def _filled(self, item: Item, columns: Mapping[int, str]) -> Item:
        if item.error is not None:
            return item
        values, row = list(item.values), item.position
        # The key is the same for a bad sample, so that a resumed pack recognises it.
        key = self.named(item, columns).key
        for place, column in columns.items():
            files = self._files[column]
            try:
                values[place] = _read(files, row, self.name(column, row))
            except (SourceNotFound, SourceChanged) as error:
                return unreadable(self._path, row, error, item.name, key)
        return item._replace(values=values, key=key)


def _read(files: StoredFiles, row: int, url: str) -> bytes:
    if files.objects.sizes[row] < 0:
        raise SourceNotFound(f"{url}: there is no such object")
    return files.read(row, staged=False)
