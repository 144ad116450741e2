"""Encodes text as tokens: as UTF-8 bytes, by a function, or by a tokenizer of Hugging Face."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from fastio.errors import OptionError, PackageMissing, PackError, SchemaError, SourceNotFound
from fastio.sources.table.values import Ragged
from fastio.store import local_path

TOKENS = "tokens"  # the name of the field
DocumentUnit = Literal["file", "line", "blank-line"]
AUTO = "auto"
NONE = "none"
_BYTES = 256
_QUOTED = 40  # characters of a document in a message


@dataclass(frozen=True)
class TokenOptions:
    """How text becomes tokens; see `fastio.pack`. OptionError if options do not fit together."""

    tokenizer: Any = None
    separator: int | str | None = AUTO
    vocabulary_size: int | None = None
    text_column: str | None = None
    document: DocumentUnit | None = None
    special_tokens: bool = False

    def __post_init__(self) -> None:
        if self.document not in (None, "file", "line", "blank-line"):
            raise OptionError(
                f"document must be 'file', 'line' or 'blank-line', got {self.document!r}"
            )
        text = (self.vocabulary_size, self.text_column, self.document)
        asked = text != (None, None, None) or self.special_tokens or self.separator != AUTO
        if self.tokenizer is None and asked:
            raise OptionError(
                "separator, vocabulary_size, text_column, document and special_tokens need a "
                "tokenizer: pass tokenizer as well"
            )


@dataclass(frozen=True)
class Encoder:
    """Converts text to tokens. Thread-safe.

    Attributes:
        identity: JSON values for the manifest: `name` and, if there is something to hash, `xxh3`.
        vocabulary_size: All tokens are below it.
        separator: The token at the end of every document, or None.
        encode: Returns the tokens of documents, given as UTF-8, with their separators. Raises
            SchemaError, which quotes the beginning of a document that cannot be encoded.
        decode: Returns the text of tokens (n,); PackError if this encoder cannot decode.

    Raises:
        OptionError: The separator is not a token.
    """

    identity: Mapping[str, Any]
    vocabulary_size: int
    separator: int | None
    encode: Callable[[Ragged], Ragged]
    decode: Callable[[NDArray[Any]], str]

    def __post_init__(self) -> None:
        if self.separator is not None and not 0 <= self.separator < self.vocabulary_size:
            raise OptionError(
                f"{self.identity['name']}: the separator {self.separator} is not a token: the "
                f"tokens are 0 to {self.vocabulary_size - 1}"
            )


def _byte_encoder(separator: int | str | None) -> Encoder:
    """Returns an encoder for UTF-8 bytes, 0 to 255; the separator AUTO is 256."""
    number = _BYTES if separator == AUTO else None if separator == NONE else separator
    if isinstance(number, str) or (number is not None and not 0 <= number <= _BYTES):
        raise OptionError(
            f"the separator for bytes must be 'auto' ({_BYTES}), 'none' or a number up to "
            f"{_BYTES}, got {separator!r}"
        )

    def encode(texts: Ragged) -> Ragged:
        values = texts.values.astype(np.uint16)
        if number is None:
            return Ragged(values, texts.offsets)
        ends = np.arange(len(texts) + 1, dtype=np.int64)
        return Ragged(np.insert(values, texts.offsets[1:], number), texts.offsets + ends)

    def decode(tokens: NDArray[Any]) -> str:
        parts = np.split(tokens, np.flatnonzero(tokens >= _BYTES))
        texts = [part[part < _BYTES].astype(np.uint8).tobytes() for part in parts]
        return f"<{_BYTES}>".join(text.decode("utf-8", "replace") for text in texts)

    return Encoder({"name": "bytes"}, _BYTES + (number == _BYTES), number, encode, decode)


def _function_encoder(
    function: Callable[[str], Any], size: int | None, separator: int | str | None
) -> Encoder:
    """Returns an encoder for a function from a str to integers; several threads call it at once."""
    name = getattr(function, "__qualname__", type(function).__name__)
    if size is None:
        raise OptionError(
            f"{name}: pass vocabulary_size=, which cannot be determined from a function; "
            "every token must be below it"
        )
    number = None if separator == NONE else separator
    if isinstance(number, str):
        raise OptionError(
            f"{name}: pass separator=, the number of the token that ends a document, or "
            f"'none'; {separator!r} cannot be looked up in a function"
        )
    end = np.array([] if number is None else [number], np.int64)

    def encode(texts: Ragged) -> Ragged:
        rows = [np.concatenate([_called(function, text, size), end]) for text in strings(texts)]
        lengths = np.array([len(row) for row in rows], np.int64)
        # The empty array is for the case of no rows: concatenate needs at least one array.
        return Ragged.of_lengths(np.concatenate([np.empty(0, np.int64), *rows]), lengths)

    def decode(tokens: NDArray[Any]) -> str:
        raise PackError(f"{name} encodes text as tokens, but cannot decode tokens")

    return Encoder({"name": name}, size, number, encode, decode)


def _called(function: Callable[[str], Any], text: str, size: int) -> NDArray[np.int64]:
    """Returns the tokens that a user's function makes of a text, checked."""
    try:
        found = np.asarray(function(text))
    except Exception as error:  # the user's own code
        raise SchemaError(
            f"the tokenizer failed on {quoted(text)}: {type(error).__name__}: {error}"
        ) from error
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise SchemaError(
            f"the tokenizer must return a sequence of integers, but returned {found.dtype} "
            f"{found.shape} for {quoted(text)}"
        )
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < size:
        raise SchemaError(
            f"the tokenizer returned tokens from {int(found.min())} to {int(found.max())} "
            f"for {quoted(text)}, but the vocabulary has 0 to {size - 1}"
        )
    return found.astype(np.int64)


