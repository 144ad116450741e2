"""What is wanted of text that is packed as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastio.errors import PackError
from fastio.pack.tokens.encoders import AUTO

TOKENS = "tokens"  # the field's name
DocumentUnit = Literal["file", "line", "blank-line"]


@dataclass(frozen=True)
class TokenOptions:
    """How text becomes tokens; `fastio.pack` says what each of them means.

    Raises:
        PackError: one of them without a tokenizer, or a unit of documents that there is not.
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
