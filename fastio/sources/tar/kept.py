"""Keeps indexes of tars in a cache, each as one piece (`fastio.cache.kept`)."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.cache import Cache, CacheFolder, Source, keep, kept_source
from fastio.errors import CacheError, FastioError, SchemaError
from fastio.packed.ipc import MappedFile
from fastio.runtime.memory import MAX_UNZIPPED_BYTES
from fastio.schema import Array, Schema
from fastio.sources.tar.headers import STATE_MISSING, STATE_NO_INTEGER, STATE_THERE, split_name
from fastio.sources.tar.index import METADATA_KEY, VERSION, TarIndex, count_and_first
from fastio.sources.tar.values import is_integer, may_be_field

_PIECE = 0  # an index is one


def open_index(
    url: str,
    tars: Sequence[tuple[str, str, int]],
    cache: Cache,
    build: Callable[[], TarIndex],
) -> TarIndex:
    """Returns the index of tars from a cache; builds and stores it if it is not there.

    Args:
        url: The tars' folder.
        tars: The name, stamp and size in bytes of each; an index of others is replaced.
        cache: Where it is kept, unless the cache cannot be used or has no room.
        build: Makes the index.
    """
    try:
        folder, source = index_source(url, (name for name, _, _ in tars), cache)
        index = _read(folder, source)
        told = () if index is None else [(tar.name, tar.stamp, tar.nbytes) for tar in index.tars]
        if index is not None and told == list(tars):
            folder.note_use(source, [_PIECE], 0)
            return index
    except CacheError as error:
        if error.__cause__ is None:  # the folder was refused; no warning if it is only read-only
            cache.give_up(error)
        return build()
    index = build()
    with suppress(OSError):  # no space: the next process makes it again
        folder.drop(source, [_PIECE])  # an index of other versions, which `keep` leaves
        keep(folder, source, _PIECE, memoryview(index_bytes(index)))
    return index


def index_source(url: str, names: Iterable[str], cache: Cache) -> tuple[CacheFolder, Source]:
    """Returns the cache folder, and the source whose only piece is the index of some tars."""
    return kept_source(cache, "index of tars", url, *names)


def _read(folder: CacheFolder, source: Source) -> TarIndex | None:
    """Maps the cached index; returns None if there is none or it is unusable."""
    if not folder.has(source, _PIECE):
        return None
    try:
        return read_index(folder.path_of(source, _PIECE))
    except FastioError:
        return None  # broken, or of another version, or deleted meanwhile: it is made anew


def read_index(path: str) -> TarIndex:
    """Returns the index in a file, mapped, of which nothing is believed.

    Raises:
        CacheError: it is broken, or of another version of fastio.
        SourceNotFound: there is no such file.
        SourceChanged: it was replaced meanwhile.
    """
    mapped = MappedFile(path, CacheError, advice="delete it, and it is made anew from the tars")
    try:
        batch, _, _ = mapped.batch(checked_columns(mapped.schema()))
        index = TarIndex(batch)
        check_rows(index)
    except BrokenIndex as cause:
        raise mapped.wrong(str(cause)) from cause
    return index


def index_bytes(index: TarIndex) -> pa.Buffer:
    """Returns the index in the form that `read_index` reads."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, index.batch.schema) as writer:
        writer.write_batch(index.batch)
    return sink.getvalue()


_MOST = 2**63 - 1  # of an int64
_HASH_DIGITS = 16


class BrokenIndex(ValueError):
    """What is wrong with an index, to follow the name of its file."""


def checked_columns(schema: pa.Schema) -> pa.Schema:
    """Returns the columns that an index must have by the description in its schema's metadata.

    Raises:
        BrokenIndex: the description has not the parts, types and ranges that `assemble` writes.
    """
    about = _parsed((schema.metadata or {}).get(METADATA_KEY))
    text = (_is_name, "whose name or version is not a string")
    count = (_is_count, "with impossible numbers")
    tars = _described(about, "tars", "a tar", [text, text, count, count])
    rows = sum(rows for _, _, rows, _ in tars)
    _require(0 < rows <= _MOST, "has tars with an impossible number of rows")
    numbers = [(_is_number, "with impossible numbers")] * 4
    extension = (_is_extension, "whose name is none")
    extensions = _described(about, "extensions", "an extension", [extension, *numbers])
    names: list[str] = [values[0] for values in extensions]
    _check_fields(names, _part(about, "schema", dict))
    fingerprint = _part(about, "fingerprint", str)
    _require(
        len(fingerprint) == _HASH_DIGITS and set(fingerprint) <= set(string.hexdigits),
        "has a fingerprint that is not one",
    )
    columns = [("key", pa.large_binary())]
    for number, name in enumerate(names):
        columns += [(f"offset.{number}", pa.int64()), (f"length.{number}", pa.int64())]
        if is_integer(name):
            columns += [(f"value.{number}", pa.int64()), (f"state.{number}", pa.uint8())]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


