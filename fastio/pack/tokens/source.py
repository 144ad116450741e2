"""Documents as a source for the packer of tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from fastio.errors import PackError, SchemaError
from fastio.pack.items import AGAIN
from fastio.pack.row_sources import Parts, RowSource, memory_table
from fastio.pack.tokens.encoders import TOKENS, Encoder, TokenOptions, open_encoder
from fastio.pack.tokens.files import find_texts, text_kind
from fastio.pack.tokens.readers import JsonLines, PlainText, Samples
from fastio.schema import TOKEN_DTYPES, Field, Schema, Tokens, is_fixed_width
from fastio.sources.table.columns import Converted
from fastio.sources.table.cuts import Cut
from fastio.sources.table.leaves import is_text
from fastio.sources.table.objects import stamp
from fastio.sources.table.opening import open_table
from fastio.sources.table.options import MASK, TableOptions
from fastio.sources.table.reading import Origin, Table
from fastio.sources.table.tables import Piece, Tables
from fastio.sources.table.values import Ragged

# Columns that may hold the text: the first of these that is there, or the only one of strings.
TEXT_COLUMNS = ("text", "content", "document")
# What is encoded at a time: enough for the threads of an encoder, and little memory for what it
# makes of it, which is a hundred bytes a token.
_PIECE_ROWS = 256
_PIECE_BYTES = 512 << 10
_NO_PLAIN_TEXT = "document can only be used with .txt files, and there are none"


class _Documents:
    """The documents of tables; empty ones are left out and counted in pieces.

    Args:
        tables: The text, and the columns to keep beside it.
        name, text: The name of the source, for messages, and the column of the text.
        null: The text that replaces null, or None.
        splits: Whether messages tell rows apart, because other columns are kept.
    """

    def __init__(
        self, tables: Tables, name: str, text: str, null: Any = None, splits: bool = False
    ) -> None:
        self._name = name
        self._tables = tables
        self._text = text
        self._null = null
        self._splits = splits

    def pieces(self, start: int) -> Iterator[Piece]:
        """Yields the documents from number `start` on, empty ones not counted.

        Raises:
            ShardCorrupt: a file is damaged.
            SchemaError: a text is null.
            PackError: there are less documents than `start`.
        """
        seen = 0
        # Reads from the first row, because it is not known how many rows before document `start`
        # are empty.
        for piece in self._documents(self._tables.pieces(0, _PIECE_ROWS)):
            before, seen = seen, seen + piece.rows
            if before >= start:
                yield piece
            elif seen > start:
                # The empty documents before it belong to the unit in which it begins.
                (origin, batch), skipped = piece.parts[0], start - before
                yield Piece(start, [(origin.after(skipped), batch.slice(skipped))])
        if seen < start:
            raise PackError(
                f"cannot resume: {self._name} has {seen} documents, but {start} were packed "
                f"already; {AGAIN}"
            )

    def unit(self, cut: Cut, number: int) -> Iterator[Piece]:
        """Yields the documents of a unit of the tables, see `pieces`."""
        return self._documents(self._tables.unit(cut, number, _PIECE_ROWS))

    def beginning(self, cut: Cut, number: int, most: int) -> Iterator[Piece]:
        """Yields documents of the beginning of a unit, see `Tables.beginning`."""
        return self._documents(self._tables.beginning(cut, number, _PIECE_ROWS, most))

    def _documents(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yields all rows that have text, cut by size; at last, how many empty ones follow."""
        seen = empty = 0
        for piece in pieces:
            for origin, batch in piece.parts:
                texts = self._texts(origin, batch)
                has_text = pc.greater(pc.binary_length(texts), 0)
                filled = int(pc.sum(has_text).as_py() or 0)
                empty += batch.num_rows - filled
                for at, rows in self._filled(origin, batch, has_text, filled):
                    for begin, end in self._cuts(rows):
                        part = rows.slice(begin, end - begin)
                        yield Piece(seen, [(at.after(begin), part)], left_out=empty)
                        seen, empty = seen + part.num_rows, 0
        if empty:
            yield Piece(seen, [], left_out=empty)

    def _filled(
        self, origin: Origin, batch: pa.RecordBatch, has_text: pa.Array, filled: int
    ) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Yields the rows of a batch that have text, of which there are `filled`."""
        if filled == batch.num_rows:
            yield origin, batch
        elif filled and not self._splits:
            yield origin, batch.filter(has_text)
        elif filled:
            yield from _runs(origin, batch, has_text.to_numpy(zero_copy_only=False))

    def _texts(self, origin: Origin, batch: pa.RecordBatch) -> pa.Array:
        texts = batch.column(self._text).cast(pa.large_utf8())
        if texts.null_count and self._null is not None:
            return texts.fill_null(self._null)
        if texts.null_count:
            row = origin.row(int(texts.is_null().to_numpy(zero_copy_only=False).argmax()))
            raise SchemaError(
                f"{origin.column(self._text)}, row {row}: the text is null; remove the row, or "
                f"give a replacement with nulls={{{self._text!r}: ''}}"
            )
        return texts

    def _cuts(self, batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
        """Yields ranges of all rows, each with about _PIECE_BYTES of text."""
        lengths = pc.binary_length(batch.column(self._text).cast(pa.large_utf8()))
        lengths = pc.fill_null(lengths, 0)
        ends = np.cumsum(np.asarray(lengths, np.int64))
        begin = 0
        while begin < batch.num_rows:
            before = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, before + _PIECE_BYTES, side="right"))
            end = min(max(end, begin + 1), batch.num_rows)
            yield begin, end
            begin = end


def open_documents(src: Any, how: TokenOptions, options: TableOptions) -> RowSource:
    """Returns the documents of what `fastio.pack` was given, with a tokenizer.

    Args:
        src: Files of text: a path, a folder, a pattern or a list of these; Arrow data; or an
            iterable of strings or dicts.
        how: How text becomes tokens.
        options: Which columns are kept beside it, and as which fields.

    Raises:
        SourceNotFound: A path does not exist or has no text.
        PackError: There is nothing to pack, or no such tokenizer.
        SchemaError: There is no such column, or a column cannot be kept.
        ShardCorrupt: A file is damaged.
    """
    encoder = open_encoder(how.tokenizer, how.separator, how.vocabulary_size, how.special_tokens)
    field = _field(encoder, options.dtypes.get(TOKENS))
    paths = find_texts(src)
    found, text, name = _open_source(src, paths, how)
    wanted = replace(
        options,
        columns=tuple(dict.fromkeys((text, *(options.columns or ())))),
        dtypes={name: dtype for name, dtype in options.dtypes.items() if name != TOKENS},
    )
    if wanted.nulls.get(text) == MASK:
        raise SchemaError(
            f"nulls of the text column {text!r} cannot be masked: give a replacement such as ''"
        )
    for table in found:
        _text_column(table, text)
    tables = Tables(found, wanted)
    of_text = text.replace(".", "_")
    keeps_text = bool({text, of_text}.intersection(options.columns or ()))
    kept = {n: kind for n, kind in tables.schema.fields.items() if keeps_text or n != of_text}
    drops = set() if keeps_text else {of_text}

    def convert(
        batch: pa.RecordBatch, origin: Origin, out: Mapping[str, NDArray[Any]] | None = None
    ) -> Converted:
        """Returns rows as fields: tokens, and the other columns."""
        converted = tables.conversion.convert(batch, origin, out)
        texts = converted.fields[of_text]
        assert isinstance(texts, Ragged)
        try:
            tokens = encoder.encode(texts)
        except SchemaError as error:
            raise SchemaError(f"{origin.file}: {error}") from error
        values = tokens.values.astype(np.dtype(field.dtype), copy=False)
        others = {n: rows for n, rows in converted.fields.items() if n not in drops}
        columns = [column for column in converted.columns if column.field not in drops]
        return Converted({TOKENS: Ragged(values, tokens.offsets), **others}, columns)

    documents = _Documents(tables, name, text, wanted.nulls.get(text), bool(kept))
    identity = {
        "tokenizer": dict(encoder.identity),
        "special_tokens": how.special_tokens,
        "text_column": text,
        "document": how.document,
        **replace(wanted, columns=options.columns).to_json(),
    }
    return RowSource(
        name,
        _schema(field, kept, tables.schema.vocabularies),
        tables.total,
        [pair for pair in tables.conversion.columns() if pair[0] not in drops],
        convert,
        documents.pieces,
        stamp(paths) if paths else xxhash.xxh3_64().hexdigest(),
        {"tokens": identity},
        lambda left_out: {"tokens": {**identity, "empty": left_out}},
        Parts(tables.cut, documents.unit, documents.beginning),
        counted="documents",
    )


def _open_source(
    src: Any, paths: Sequence[str] | None, how: TokenOptions
) -> tuple[list[Table], str, str]:
    """Returns tables that have their text in one column, the column, and the source's name."""
    if paths is not None:
        spoken = src if isinstance(src, (str, os.PathLike)) else paths[0]
        return *_open_files(paths, how), os.path.basename(os.path.abspath(os.fspath(spoken)))
    if how.document is not None:
        raise PackError(_NO_PLAIN_TEXT)
    table = _in_memory(src, how)
    return [table], _text_column(table, how.text_column), table.name