def strings(texts: Ragged) -> list[str]:
    """Returns UTF-8 as Python strings."""
    buffers = [None, pa.py_buffer(texts.offsets), pa.py_buffer(np.ascontiguousarray(texts.values))]
    found: list[str] = pa.Array.from_buffers(pa.large_utf8(), len(texts), buffers).to_pylist()
    return found


def quoted(text: str) -> str:
    """Returns how messages refer to a document."""
    return f"the document that begins {text[:_QUOTED]!r}"


# --- Hugging Face's package `tokenizers`, which is imported when it is needed ---------------------

_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"  # beside it in a folder; says what ends a text
# Tokens that end a document if no configuration names one. The first one in the vocabulary is used.
_SEPARATORS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "<EOS>",
    "<|im_end|>",
    "[SEP]",
)
_CAUSE = 200  # characters of another package's message


@dataclass(frozen=True)
class _Loaded:
    """A tokenizer that may be changed.

    Attributes:
        tokenizer: A `tokenizers.Tokenizer`.
        identity: As for `Encoder`.
        separator: The token that ends a text, or None if that is not known.
    """

    tokenizer: Any
    identity: Mapping[str, Any]
    separator: str | None = None


def _hugging_face_encoder(
    loaded: _Loaded, separator: int | str | None, size: int | None, special_tokens: bool
) -> Encoder:
    """Returns an encoder for a tokenizer, without truncation, padding and dropout.

    Raises:
        OptionError: There is no such separator, or the vocabulary is larger than stated.
    """
    tokenizer = loaded.tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # BPE dropout is random, so each pack would have other tokens.
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    name = str(loaded.identity["name"])
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    # Numbers may have holes: their count would be too few.
    least = max(vocabulary.values(), default=-1) + 1
    if size is not None and size < least:
        raise OptionError(f"{name} has {least} tokens, more than vocabulary_size={size}")
    end = _separator(name, vocabulary, separator, loaded.separator)
    # Without the places of tokens in the text; older versions do not have it.
    batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def encode(texts: Ragged) -> Ragged:
        """Encodes documents, which the package's own threads share."""
        flat, ends = array("I"), [0]
        for encoding in batch(strings(texts), add_special_tokens=special_tokens):
            ids = encoding.ids
            flat.fromlist(ids)
            # The separator may be among the special tokens of the document.
            if end is not None and not (special_tokens and ids and ids[-1] == end):
                flat.append(end)
            ends.append(len(flat))
        values = np.frombuffer(flat, np.uint32) if flat else np.empty(0, np.uint32)
        return Ragged(values, np.array(ends, np.int64))

    def decode(tokens: NDArray[Any]) -> str:
        return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))

    return Encoder(loaded.identity, size or least, end, encode, decode)


def open_encoder(
    tokenizer: Any,
    separator: int | str | None = AUTO,
    vocabulary_size: int | None = None,
    special_tokens: bool = False,
) -> Encoder:
    """Returns an encoder for the tokenizer options of `fastio.pack`.

    Raises:
        SourceNotFound: A path does not exist.
        PackError: It is not a tokenizer, or cannot be loaded.
        OptionError: The other options do not fit it.
    """
    loaded = _load(tokenizer)
    if loaded is not None:
        return _hugging_face_encoder(loaded, separator, vocabulary_size, special_tokens)
    if special_tokens:
        raise OptionError("special_tokens can only be used with Hugging Face tokenizers")
    if callable(tokenizer):
        return _function_encoder(tokenizer, vocabulary_size, separator)
    if tokenizer != "bytes":
        raise PackError(
            f"{type(tokenizer).__name__!r} is not a tokenizer: give 'bytes', a name, the path "
            f"of a {_FILE}, a tokenizer of tokenizers or transformers, or a function"
        )
    if vocabulary_size is not None:
        raise OptionError("vocabulary_size cannot be used with the tokenizer 'bytes': leave it out")
    return _byte_encoder(separator)