def check_rows(index: TarIndex) -> None:
    """Checks every number in the columns of an index.

    Raises:
        BrokenIndex: a key or a file lies elsewhere than its tar does, or the columns contradict one
            another or the description.
    """
    _require(len(index) > 0, "has no rows")
    _require(sum(tar.rows for tar in index.tars) == len(index), "has tars with other rows")
    ends, data = index.key_buffers()
    _require(
        ends[0] >= 0 and ends[-1] <= len(data) and bool((ends[1:] >= ends[:-1]).all()),
        "has keys whose ends do not ascend, or lie outside of them",
    )
    sizes = np.repeat([tar.nbytes for tar in index.tars], [tar.rows for tar in index.tars])
    for name in index.extensions:
        _check_files(index, name, sizes)


def _check_files(index: TarIndex, name: str, sizes: NDArray[np.int64]) -> None:
    """Checks the columns of one extension, in tars of some sizes, int64 (rows,)."""
    offset, length, state = index.offsets(name), index.lengths(name), index.states(name)
    shown = f"files .{name}"
    there = offset >= 0
    _require(
        # No sum, which could overflow.
        bool((offset >= -1).all() and (length >= 0).all())
        and bool((length <= sizes - np.maximum(offset, 0)).all()),
        f"has {shown} that do not lie inside their tars",
    )
    _require(not length[~there].any(), f"has lengths of {shown} that are missing")
    _require(
        bool(((state == STATE_MISSING) == ~there).all() and (state <= STATE_NO_INTEGER).all()),
        f"has {shown} with impossible states",
    )
    if is_integer(name):
        values = index.values(name)
        _require(not values[state != STATE_THERE].any(), f"has values of {shown} without a number")
    extension = index.extensions[name]
    missing, wrong = state == STATE_MISSING, state == STATE_NO_INTEGER
    told = (
        *(extension.missing, extension.first_missing),
        *(extension.no_integer, extension.first_no_integer),
    )
    _require(
        (*count_and_first(missing), *count_and_first(wrong)) == told,
        f"has {shown} that were counted wrongly",
    )
    field = extension.field
    if isinstance(field, Array) and field.fixed_shape is not None:
        nbytes = math.prod(field.fixed_shape) * np.dtype(field.dtype).itemsize
        zipped = name.rpartition(".")[2] == "gz"
        room = MAX_UNZIPPED_BYTES if zipped else int(length.max())
        _require(nbytes <= room, f"has {shown} too small for their shape")


def _parsed(text: bytes | None) -> dict[str, Any]:
    if text is None:
        raise BrokenIndex("has no description")
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenIndex(f"has a description that is not JSON: {type(error).__name__}") from error
    if not isinstance(about, dict):
        raise BrokenIndex("has a description that is not an object")
    if about.get("version") != VERSION:
        raise BrokenIndex("has another version")
    return about


def _part(about: dict[str, Any], name: str, kind: type[Any]) -> Any:
    if not isinstance(about.get(name), kind):
        raise BrokenIndex(f"has a description in which {name!r} is not a {kind.__name__}")
    return about[name]


def _described(
    about: dict[str, Any], name: str, what: str, checks: Sequence[tuple[Callable[[Any], bool], str]]
) -> list[list[Any]]:
    """Returns the list `name` of a description, which has a list of checked values for each of
    what it describes; the first is its name."""
    found: list[list[Any]] = _part(about, name, list)
    for values in found:
        if not isinstance(values, list) or len(values) != len(checks):
            raise BrokenIndex(f"has {what} that is not described by {len(checks)} values")
        for value, (holds, otherwise) in zip(values, checks, strict=True):
            _require(holds(value), f"has {what} {otherwise}")
    _require(len({values[0] for values in found}) == len(found), f"has {what} twice")
    return found


def _check_fields(names: Sequence[str], value: dict[str, Any]) -> None:
    try:
        schema = Schema.from_json(value)
    except SchemaError as error:
        raise BrokenIndex(f"has a description without a schema: {error}") from error
    _require(
        list(schema.fields) == [str(number) for number in range(len(names))]
        and schema == Schema(schema.fields),
        "has fields that are not those of its extensions",
    )
    for name, field in zip(names, schema.fields.values(), strict=True):
        _require(may_be_field(name, field), f"has files .{name} that cannot hold {field}")


def _is_extension(value: Any) -> bool:
    """Returns whether the name of a tar's member can give a value; see `scan_tar`."""
    return _is_name(value) and split_name(f"x.{value}") == ("x", value)


def _is_name(value: Any) -> bool:
    """Returns whether a value is a string that can stand for the bytes of a file's name."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_number(value: Any) -> bool:
    return type(value) is int and -1 <= value <= _MOST


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise BrokenIndex(otherwise)