def _open_files(paths: Sequence[str], how: TokenOptions) -> tuple[list[Table], str]:
    """Returns files as tables that have their text in one column, and its name."""
    if how.document is not None and all(text_kind(path) != "text" for path in paths):
        raise PackError(_NO_PLAIN_TEXT)
    tables: dict[str, Table] = {}
    for path in paths:
        kind = text_kind(path)
        if kind != "text":
            tables[path] = JsonLines(path) if kind == "jsonl" else open_table(path)
    filled = [table for table in tables.values() if not getattr(table, "is_empty", False)]
    text = _text_column(filled[0], how.text_column) if filled else how.text_column or "text"
    found: list[Table] = []
    for path in paths:
        table = tables.get(path) or PlainText(path, how.document or "file", text)
        if isinstance(table, JsonLines):
            table.text = text
            if table.is_empty:
                continue
        found.append(table)
    if not found:
        raise PackError(f"there is nothing to pack: {paths[0]} has no documents")
    return found, text


def _in_memory(src: Any, how: TokenOptions) -> Table:
    """Returns Arrow data or samples as a table."""
    name = type(src).__name__
    table = memory_table(src, name)
    if table is not None:
        return table
    if not hasattr(src, "__iter__") and hasattr(src, "__getitem__") and hasattr(src, "__len__"):
        src = map(src.__getitem__, range(len(src)))
    if isinstance(src, (bytes, Mapping)) or not hasattr(src, "__iter__"):
        raise PackError(
            f"a {name} is not a source of documents: give text files, or an iterable of str or "
            "of dicts that contain one"
        )
    samples = Samples(name, src, how.text_column or "text")
    if samples.is_empty:
        raise PackError(f"there is nothing to pack: {name} has no documents")
    return samples


