"""Translates storage_options between the names that fsspec and obstore use."""

from __future__ import annotations

import math
import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fastio.errors import StoreError
from fastio.shown import without_secrets
from fastio.store.urls import basic_authorization, proxy_of, scheme_of

# Names of s3fs, gcsfs and adlfs on the left, of obstore on the right. Other names are passed on
# unchanged, and obstore refuses those that it does not know.
_S3 = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "anon": "skip_signature",
    "requester_pays": "request_payer",
}
_S3_CLIENT = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "endpoint_url": "endpoint",
    "region_name": "region",
}
_AZURE = {"anon": "skip_signature"}
# These options configure how fsspec works, not what is read, so obstore does not need them.
_WITHOUT_MEANING = frozenset(
    {"asynchronous", "loop", "use_listings_cache", "skip_instance_cache", "default_block_size"}
)
_FAMILY = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
    "http": "http",
    "https": "http",
}


# Options of the libraries that are durations, at the top or in `client_options`.
_SECONDS = frozenset({"timeout", "connect_timeout", "read_timeout"})
_LIMITS = frozenset({"deadline_s", "timeout_s"})  # those of fastio


class Untranslatable(Exception):
    """obstore has no such option, or would miss credentials that fsspec finds."""


@dataclass
class Settings:
    """The settings of an obstore client.

    Attributes:
        url: The URL, without credentials.
        config: The options of the store.
        client: The options of the HTTP client.
        allow_http: Whether requests and redirects may go without TLS.
    """

    url: str
    config: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    allow_http: bool = False


def family_of(scheme: str) -> str | None:
    """Returns obstore's store for a scheme: "s3", "gs", "az" or "http"; None if there is none."""
    return _FAMILY.get(scheme)


def check_seconds(options: Mapping[str, Any]) -> None:
    """Raises ValueError if a timeout is neither a positive number of seconds nor a timedelta."""
    for place, within in (("", options), ("client_options: ", options.get("client_options"))):
        for name, value in within.items() if isinstance(within, Mapping) else ():
            # An object may be aiohttp's own ClientTimeout, and text one of obstore's ("5 s").
            wrong = isinstance(value, (bool, bytes, Mapping, list, tuple, set))
            wrong |= isinstance(value, str) and not place
            wrong |= isinstance(value, (int, float)) and not value > 0
            if name in _LIMITS and not place:
                wrong = not _is_limit(value)
            elif name == "listing_s" and not place:
                wrong = value != 0 and not _is_limit(value)
            elif name not in _SECONDS:
                continue
            if wrong:
                raise ValueError(
                    f"the option {place}{name} of storage_options is {value!r}, expected a number "
                    "of seconds above 0, such as 5 or 0.5, or a timedelta"
                )


def _is_limit(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, timedelta)):
        return False
    return 0 < seconds_of(value) < math.inf


def seconds_of(value: float | timedelta) -> float:
    """Returns a checked duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def for_obstore(family: str, url: str, options: Mapping[str, Any]) -> Settings:
    """Translates a URL and options to obstore's; Untranslatable names an option without one."""
    settings = Settings(url)
    options = {key: value for key, value in options.items() if key not in _WITHOUT_MEANING}
    client = options.pop("client_options", None)
    if client is not None:
        settings.client.update(client)
    settings.client.update({name: options.pop(name) for name in _SECONDS & options.keys()})
    for name in _SECONDS & settings.client.keys():
        value = settings.client[name]
        if value is None:
            del settings.client[name]
        elif isinstance(value, (int, float)):
            settings.client[name] = timedelta(seconds=value)
        elif not isinstance(value, (str, timedelta)):
            raise Untranslatable(f"{name} of the type {type(value).__name__}")
    translate = {"s3": _s3, "gs": _gs, "az": _az, "http": _http}[family]
    translate(options, settings)
    if family == "http":
        _web(settings)
    else:
        settings.allow_http = _is_plain_somewhere(settings.config)
    return settings


