"""Tokenizers of the package `tokenizers`, which is loaded when one is asked for."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastio.errors import PackError, SourceNotFound
from fastio.pack.tokens.encoders import (
    AUTO,
    NONE,
    ByteEncoder,
    CallableEncoder,
    Encoder,
    check_separator,
    strings,
)
from fastio.sources.table import Ragged

_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"  # beside it in a folder; says what ends a text
# What ends a document, in vocabularies without such a file: the first of these that is there.
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


class HuggingFaceEncoder:
    """A `tokenizers.Tokenizer`, without truncation, padding and dropout; see `open_encoder`.

    Raises:
        PackError: There is no such separator, or the vocabulary is larger than stated.
    """

    def __init__(
        self,
        loaded: _Loaded,
        separator: int | str | None,
        vocabulary_size: int | None,
        special_tokens: bool,
    ) -> None:
        tokenizer = loaded.tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):
            tokenizer.model.dropout = None
        name = str(loaded.identity["name"])
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        # Numbers may have holes: their count would be too few.
        size = max(vocabulary.values(), default=-1) + 1
        if vocabulary_size is not None and vocabulary_size < size:
            raise PackError(
                f"{name} has {size} tokens, more than vocabulary_size={vocabulary_size}"
            )
        self.identity = loaded.identity
        self.vocabulary_size = vocabulary_size or size
        self.separator = _separator(name, vocabulary, separator, loaded.separator)
        check_separator(name, self.separator, self.vocabulary_size)
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        # Without the places of tokens in the text; older versions do not have it.
        self._encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def encode(self, texts: Ragged) -> Ragged:
        """See `Encoder`; the package's own threads share the documents."""
        flat, ends = array("I"), [0]
        encodings = self._encode(strings(texts), add_special_tokens=self._special_tokens)
        for encoding in encodings:
            ids = encoding.ids
            flat.fromlist(ids)
            if self.separator is not None and not self._is_ended(ids):
                flat.append(self.separator)
            ends.append(len(flat))
        values = np.frombuffer(flat, np.uint32) if flat else np.empty(0, np.uint32)
        return Ragged(values, np.array(ends, np.int64))

    def decode(self, tokens: NDArray[Any]) -> str:
        """See `Encoder`; special tokens are shown."""
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False))

    def _is_ended(self, ids: list[int]) -> bool:
        """Returns whether the separator is among the special tokens of the document."""
        return self._special_tokens and bool(ids) and ids[-1] == self.separator


def open_encoder(
    tokenizer: Any,
    separator: int | str | None = AUTO,
    vocabulary_size: int | None = None,
    special_tokens: bool = False,
) -> Encoder:
    """Returns an encoder for the tokenizer options of `fastio.pack`.

    Raises:
        SourceNotFound: A path does not exist.
        PackError: It is not a tokenizer, cannot be loaded, or the other options do not fit it.
    """
    loaded = _load(tokenizer)
    if loaded is not None:
        return HuggingFaceEncoder(loaded, separator, vocabulary_size, special_tokens)
    if special_tokens:
        raise PackError("special_tokens are those of Hugging Face tokenizers, and this is none")
    if callable(tokenizer):
        return CallableEncoder(tokenizer, vocabulary_size, separator)
    if tokenizer != "bytes":
        raise PackError(
            f"{type(tokenizer).__name__!r} is no tokenizer: give 'bytes', a name, the path of a "
            f"{_FILE}, a tokenizer of tokenizers or transformers, or a function"
        )
    if vocabulary_size is not None:
        raise PackError("the vocabulary of bytes has its size: leave vocabulary_size out")
    return ByteEncoder(separator)


def _load(tokenizer: Any) -> _Loaded | None:
    """Returns a Hugging Face tokenizer by path, by name or as an object; None for others."""
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        return None
    if isinstance(tokenizer, (str, os.PathLike)):
        path = os.path.expanduser(os.fspath(tokenizer))
        if os.path.isdir(path):
            return _from_file(os.path.join(path, _FILE), path)
        looks_like_path = path.startswith((".", os.sep)) or path.endswith(".json")
        if os.path.exists(path) or looks_like_path or not isinstance(tokenizer, str):
            return _from_file(path, None)
        return _from_name(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "encode_batch") or not hasattr(backend, "to_str"):
        return None
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    ends = getattr(tokenizer, "eos_token", None)
    return _copied(backend, os.path.basename(str(name)), ends)


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
            f"{path} is no tokenizer: a {_FILE} of Hugging Face's tokenizers is expected "
            f"({str(error)[:_CAUSE]})"
        ) from error
    identity = {
        "name": os.path.basename(folder or path) or _FILE,
        "xxh3": xxhash.xxh3_64(data).hexdigest(),
    }
    return _Loaded(tokenizer, identity, None if folder is None else _configured(folder))


def _from_name(name: str) -> _Loaded:
    package = _package(name)
    try:
        tokenizer = package.Tokenizer.from_pretrained(name)
    except Exception as error:  # any of several packages' own
        cause = " ".join(str(error).split())[:_CAUSE]
        raise PackError(
            f"the tokenizer {name!r} is no file or folder here, and could not be fetched from the "
            f"Hugging Face Hub ({type(error).__name__}: {cause}): check the name and the network, "
            f"or give the path of its {_FILE}"
        ) from error
    return _copied(tokenizer, name, None)


def _copied(tokenizer: Any, name: str, ends: Any) -> _Loaded:
    """Returns a copy, so that the caller's tokenizer is not changed."""
    try:
        text = tokenizer.to_str()
    except Exception as error:  # the package has no errors of its own
        raise PackError(
            f"the tokenizer {name} has parts that are written in Python and cannot be copied: give "
            f"a function that calls it instead ({str(error)[:_CAUSE]})"
        ) from error
    copy = _package(name).Tokenizer.from_str(text)
    identity = {"name": name, "xxh3": xxhash.xxh3_64(text.encode()).hexdigest()}
    return _Loaded(copy, identity, ends if isinstance(ends, str) else None)


def _package(name: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise PackError(
            f"the tokenizer {name!r} needs the package tokenizers: pip install 'fastio[tokens]'"
        ) from error
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
        raise PackError(
            f"{name} has none of the tokens {' '.join(_SEPARATORS)} that could end a document: say "
            "which it is with separator (--separator): a token, its number, or none"
        )
    raise PackError(f"the separator {wanted!r} is no token of {name}")