def _text_column(table: Table, wanted: str | None) -> str:
    """Returns the column that holds the text; SchemaError if that is not clear."""
    schema = table.schema
    strings = [column.name for column in schema if is_text(column.type)]
    if wanted is not None:
        if wanted not in schema.names:
            raise SchemaError(
                f"{table.name} has no column {wanted!r}; it has {', '.join(schema.names)}"
            )
        found = [wanted]
    else:
        found = [name for name in TEXT_COLUMNS if name in schema.names] or strings
        if not found or (len(found) > 1 and found[0] not in TEXT_COLUMNS):
            raise SchemaError(
                f"{table.name} has no column {', '.join(TEXT_COLUMNS)}, and "
                f"{len(strings) or 'no'} other columns of strings ({', '.join(schema.names)}): "
                "name the column of text with text_column (--text-column)"
            )
    if found[0] not in strings:
        raise SchemaError(
            f"{table.name}: column {found[0]!r} is {schema.field(found[0]).type}, but text "
            "must be strings"
        )
    return found[0]


def _field(encoder: Encoder, dtype: str | None) -> Tokens:
    """Returns the field for tokens, by default of the smallest dtype that holds them."""
    if dtype is None:
        fitting = (d for d in TOKEN_DTYPES if np.iinfo(d).max >= encoder.vocabulary_size - 1)
        dtype = next(fitting, TOKEN_DTYPES[-1])
    return Tokens(dtype, encoder.vocabulary_size, encoder.separator)


def _schema(
    field: Tokens, kept: Mapping[str, Field], vocabularies: Mapping[str, tuple[str, ...]]
) -> Schema:
    if TOKENS in kept:
        raise SchemaError(f"a column {TOKENS!r} cannot be kept beside the field {TOKENS!r}")
    records = any(is_fixed_width(kind) for kind in kept.values())
    return Schema({TOKENS: field, **kept}, "dict", None, records, vocabularies)


def _runs(
    origin: Origin, batch: pa.RecordBatch, wanted: NDArray[np.bool_]
) -> Iterator[tuple[Origin, pa.RecordBatch]]:
    """Yields the wanted rows as consecutive parts, so that messages can number them."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]).astype(np.int8)))
    for begin, end in edges.reshape(-1, 2).tolist():
        yield origin.after(begin), batch.slice(begin, end - begin)