def for_rust(url: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Translates options to those of the Rust crate object_store; see `Store.options_of_rust`."""
    family, shown = family_of(scheme_of(url)), without_secrets(url)
    if family is None or family == "http":
        raise StoreError(
            f"{shown} is not an s3, gs or az URL: copy the data to such a URL, or to this machine"
        )
    try:
        settings = for_obstore(family, url, options)
    except Untranslatable as error:
        raise StoreError(
            f"{shown}: the library object_store, which reads this URL, does not take the "
            f"option {error}: leave it out of storage_options"
        ) from None
    found = {name: str(value) for name, value in settings.config.items()}
    flags = {name: text.lower() for name, text in found.items() if text in ("True", "False")}
    return found | flags | ({"allow_http": "true"} if settings.allow_http else {})


def _web(settings: Settings) -> None:
    """Moves credentials to headers and sets the proxy, so that all backends behave alike."""
    parts = urlsplit(settings.url)
    if parts.query:
        raise Untranslatable("a query string, which it would send to other hosts after a redirect")
    headers = dict(settings.client.get("default_headers") or {})
    netloc = parts.netloc
    if "@" in netloc:
        user, _, netloc = netloc.rpartition("@")
        settings.url = urlunsplit(parts._replace(netloc=netloc))
        if not any(name.lower() == "authorization" for name in headers):
            headers["Authorization"] = basic_authorization(*user.partition(":")[::2])
    for name in headers:
        # After a redirect to another host, obstore drops this header and sends all others.
        if name.lower() != "authorization":
            raise Untranslatable(
                f"the header {name!r}, which it would send to other hosts after a redirect"
            )
    if headers:
        settings.client["default_headers"] = headers
    settings.allow_http = parts.scheme.lower() == "http"
    proxies = urllib.request.getproxies()
    environments = proxies.get(parts.scheme.lower()) or proxies.get("all")
    if environments and "proxy_url" not in settings.client:
        # Without an explicit proxy, obstore applies rules of its own to the environment. For a
        # direct connection, a proxy is set and the host is excluded, so that the proxy is never
        # used.
        found = proxy_of(settings.url)
        settings.client["proxy_url"] = found or "http://127.0.0.1:9"
        if found is None:
            settings.client["proxy_excludes"] = parts.hostname or ""


def _is_plain_somewhere(config: Mapping[str, Any]) -> bool:
    """Returns whether options or the environment name a cloud endpoint without TLS."""
    prefixes = "AWS_", "GOOGLE_", "AZURE_"
    said = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    for name, value in {**said, **config}.items():
        if str(value).lower().startswith("http://"):
            return True
        if "emulator" in str(name).lower() or str(name).lower().endswith("allow_http"):
            return True
    return False


def _s3(options: dict[str, Any], settings: Settings) -> None:
    inner = options.pop("client_kwargs", None) or {}
    for key, value in inner.items():
        if key == "verify" and isinstance(value, bool):
            settings.client["allow_invalid_certificates"] = not value
        elif key in _S3_CLIENT:
            settings.config[_S3_CLIENT[key]] = value
        else:
            raise Untranslatable(f"client_kwargs[{key!r}]")
    _plain(options, settings, _S3)
    if not _s3_credentials_are_known(settings.config):
        raise Untranslatable("credentials in ~/.aws, which botocore reads and obstore does not")


def _s3_credentials_are_known(config: Mapping[str, Any]) -> bool:
    """Returns whether obstore finds the credentials that botocore would. It ignores ~/.aws."""
    if config.get("skip_signature") or any("access_key" in key for key in config):
        return True
    if "AWS_ACCESS_KEY_ID" in os.environ or "AWS_WEB_IDENTITY_TOKEN_FILE" in os.environ:
        return True
    # Profiles are in ~/.aws, which obstore ignores.
    if "AWS_PROFILE" in os.environ:
        return False
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    return not any(Path(name).expanduser().exists() for name in files)


def _gs(options: dict[str, Any], settings: Settings) -> None:
    options.pop("project", None)  # needed only to list and create buckets
    token = options.pop("token", None)
    if token == "anon":
        settings.config["skip_signature"] = True
    elif isinstance(token, str) and token.endswith(".json"):
        settings.config["service_account"] = token
    # obstore finds these credentials by itself.
    elif token not in (None, "google_default", "cloud"):
        raise Untranslatable("token")
    _plain(options, settings, {})


def _az(options: dict[str, Any], settings: Settings) -> None:
    _plain(options, settings, _AZURE)


def _http(options: dict[str, Any], settings: Settings) -> None:
    inner = dict(options.pop("client_kwargs", None) or {})
    headers = {**(options.pop("headers", None) or {}), **(inner.pop("headers", None) or {})}
    left = [*options, *inner]
    if left:
        raise Untranslatable(str(left[0]))
    if headers:
        known = settings.client.get("default_headers", {})
        settings.client["default_headers"] = {**known, **headers}


def _plain(options: Mapping[str, Any], settings: Settings, names: Mapping[str, str]) -> None:
    for key, value in options.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            raise Untranslatable(key)
        settings.config[names.get(key, key)] = value


def for_fsspec(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Translates options to fsspec's. Only obstore's names are changed."""
    if family_of(scheme) == "http":
        return _web_for_fsspec(dict(options))
    if family_of(scheme) != "s3":
        return dict(options)
    back = {theirs: ours for ours, theirs in _S3.items()}
    found = {back.get(key, key): value for key, value in options.items()}
    region = found.pop("region", None)
    if region is not None:
        found["client_kwargs"] = {"region_name": region, **(found.get("client_kwargs") or {})}
    return found


def _web_for_fsspec(options: dict[str, Any]) -> dict[str, Any]:
    """Translates headers, certificates and timeouts to aiohttp's options."""
    if isinstance(options.get("timeout"), timedelta):
        options["timeout"] = options["timeout"].total_seconds()
    client = dict(options.pop("client_options", None) or {})
    headers = {**(client.pop("default_headers", None) or {}), **(options.get("headers") or {})}
    if headers:
        options["headers"] = headers
    if client.pop("allow_invalid_certificates", False):
        options["ssl"] = False
    if client:
        raise ValueError(f"client_options[{next(iter(client))!r}], an option of obstore")
    return options
