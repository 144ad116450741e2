"""Text to tokens: UTF-8 bytes as they are, or any function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import PackError, SchemaError
from fastio.sources.table import Ragged

TOKENS = "tokens"  # the name of the field
DocumentUnit = Literal["file", "line", "blank-line"]
AUTO = "auto"
NONE = "none"
_BYTES = 256
_QUOTED = 40  # characters of a document in a message


@dataclass(frozen=True)
class TokenOptions:
    """How text becomes tokens; see the arguments of `fastio.pack`.

    Raises:
        PackError: An option needs a tokenizer, or the unit of documents is unknown.
    """

    tokenizer: Any = None
    separator: int | str | None = AUTO
    vocabulary_size: int | None = None
    text_column: str | None = None
    document: DocumentUnit | None = None
    special_tokens: bool = False

    def __post_init__(self) -> None:
        if self.document not in (None, "file", "line", "blank-line"):
            raise PackError(
                f"document must be 'file', 'line' or 'blank-line', got {self.document!r}"
            )
        text = (self.vocabulary_size, self.text_column, self.document)
        asked = text != (None, None, None) or self.special_tokens or self.separator != AUTO
        if self.tokenizer is None and asked:
            raise PackError(
                "separator, vocabulary_size, text_column, document and special_tokens say how text "
                "becomes tokens: give a tokenizer too"
            )


class Encoder(Protocol):
    """Converts text to tokens. Thread-safe.

    Attributes:
        identity: JSON values for the manifest: `name` and, if there is something to hash, `xxh3`.
        vocabulary_size: All tokens are below it.
        separator: The token at the end of every document, or None.
    """

    identity: Mapping[str, Any]
    vocabulary_size: int
    separator: int | None

    def encode(self, texts: Ragged) -> Ragged:
        """Returns the tokens of documents, given as UTF-8, with their separators.

        Raises:
            SchemaError: A document cannot be encoded. The message quotes its beginning.
        """
        ...

    def decode(self, tokens: NDArray[Any]) -> str:
        """Returns the text of tokens (n,); PackError if this encoder cannot decode."""
        ...


class ByteEncoder:
    """UTF-8 bytes, 0 to 255; the separator AUTO is 256, the end of a document."""

    def __init__(self, separator: int | str | None = AUTO) -> None:
        number = _BYTES if separator == AUTO else None if separator == NONE else separator
        if isinstance(number, str) or (number is not None and not 0 <= number <= _BYTES):
            raise PackError(
                f"the separator of bytes is 'auto' ({_BYTES}), 'none' or a number up to {_BYTES}, "
                f"got {separator!r}"
            )
        self.separator = number
        self.vocabulary_size = _BYTES + (number == _BYTES)
        self.identity: Mapping[str, Any] = {"name": "bytes"}

    def encode(self, texts: Ragged) -> Ragged:
        """See `Encoder`."""
        values = texts.values.astype(np.uint16)
        if self.separator is None:
            return Ragged(values, texts.offsets)
        ends = np.arange(len(texts) + 1, dtype=np.int64)
        values = np.insert(values, texts.offsets[1:], self.separator)
        return Ragged(values, texts.offsets + ends)

    def decode(self, tokens: NDArray[Any]) -> str:
        """See `Encoder`; the separator is shown as <256>."""
        parts = np.split(tokens, np.flatnonzero(tokens >= _BYTES))
        texts = [part[part < _BYTES].astype(np.uint8).tobytes() for part in parts]
        return f"<{_BYTES}>".join(text.decode("utf-8", "replace") for text in texts)


class CallableEncoder:
    """Any function from a str to a sequence of integers; several threads call it at once."""

    def __init__(
        self,
        function: Callable[[str], Any],
        vocabulary_size: int | None,
        separator: int | str | None,
    ) -> None:
        name = getattr(function, "__qualname__", type(function).__name__)
        if vocabulary_size is None:
            raise PackError(
                f"{name}: give vocabulary_size=, which a function cannot be asked for: every token "
                "is below it"
            )
        number = None if separator == NONE else separator
        if isinstance(number, str):
            raise PackError(
                f"{name}: give separator=, the number of the token that ends a document, or "
                f"'none'; a function does not know what {separator!r} is"
            )
        check_separator(name, number, vocabulary_size)
        self.identity: Mapping[str, Any] = {"name": name}
        self.vocabulary_size = vocabulary_size
        self.separator = number
        self._function = function
        self._end = np.array([] if number is None else [number], np.int64)

    def encode(self, texts: Ragged) -> Ragged:
        """See `Encoder`."""
        rows = [self._tokens(text) for text in strings(texts)]
        lengths = np.array([len(row) for row in rows], np.int64)
        return Ragged.of_lengths(np.concatenate([np.empty(0, np.int64), *rows]), lengths)

    def decode(self, tokens: NDArray[Any]) -> str:
        """Raises PackError: a function cannot be inverted."""
        raise PackError(f"{self.identity['name']} makes tokens of text, and no text of tokens")

    def _tokens(self, text: str) -> NDArray[np.int64]:
        try:
            found = np.asarray(self._function(text))
        except Exception as error:  # the user's own code
            raise SchemaError(
                f"the tokenizer failed at {quoted(text)}: {type(error).__name__}: {error}"
            ) from error
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise SchemaError(
                f"the tokenizer is to give a sequence of integers, and gave {found.dtype} "
                f"{found.shape} for {quoted(text)}"
            )
        if found.size and not 0 <= int(found.min()) <= int(found.max()) < self.vocabulary_size:
            raise SchemaError(
                f"the tokenizer gave tokens from {int(found.min())} to {int(found.max())} for "
                f"{quoted(text)}, and the vocabulary has 0 to {self.vocabulary_size - 1}"
            )
        return np.concatenate([found.astype(np.int64), self._end])


def check_separator(name: str, separator: int | None, vocabulary_size: int) -> None:
    """Raises PackError if a separator is not a token."""
    if separator is not None and not 0 <= separator < vocabulary_size:
        raise PackError(
            f"{name}: the separator {separator} is no token: there are 0 to {vocabulary_size - 1}"
        )


def strings(texts: Ragged) -> list[str]:
    """Returns UTF-8 as Python strings."""
    buffers = [None, pa.py_buffer(texts.offsets), pa.py_buffer(np.ascontiguousarray(texts.values))]
    found: list[str] = pa.Array.from_buffers(pa.large_utf8(), len(texts), buffers).to_pylist()
    return found


def quoted(text: str) -> str:
    """Returns how messages refer to a document."""
    return f"the document that begins {text[:_QUOTED]!r}"
