"""Functions on URLs: which paths are URLs, file URLs, joining and splitting, secrets, proxies."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

from fastio.errors import OptionError, SourceNotFound
from fastio.shown import without_secrets

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)(::|://)")
_LOCAL = frozenset({"file", "local"})
_FILE_URL = re.compile(r"(?is)(?:file|local):(?://([^/]*)(/.*)?|(/.*))\Z")
_Path = TypeVar("_Path")
_HTTP = frozenset({"http", "https"})
_SECRET_OPTION = re.compile(
    r"secret|token|password|passwd|credential|sas|signature|auth|cookie|connection_string|key",
    re.IGNORECASE,
)
_SHORTEST_SECRET = 4  # characters; redacting shorter ones would damage ordinary words


def scheme_of(url: str) -> str:
    """Returns the scheme of a URL in lower case, the first one of a chain; "" for a local path."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def is_remote(path: object) -> bool:
    """Returns whether a path is a URL that the store serves: any scheme but file and local.

    Of other objects, such as a Path or a dataset, none is.
    """
    if not isinstance(path, str):
        return False
    found = _SCHEME.match(path)
    return found is not None and (found[2] == "::" or found[1].lower() not in _LOCAL)


def local_path(path: _Path) -> _Path | str:
    """Returns the path of a local file or folder, if it is given as a file URL (RFC 8089).

    These are file:///folder/name, file://localhost/folder/name and file:/folder/name, also with
    fsspec's scheme "local". Percent-encoded characters are decoded; "?" and "#" are characters of
    names, so that patterns can be URLs, too. Anything else, such as a path, another URL or an open
    dataset, is returned as it is. Whatever takes a path from a user passes it to this function.

    Raises:
        SourceNotFound: The URL has the name of another host, or no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        return path
    found = _FILE_URL.match(os.fsdecode(path))
    if found is None:
        return path
    host, name = found[1] or "", found[2] or found[3] or ""
    if host.lower() not in ("", "localhost"):
        raise SourceNotFound(
            f"{found[0]} names a file on the host {host!r}, but file URLs can only name files "
            f"on this machine: write file:///{host}{name}, with three slashes, or a path"
        )
    if not name:
        raise SourceNotFound(f"{found[0]} has no path: a file URL is file:///folder/name")
    return os.fsdecode(unquote_to_bytes(os.fsencode(name)))


def absolute_path(path: Any) -> Any:
    """Returns the absolute path of a local file or folder; URLs and other objects unchanged.

    File URLs become paths. Symbolic links are not resolved, and ".." is kept, because ".." after a
    link does not lead to the folder that contains the link. Open datasets store absolute paths, so
    that they can be read after `os.chdir`.
    """
    path = local_path(path)
    if not isinstance(path, (str, os.PathLike)) or is_remote(path) or not os.fspath(path):
        return path
    with suppress(FileNotFoundError):  # the working directory was deleted
        path = str(Path(os.fsdecode(path)).absolute())
    return path


def local_only(path: str | os.PathLike[str], option: str) -> str:
    """Returns the path of a file or folder that can only be local; see `local_path`.

    Args:
        path: The path, or a file URL.
        option: The name of the option that the path was given for, for the error.

    Raises:
        OptionError: The path is a URL of a store.
        SourceNotFound: The path is a URL with the name of another host.
    """
    if is_remote(path):
        raise OptionError(
            f"{option} must be a path on this machine, not a URL: got {without_secrets(str(path))}"
        )
    return os.fsdecode(local_path(path))


def join(url: str, *names: str) -> str:
    """Returns the URL of an object or folder below a URL.

    Args:
        url: The URL of a folder. The query of an http(s) URL is kept at the end. In a chain, the
            names are added to the first part that has a path.
        names: Relative names, as the store has them. They are percent-encoded for http(s) only.
    """
    head, part, tail = _first_with_path(url)
    query = ""
    if scheme_of(part) in _HTTP:
        names = tuple(quote(name, safe="/~!$&'()*+,;=:@") for name in names)
        part, mark, rest = part.partition("?")
        query = mark + rest
    path = part if part.endswith("://") else part.rstrip("/") + "/"
    return head + path + "/".join(name.strip("/") for name in names) + query + tail


def split(url: str) -> tuple[str, str]:
    """Splits a URL into the URL of a store and the name of an object; `join` is the inverse.

    The store is that of the bucket, host or repository, whose objects all share one; a chain is
    split at its last "/" instead. The name is not percent-encoded.
    """
    if "::" in url:
        head, part, tail = _first_with_path(url)
        folder, slash, name = part.rpartition("/")
        if folder.endswith((":/", ":")):  # "memory://name"
            return head + folder + slash + tail, name
        return head + folder + tail, name
    scheme, _, rest = url.partition("://")
    rest, mark, query = rest.partition("?") if scheme.lower() in _HTTP else (rest, "", "")
    host, slash, name = rest.partition("/")
    if scheme.lower() == "hf":  # hf://datasets/ORG/NAME[@REVISION]/name, also @refs/pr/1
        folders = rest.split("/")
        own = 5 if len(folders) > 2 and folders[2].endswith("@refs") else 3
        host, name = "/".join(folders[:own]), "/".join(folders[own:])
    # fsspec's memory file system has no hosts: memory://name is an object.
    if not slash and scheme_of(url) == "memory":
        host, name = "", host
    if scheme_of(url) in _HTTP:
        name = unquote(name)
    return f"{scheme}://{host}{mark}{query}", name


def _first_with_path(url: str) -> tuple[str, str, str]:
    """Splits a chain at its first part with a "://", and returns what is before, it, and after."""
    parts = url.split("::")
    at = next((n for n, part in enumerate(parts) if "://" in part), len(parts) - 1)
    head = "".join(part + "::" for part in parts[:at])
    return head, parts[at], "".join("::" + part for part in parts[at + 1 :])


def secrets_of(url: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the secrets in a URL and its options, which messages must not contain."""
    found = set(_secret_values(options, inside=False))
    for user in re.findall(r"://([^/\s@]*)@", url):
        found.update(user.split(":")[1:] or [user])
        found.add(basic_authorization(*user.partition(":")[::2]).partition(" ")[2])
    for query in re.findall(r"https?://[^\s?]*\?([^#]*)", url):
        found.update(pair.partition("=")[2] for pair in query.split("&"))
    found |= {quote(secret, safe="") for secret in found}
    # The longest first, because a secret may contain another one.
    return tuple(sorted((s for s in found if len(s) >= _SHORTEST_SECRET), key=len, reverse=True))


