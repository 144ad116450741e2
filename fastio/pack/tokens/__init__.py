"""Packing text as tokens: documents in, a field `tokens` out, and what else a row has.

    files, samples -> readers -> tables of text -> source -> encoder -> tokens

`readers` finds the files, and reads those that are not tables yet as tables; `source` finds the
text in their rows and leaves out empty documents; `encoders` convert it to tokens. The packer is
that of tables: `fastio.pack.tables`.
"""

from __future__ import annotations
