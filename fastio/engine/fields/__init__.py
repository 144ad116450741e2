"""The fields of a batch: one reader for each kind of field.

All readers have the same verbs (see `Reader`): `submit` finds where the rows of a batch lie, by
asking the dataset, and passes the reads to threads; `finish` returns the values once they are done.

| reader | fields | threads |
|---|---|---|
| `ImageReader` | an image field | native; Python with Pillow for foreign formats |
| `ImageListReader` | a field of lists of images | as `ImageReader` |
| `ColumnReader` | all fields of fixed width | native |
| `SpanReader` | a field whose rows differ in size, in local shards | native |
| `SoundReader` | a field of sound files that are decoded | Python |
| `ValueReader` | all others | none: the thread that submits the batch |
"""

from __future__ import annotations

# isort: off
from collections.abc import Sequence

from fastio.engine.fields.cold import (
    ColdRows as ColdRows,
    ReadAheadPlan as ReadAheadPlan,
    windows_of as windows_of,
)
from fastio.engine.fields.columns import (
    ArrayColumns,
    ColumnReader as ColumnReader,
    Columns as Columns,
)
from fastio.engine.fields.image_files import ImageSource as ImageSource
from fastio.engine.fields.image_lists import ImageListReader as ImageListReader
from fastio.engine.fields.images import ImageReader as ImageReader
from fastio.engine.fields.reader import Reader as Reader, Work as Work
from fastio.engine.fields.sound import SoundReader as SoundReader
from fastio.engine.fields.spans import SpanReader as SpanReader
from fastio.engine.fields.values import ValueReader as ValueReader
from fastio.engine.ragged import is_ragged
from fastio.engine.settings import EngineSettings
from fastio.engine.threads import Threads
from fastio.packed.rows import Rows
from fastio.schema import PICTURES, Image, Images
from fastio.stage import Stager


def make_readers(
    dataset: Rows,
    names: Sequence[str],
    settings: EngineSettings,
    threads: Threads,
    stager: Stager | None,
) -> list[Reader]:
    """Returns the readers that together read some fields, in the order in which they submit.

    Args:
        dataset: the dataset, which is asked what it can.
        names: names of the fields.
        settings: settings of the engine.
        threads: threads of the engine, which need not be started.
        stager: fetches the blocks of a remote dataset.

    Raises:
        TransformError: a field cannot be decoded as the settings say.
    """
    kinds = dataset.schema.fields
    found: list[Reader] = [
        ImageReader(dataset, name, settings, threads, stager)
        for name in names
        if isinstance(kinds[name], Image)
    ]
    found += [
        ImageListReader(dataset, name, settings, threads, stager)
        for name in names
        if isinstance(kinds[name], Images)
    ]
    layout = dataset.fixed_columns(names)
    if layout is not None:
        columns = Columns(layout, settings.resident)
        found.append(ColumnReader(dataset, columns, settings, threads))
    if dataset.array_columns(names):
        found.append(ColumnReader(dataset, ArrayColumns(dataset, names), settings, threads))
    for name in names:
        if isinstance(kinds[name], PICTURES):
            continue
        rows = dataset.ragged_rows(name) if is_ragged(kinds[name]) else None
        if rows is not None:
            found.append(SpanReader(dataset, rows, settings, threads))
        elif name in settings.audio:
            found.append(SoundReader(dataset, name, settings, threads))
    read = {name for reader in found for name in reader.fields}
    others = [n for n in names if n not in read and not isinstance(kinds[n], Image)]
    return [*found, ValueReader(dataset, others, settings)] if others else found