def _secret_values(value: Any, inside: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            hidden = inside or bool(_SECRET_OPTION.search(str(key))) or key == "headers"
            yield from _secret_values(item, hidden)
    elif inside and isinstance(value, (list, tuple)):
        for item in value:
            yield from _secret_values(item, inside)
    elif inside and isinstance(value, str):
        yield value
        # Of a header "Bearer TOKEN", a message may contain the token alone.
        yield from (word for word in value.split() if word != value)


def basic_authorization(user: str, password: str) -> str:
    """Returns the Basic header for a percent-encoded user and password (RFC 7617)."""
    text = f"{unquote(user)}:{unquote(password)}"
    return "Basic " + base64.b64encode(text.encode()).decode("ascii")


def redact(text: str, secrets: tuple[str, ...]) -> str:
    """Returns a text without credentials in URLs and without the given secrets."""
    text = without_secrets(text)
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def proxy_of(url: str) -> str | None:
    """Returns the proxy to use for an http(s) URL; None for a direct connection.

    The environment has one meaning for all backends: `http_proxy`, `https_proxy` and `all_proxy`,
    in lower or upper case, name the proxy. `no_proxy` lists hosts that are requested directly:
    domain names including subdomains, addresses, networks (10.0.0.0/8), or "*".
    """
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    found = proxies.get(parts.scheme.lower()) or proxies.get("all")
    if not found or _bypasses(parts.hostname or "", parts.netloc.rpartition("@")[2]):
        return None
    return found if "://" in found else f"http://{found}"


def _bypasses(host: str, netloc: str) -> bool:
    if urllib.request.proxy_bypass(netloc) or urllib.request.proxy_bypass(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # urllib compares names and addresses, but does not know networks.
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return any(address in network for network in map(_network, listed.split(",")) if network)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return None