def _load(tokenizer: Any) -> _Loaded | None:
    """Returns a Hugging Face tokenizer by path, by name or as an object; None for others."""
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        return None
    if isinstance(tokenizer, (str, os.PathLike)):
        path = os.path.expanduser(os.fspath(local_path(tokenizer)))
        if os.path.isdir(path):
            return _from_file(os.path.join(path, _FILE), path)
        looks_like_path = path.startswith((".", os.sep)) or path.endswith(".json")
        if os.path.exists(path) or looks_like_path or not isinstance(tokenizer, str):
            return _from_file(path, None)
        return _from_name(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "encode_batch") or not hasattr(backend, "to_str"):
        return None
    name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    ends = getattr(tokenizer, "eos_token", None)
    return _copied(backend, _last_name(name), ends)


def _from_file(path: str, folder: str | None) -> _Loaded:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        inside = f"the folder {folder} has no {_FILE}: " if folder is not None else ""
        raise SourceNotFound(f"the tokenizer cannot be read: {inside}{error}") from error
    package = _package(path)
    try:
        tokenizer = package.Tokenizer.from_buffer(data)
    except Exception as error:  # the package has no errors of its own
        raise PackError(
            f"{path} is not a tokenizer: expected a {_FILE} of Hugging Face's tokenizers "
            f"({str(error)[:_CAUSE]})"
        ) from error
    identity = {
        "name": _last_name(folder or path),
        "xxh3": xxhash.xxh3_64(data).hexdigest(),
    }
    return _Loaded(tokenizer, identity, None if folder is None else _configured(folder))


def _last_name(path: str) -> str:
    """Returns the last part of a path, which is the same for all spellings of the path."""
    return os.path.basename(os.path.abspath(path))


def _from_name(name: str) -> _Loaded:
    package = _package(name)
    try:
        tokenizer = package.Tokenizer.from_pretrained(name)
    except Exception as error:  # any of several packages' own
        cause = " ".join(str(error).split())[:_CAUSE]
        raise PackError(
            f"the tokenizer {name!r} is neither a local file or folder, nor could it be "
            f"downloaded from the Hugging Face Hub ({type(error).__name__}: {cause}): check "
            f"the name and the network, or give the path of its {_FILE}"
        ) from error
    return _copied(tokenizer, name, None)


def _copied(tokenizer: Any, name: str, ends: Any) -> _Loaded:
    """Returns a copy, so that the caller's tokenizer is not changed."""
    try:
        text = tokenizer.to_str()
    except Exception as error:  # the package has no errors of its own
        raise PackError(
            f"the tokenizer {name} has parts written in Python, which cannot be copied: give a "
            f"function that calls it instead ({str(error)[:_CAUSE]})"
        ) from error
    copy = _package(name).Tokenizer.from_str(text)
    identity = {"name": name, "xxh3": xxhash.xxh3_64(text.encode()).hexdigest()}
    return _Loaded(copy, identity, ends if isinstance(ends, str) else None)


def _package(name: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        purpose = f"encode text with {name!r}"
        raise PackageMissing("tokenizers", purpose, "fastio[tokens]", error) from error
    return tokenizers


def _configured(folder: str) -> str | None:
    """Returns the token that ends a text, according to a folder's configuration."""
    try:
        with open(os.path.join(folder, _CONFIG), encoding="utf-8") as file:
            token = json.load(file).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None  # it is optional
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _separator(
    name: str, vocabulary: Mapping[str, int], wanted: int | str | None, known: str | None
) -> int | None:
    if wanted is None or wanted == NONE or isinstance(wanted, int):
        return wanted if isinstance(wanted, int) else None
    candidates = (known, *_SEPARATORS) if wanted == AUTO else (wanted,)
    for token in candidates:
        if token is not None and token in vocabulary:
            return vocabulary[token]
    if wanted == AUTO:
        raise OptionError(
            f"{name} has none of the tokens {' '.join(_SEPARATORS)} that could end a document: "
            "set separator (--separator) to a token, its number, or 'none'"
        )
    raise OptionError(f"the separator {wanted!r} is not a token of {name}")
