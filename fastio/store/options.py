"""storage_options in the words of both libraries: what fsspec's take, as obstore's, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# s3fs, gcsfs and adlfs on the left, obstore on the right. Names that are not here pass through,
# and obstore says which it does not know.
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
# These say how the other library works, not what is read.
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


class Untranslatable(Exception):
    """obstore has no word for an option, or would not find the credentials that others find."""


@dataclass
class Settings:
    """What an obstore client is made with: its store's options, and its HTTP client's."""

    config: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)


def family_of(scheme: str) -> str | None:
    """Which of obstore's stores serves a scheme: "s3", "gs", "az" or "http"; None: no one."""
    return _FAMILY.get(scheme)


def for_obstore(family: str, options: Mapping[str, Any]) -> Settings:
    """Options as obstore takes them.

    Raises:
        Untranslatable: they are for another library; the message says which option.
    """
    settings = Settings()
    options = {key: value for key, value in options.items() if key not in _WITHOUT_MEANING}
    client = options.pop("client_options", None)
    if client is not None:
        settings.client.update(client)
    translate = {"s3": _s3, "gs": _gs, "az": _az, "http": _http}[family]
    translate(options, settings)
    return settings


def _s3(options: dict[str, Any], settings: Settings) -> None:
    inner = options.pop("client_kwargs", None) or {}
    for key, value in inner.items():
        if key == "verify" and isinstance(value, bool):
            settings.client["allow_invalid_certificates"] = not value
        elif key in _S3_CLIENT:
            settings.config[_S3_CLIENT[key]] = value
        else:
            raise Untranslatable(f"client_kwargs[{key!r}]")
    for key, value in options.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            raise Untranslatable(key)
        settings.config[_S3.get(key, key)] = value
    if not _s3_credentials_are_known(settings.config):
        raise Untranslatable("credentials in ~/.aws, which botocore reads and obstore does not")


def _s3_credentials_are_known(config: Mapping[str, Any]) -> bool:
    """Whether obstore finds the credentials that botocore would; it reads no files in ~/.aws."""
    if config.get("skip_signature") or any("access_key" in key for key in config):
        return True
    if "AWS_ACCESS_KEY_ID" in os.environ or "AWS_WEB_IDENTITY_TOKEN_FILE" in os.environ:
        return True
    if "AWS_PROFILE" in os.environ:
        return False
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    return not any(Path(name).expanduser().exists() for name in files)


def _gs(options: dict[str, Any], settings: Settings) -> None:
    options.pop("project", None)  # only to list and make buckets
    token = options.pop("token", None)
    if token == "anon":
        settings.config["skip_signature"] = True
    elif isinstance(token, str) and token.endswith(".json"):
        settings.config["service_account"] = token
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
    """Options as fsspec's file systems take them: untouched, but for obstore's names for S3."""
    if family_of(scheme) != "s3":
        return dict(options)
    back = {theirs: ours for ours, theirs in _S3.items()}
    found = {back.get(key, key): value for key, value in options.items()}
    region = found.pop("region", None)
    if region is not None:
        found["client_kwargs"] = {"region_name": region, **(found.get("client_kwargs") or {})}
    return found
