"""Packing text as tokens: documents in, a field `tokens` out, and what else a row has.

    files, samples -> readers -> tables of text -> source -> encoder -> tokens

`files` finds the files, `readers` sees those that are no tables yet as tables, `source` finds the
text in their rows and leaves out what is empty, `encoders` make tokens of it (`hugging_face` those
of the package `tokenizers`). The packer is that of tables: `fastio.pack.columnar`.
"""

from __future__ import annotations

from fastio.pack.tokens.encoders import AUTO, TOKENS, DocumentUnit, Encoder, TokenOptions
from fastio.pack.tokens.hugging_face import open_encoder
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
