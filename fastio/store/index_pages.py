"""Folders that a web server lists as HTML pages of links, as nginx, Apache and Python's server do.

Only pages whose title says that they list a folder are read, so that no website is crawled. Of
their links, only those to files and folders directly in the folder are followed: none to the folder
above, to other hosts, or with a query (which such servers use to sort a page).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

from fastio.store.retry import Permanent

_TITLE = re.compile(r"\s*(index of|directory listing)\b", re.IGNORECASE)
_DEEPEST = 32  # levels of folders; symbolic links may form a cycle
_MOST_BYTES = 256 << 20  # of a page

# Returns the bytes of the page of a folder, "" or one that ends with "/".
Read = Callable[[str], bytes]


def level(read: Read, folder: str) -> tuple[list[str], list[str]]:
    """Returns the folders and the files directly in a folder, by their whole names.

    Args:
        read: Reads the page of a folder.
        folder: The name of the folder, without a "/" at its end; "" for the root.

    Raises:
        Permanent: The page lists no folder, or the folder is nested too deeply.
    """
    if folder.count("/") >= _DEEPEST:
        raise Permanent(f"folders are nested {_DEEPEST} levels deep: links may form a cycle")
    begin = f"{folder}/" if folder else ""
    data = read(begin)
    page = _Page()
    if len(data) <= _MOST_BYTES:
        page.feed(data.decode("utf-8", "replace"))
    if not _TITLE.match(page.title):
        raise Permanent("the server does not list the folder")
    # A set, because a page may link to a file twice: by its name and by its icon.
    names = sorted({name for link in page.links if (name := _child(link))})
    folders = [begin + name[:-1] for name in names if name.endswith("/")]
    return folders, [begin + name for name in names if not name.endswith("/")]


def pages(read: Read, folder: str) -> Iterator[list[str]]:
    """Yields the files below a folder, those of each folder together; see `level`."""
    folders, files = level(read, folder)
    if files:
        yield files
    for inner in folders:
        yield from pages(read, inner)


class _Page(HTMLParser):
    """The title and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.links: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_title = tag == "title"
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data


def _child(link: str) -> str | None:
    """Returns the name of the file or folder ("name/") directly in a folder that a link leads to.

    None if it leads elsewhere. Links of these servers are relative to the folder.
    """
    base = "http://folder/here/"
    try:
        parts = urlsplit(urljoin(base, link))
    except ValueError:  # "//[x", for example
        return None
    name = parts.path.removeprefix("/here/")
    if parts.netloc != "folder" or not parts.path.startswith("/here/") or parts.query:
        return None
    decoded = unquote(name)
    plain = decoded.removesuffix("/")
    if not plain or "/" in plain or "\0" in plain or plain in (".", ".."):
        return None
    return decoded
