"""Packing text as tokens: documents in, a field `tokens` out, and what else a row has.

    files, samples -> readers -> tables of text -> source -> encoder -> tokens

`readers` finds the files, and reads those that are not tables yet as tables; `source` finds the
text in their rows and leaves out empty documents; `encoders` convert it to tokens. The packer is
that of tables: `fastio.pack.tables`.
"""

from __future__ import annotations

from fastio.pack.tokens.encoders import (
    AUTO,
    TOKENS,
    DocumentUnit,
    Encoder,
    TokenOptions,
    open_encoder,
)
from fastio.pack.tokens.source import open_documents

__all__ = [
    "AUTO",
    "TOKENS",
    "DocumentUnit",
    "Encoder",
    "TokenOptions",
    "open_documents",
    "open_encoder",
]
