"""The formats of token files: where the tokens lie in a file, and where documents begin.

- Megatron: NAME.bin has the tokens, NAME.idx their type and the sizes of sequences and documents.
- llm.c: a .bin file begins with 256 int32: a magic number, a version, the number of tokens.
- raw (nanoGPT): a .bin file has tokens only, and nothing says of which type they are.

Documents of the last two are divided by a separator.

All numbers are little-endian.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastio.errors import (
    FormatUnsupported,
    OptionError,
    SchemaError,
    ShardCorrupt,
    SourceNotFound,
)
from fastio.packed.grouping import starts_of
from fastio.packed.ipc import FileStamp, stamp
from fastio.schema import TOKEN_DTYPES

Int64s = NDArray[np.int64]
Format = Literal["megatron", "llm.c", "raw"]

TOKENS_SUFFIX, INDEX_SUFFIX = ".bin", ".idx"
_MEGATRON, _MEGATRON_OLD = b"MMIDIDX\0\0", b"TNTIDX\0\0"
_INDEX_HEAD = 34  # the magic bytes, a version (8), a type (1), the numbers of sizes and documents
# Megatron's numbers of types. Integers with a sign are read without it: tokens have none.
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32"}
_TYPES |= {8: "uint16"}
_UNSIGNED = {"uint8": "uint8", "uint16": "uint16", "int16": "uint16", "int32": "uint32"}
# llm.c's magic numbers, each with the version and type of its files.
_HEADERS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
_HEADER_BYTES = 4 * 256
_SCANNED = 1 << 22  # tokens that are compared with the separator at a time


@dataclass(frozen=True)
class TokenFile:
    """A file of tokens.

    Attributes:
        path: Its path.
        stamp: Its version, as it was before it was read.
        format: How it is written.
        dtype: The type of the tokens: uint8, uint16 or uint32.
        signed: Whether they are stored as a type with a sign.
        at: The offset of the first token in bytes.
        starts: int64 (documents + 1,), the first token of each document, and the number of tokens.
        separator: The token that ends documents, if it divides the file; None otherwise.
    """

    path: str
    stamp: FileStamp
    format: Format
    dtype: str
    signed: bool
    at: int
    starts: Int64s
    separator: int | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self.starts[-1])


def open_token_file(path: str, dtype: str | None, separator: int | None) -> TokenFile:
    """Returns what a file of tokens consists of.

    Args:
        path: The path of a .bin file, or of its .idx file.
        dtype: The type of the tokens of a raw file; None if it was not given.
        separator: The token that ends each document of a file without an index; None if such a file
            is one document.

    Raises:
        SourceNotFound: A file is missing or cannot be read.
        ShardCorrupt: The file is damaged or truncated.
        OptionError: The file is raw and `dtype` is missing, or an option contradicts the file.
        SchemaError: The tokens have a type that cannot be read.
    """
    root = os.path.splitext(path)[0]
    tokens, index = root + TOKENS_SUFFIX, root + INDEX_SUFFIX
    try:
        found = stamp(tokens)  # before it is read, so that a later change is noticed
        if os.path.exists(index):
            if separator is not None:
                raise OptionError(
                    f"separator cannot be used with {index}, because the index has documents: "
                    "leave separator out"
                )
            file = _of_megatron(tokens, found, index)
        else:
            file = _without_index(tokens, found, dtype, separator)
    except FileNotFoundError as error:
        raise SourceNotFound(
            f"{error.filename} does not exist: a .idx file needs the .bin file of the same name"
        ) from error
    if dtype not in (None, file.dtype):
        raise OptionError(
            f"{path} has tokens of the type {file.dtype}, not {dtype}: leave dtypes out"
        )
    if not file.tokens:
        raise SourceNotFound(f"{tokens} has no tokens")
    return file


def _without_index(
    path: str, version: FileStamp, dtype: str | None, separator: int | None
) -> TokenFile:
    nbytes = version.nbytes
    head = np.fromfile(path, "<i4", 3)
    magic = int(head[0]) if len(head) == 3 and nbytes >= _HEADER_BYTES else None
    if magic in _HEADERS:
        expected, kind = _HEADERS[magic]
        if head[1] != expected:
            raise FormatUnsupported(
                f"{path} has the magic number {magic} of llm.c and the version {head[1]}; "
                f"fastio reads version {expected}"
            )
        at, count = _HEADER_BYTES, int(head[2])
        found, item = nbytes - at, np.dtype(kind).itemsize
        if found != count * item:
            raise ShardCorrupt(
                f"{path}: its header says {count} tokens of {item} bytes, but {found} bytes follow "
                "it: the file is truncated or damaged; copy or create it again"
            )
        file = TokenFile(path, version, "llm.c", kind, False, at, _whole(count), separator)
    else:
        if dtype is None:
            raise OptionError(
                f"{path} has neither a header nor an index ({INDEX_SUFFIX}), so the type of its "
                'tokens is unknown: pass it, as in dtypes={"tokens": "uint16"} (--dtype '
                "tokens=uint16) for files of nanoGPT"
            )
        if dtype not in TOKEN_DTYPES:
            raise SchemaError(
                f"the type of tokens must be one of {', '.join(TOKEN_DTYPES)}, got {dtype!r}"
            )
        item = np.dtype(dtype).itemsize
        if nbytes % item:
            raise ShardCorrupt(
                f"{path} has {nbytes} bytes, which is not a multiple of {item}: it is truncated, "
                f"or its tokens are not {dtype}"
            )
        file = TokenFile(path, version, "raw", dtype, False, 0, _whole(nbytes // item), separator)
    return file if separator is None else _divided(file, separator)


def _whole(tokens: int) -> Int64s:
    return np.array([0, tokens], np.int64)


def _divided(file: TokenFile, separator: int) -> TokenFile:
    """Returns a file with a document up to each separator; reads all of its tokens."""
    if type(separator) is not int or not 0 <= separator <= np.iinfo(file.dtype).max:
        raise OptionError(f"the separator {separator!r} is not a valid {file.dtype}")
    kind = np.dtype(file.dtype).newbyteorder("<")
    flat: Any = np.memmap(file.path, kind, "r", file.at, (file.tokens,)) if file.tokens else []
    ends = [
        np.flatnonzero(flat[begin : begin + _SCANNED] == separator) + (begin + 1)
        for begin in range(0, file.tokens, _SCANNED)
    ]
    starts = np.concatenate([np.zeros(1, np.int64), *ends]).astype(np.int64)
    if starts[-1] != file.tokens:
        starts = np.append(starts, file.tokens)
    return replace(file, starts=starts, separator=separator)


def _of_megatron(path: str, found: FileStamp, index: str) -> TokenFile:
    size = os.path.getsize(index)
    data = np.memmap(index, np.uint8, "r") if size else np.empty(0, np.uint8)
    if bytes(data[: len(_MEGATRON_OLD)]) == _MEGATRON_OLD:
        raise FormatUnsupported(
            f"{index} is an index of Megatron's old format (TNTIDX), which fastio does not read: "
            "create it again with a newer preprocess_data.py"
        )
    if size < _INDEX_HEAD or bytes(data[: len(_MEGATRON)]) != _MEGATRON:
        raise ShardCorrupt(
            f"{index} is not an index of Megatron: it does not begin with MMIDIDX and a header of "
            f"{_INDEX_HEAD} bytes"
        )
    version, sequences, documents = (int(data[at : at + 8].view("<u8")[0]) for at in (9, 18, 26))
    code = int(data[17])
    if version != 1:
        raise FormatUnsupported(
            f"{index} has version {version} of Megatron's index; fastio reads version 1"
        )
    stored = _TYPES.get(code)
    if stored is None:
        raise ShardCorrupt(
            f"{index} is damaged: the type of its tokens has the number {code}, expected 1 to 8"
        )
    if stored not in _UNSIGNED:
        raise FormatUnsupported(
            f"{index}: tokens of the type {stored} cannot be read: create the file again with the "
            "type uint16 or int32"
        )
    expected = _INDEX_HEAD + 12 * sequences + 8 * documents
    if size != expected:
        if size == expected + sequences:  # one more byte for each, the mode
            raise FormatUnsupported(f"{index} is a multimodal index, which fastio does not read")
        raise ShardCorrupt(
            f"{index} has {size} bytes, but {sequences} sequences and {documents} bounds of "
            f"documents take {expected}; it is truncated: copy it again"
        )
    at = _INDEX_HEAD
    sizes = data[at : at + 4 * sequences].view("<i4")
    at += 4 * sequences
    pointers = data[at : at + 8 * sequences].view("<i8")
    begins = data[at + 8 * sequences :].view("<i8").astype(np.int64)
    starts = _starts_of_sequences(index, sizes, pointers, found.nbytes, np.dtype(stored).itemsize)
    if (
        len(begins) < 1
        or int(begins[0]) != 0
        or int(begins[-1]) != sequences
        or bool((np.diff(begins) < 0).any())
    ):
        raise ShardCorrupt(
            f"{index} is damaged: its documents do not ascend from 0 to its {sequences} sequences"
        )
    signed = _UNSIGNED[stored] != stored
    return TokenFile(path, found, "megatron", _UNSIGNED[stored], signed, 0, starts[begins])


def _starts_of_sequences(
    index: str, sizes: NDArray[np.int32], pointers: Int64s, nbytes: int, item: int
) -> Int64s:
    """Returns the first token of each sequence, and the number of all; ShardCorrupt if damaged."""
    starts = starts_of(sizes)
    # The sum of an offset and a size could overflow.
    outside = (sizes < 0) | (pointers < 0) | (pointers > nbytes - sizes.astype(np.int64) * item)
    if outside.any():
        bad = int(np.argmax(outside))
        raise ShardCorrupt(
            f"{index}: sequence {bad} has {int(sizes[bad])} tokens at byte {int(pointers[bad])}, "
            f"which is outside of the {nbytes} bytes of the .bin file: one of the two is truncated "
            "or belongs to another file"
        )
    apart = pointers != starts[:-1] * item
    if apart.any():
        bad = int(np.argmax(apart))
        raise FormatUnsupported(
            f"{index}: sequence {bad} lies at byte {int(pointers[bad])}, but the sequences before "
            f"it end at {int(starts[bad]) * item}; fastio reads only sequences that follow one "
            "another"
        )
    if int(starts[-1]) * item != nbytes:
        raise ShardCorrupt(
            f"{index} has {int(starts[-1])} tokens, which take {int(starts[-1]) * item} bytes, but "
            f"the .bin file has {nbytes}: it is damaged, or belongs to another index"
        )
    return starts
