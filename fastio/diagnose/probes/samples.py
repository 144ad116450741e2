"""Probes of samples: properties of images, tables and tokens, and how fast they are loaded.

They are loaded from memory, as they are, and from a part that is packed as a trial.
"""

from __future__ import annotations

import io
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from fastio.diagnose.facts import ImageFacts, StepFacts, TableFacts, Trial
from fastio.diagnose.imagesteps import ImageSteps, PythonStep, decoded
from fastio.diagnose.probes.data import Context, Images, first_pieces, native_file, rows_of
from fastio.diagnose.probes.rates import (
    TURNS,
    Measure,
    Part,
    images_part,
    in_turns,
    loader_part,
    rates_of,
    room,
)
from fastio.pack import pack
from fastio.packed import Dataset
from fastio.sources import open as open_data
from fastio.sources.table.names import table_kind
from fastio.transforms import PerSample
from fastio.views.windows import TokenWindows

TrialCodec = Literal["blocks", "raw"]

_SAMPLED = 192
_SAMPLED_BYTES = 64 << 20
_HEADERS_S = 4.0
_TRIED_PIXELS = 100e6  # total pixels of the images that are shrunk as a trial
_LARGER = 2.0  # images this many times larger than a crop needs are shrunk as a trial
_ORIENTATION = 0x0112  # EXIF tag
_PILLOW = "decoding with Pillow"


def packed_trial(
    samples: Any,
    nbytes: float,
    folder: Path,
    codec: TrialCodec | None = None,
    max_side: int | None = None,
) -> Trial | None:
    """Packs a part of the data as a trial, whose rate is measured later.

    Args:
        samples: the bytes of image files, of which bad ones are skipped, or a table.
        nbytes: the size of the samples as they are stored.
        folder: where the packed data goes.
        codec: the codec of images; None for a table.
        max_side: longer side that images are resized to; None if they are not.

    Returns:
        The trial; None if nothing could be read.

    Raises:
        FastioError, OSError: they cannot be packed.
    """
    on_error: Literal["skip", "raise"] = "skip" if codec else "raise"
    report = pack(samples, folder, codec=codec, max_side=max_side, on_error=on_error)
    share = report.bytes / max(1.0, nbytes)
    return Trial(codec or "", max_side, report.rows, 0.0, share) if report.rows else None


# --- Images ---------------------------------------------------------------------------------------


def image_facts(context: Context) -> ImageFacts | None:
    """Returns the facts and decoding rates of a local dataset's images, or None if it has none."""
    with ExitStack() as open_now:
        images = open_now.enter_context(context.data.images(_SAMPLED))
        if images is None:
            return None
        # As a whole: loaders read what crops need.
        read = [piece.read() for piece in first_pieces(images.pieces(), _SAMPLED_BYTES, _HEADERS_S)]
        images = replace(images, rows=images.rows[: len(read)])
        files = tuple(read) if images.are_files else ()
        facts = headers(files) if files else _stored_headers(context, images)
        facts = replace(facts, threads=context.cores)
        tries = _tries(files, facts, context, open_now) if files else []
        return _measured(images, files, facts, tries, context)


@dataclass(frozen=True)
class _Try:
    """Images that were packed as a trial.

    Attributes:
        name: what the trial is called in notes.
        count: the number of images: the first ones of the sample.
        trial: what is known of the trial before its rate is measured.
        images: the packed images.
    """

    name: str
    count: int
    trial: Trial
    images: Images


def _measured(
    images: Images,
    files: Sequence[bytes],
    facts: ImageFacts,
    tries: Sequence[_Try],
    context: Context,
) -> ImageFacts:
    """Returns the facts with the rates, which are measured in turns."""
    # All measurements are made in turns, so that a busy machine affects all rates alike.
    steps, threads = context.steps, facts.threads
    used = min(context.use.threads or threads, threads)
    measures: dict[str, Measure] = {}

    def loading(count: int, threads: int) -> str:
        """Adds a measurement of the first images of the sample, and returns its name."""
        name = f"decoding {count} images with {threads} threads"
        few = replace(images, rows=images.rows[:count])
        measures.setdefault(name, partial(images_part, few, threads, steps.native))
        return name

    one, mine, most = (loading(len(images.rows), count) for count in (1, used, threads))
    before = {each.name: loading(each.count, threads) for each in tries}
    packed = {each.name: partial(images_part, each.images, threads, steps.native) for each in tries}
    measures |= packed
    if files and (steps.python or not steps.by_user):
        measures[_PILLOW] = partial(pillow_part, files, steps)
    per_sample = any(isinstance(step, PerSample) for step in steps.native)
    # Loaders with functions per sample start processes, which takes a while.
    parts = in_turns(measures, context.attempts, _TURNS if per_sample else TURNS)
    rates = rates_of(parts)
    augment_s, busy_s = parts[most].spent if most in parts else (0.0, 0.0)
    return replace(
        facts,
        rate=rates.get(most),
        one_thread_rate=rates.get(one),
        used=(used, rates[mine]) if mine in rates else None,
        pillow_rate=rates.get(_PILLOW),
        steps=step_facts(steps, parts.get(_PILLOW)),
        augment_share=augment_s / busy_s if busy_s else 0.0,
        trials=tuple(
            replace(each.trial, rate=rates[each.name], before_rate=rates.get(before[each.name]))
            for each in tries
            if each.name in rates
        ),
    )


def headers(files: Sequence[bytes]) -> ImageFacts:
    """Returns the facts in image file headers. Files that Pillow cannot open are left out."""
    end_s = time.monotonic() + _HEADERS_S
    formats: Counter[str] = Counter()
    sizes: list[tuple[int, int]] = []
    nbytes = progressive = cmyk = rotated = 0
    for data in files:
        if time.monotonic() > end_s:
            break
        try:
            with Image.open(io.BytesIO(data)) as image:
                formats[image.format or "unknown"] += 1
                sizes.append(image.size)
                progressive += bool(image.info.get("progressive"))
                cmyk += image.mode == "CMYK"
                rotated += image.getexif().get(_ORIENTATION, 1) not in (0, 1)
        except (OSError, ValueError, SyntaxError):
            continue
        nbytes += len(data)
    count = len(sizes)
    if not count:
        return ImageFacts(0)
    return ImageFacts(
        count,
        {name: number / count for name, number in formats.most_common()},
        progressive / count,
        cmyk / count,
        rotated / count,
        mean_bytes=nbytes / count,
        **_sizes(np.array(sizes)),
    )


def _stored_headers(context: Context, images: Images) -> ImageFacts:
    """Returns the facts of images that are no files, from the dataset's columns."""
    sizes = np.stack([images.reads.height, images.reads.width], axis=1).astype(np.int64)
    return ImageFacts(len(sizes), mean_bytes=context.data.facts.sample_bytes, **_sizes(sizes))


def _sizes(sizes: Any) -> dict[str, Any]:
    """Returns the facts that follow from the sides of images (n, 2)."""
    return {
        "mean_pixels": float(np.mean(sizes.prod(axis=1))),
        "short_side": round(float(np.median(sizes.min(axis=1)))),
        "long_side": round(float(np.median(sizes.max(axis=1)))),
    }


def pillow_part(files: Sequence[bytes], steps: ImageSteps, seconds: float) -> Part | None:
    """Measures how fast one process decodes with Pillow and runs the steps in Python.

    Files that cannot be decoded are left out.

    Returns:
        The number of samples, with the seconds of decoding and of each step; None if no file can be
        decoded.
    """
    left, functions = deque(files), [step.function for step in steps.python]
    spent = [0.0] * (1 + len(functions))
    threads, done = torch.get_num_threads(), 0
    torch.set_num_threads(1)  # as in a worker of DataLoader
    try:
        began_s = time.perf_counter()
        while left and (not done or time.perf_counter() < began_s + seconds):
            before_s = time.perf_counter()
            try:
                value: Any = decoded(left[0])
            except Exception:  # Pillow's errors for damaged files have no common class
                left.popleft()
                continue
            left.rotate(-1)
            after_s = time.perf_counter()
            spent[0] += after_s - before_s
            for number, function in enumerate(functions, 1):
                before_s = after_s
                value = function(value)
                after_s = time.perf_counter()
                spent[number] += after_s - before_s
            done += 1
        return Part(done, time.perf_counter() - began_s, tuple(spent)) if done else None
    finally:
        torch.set_num_threads(threads)


def step_facts(steps: ImageSteps, measured: Part | None) -> tuple[StepFacts, ...]:
    """Returns the time of each step, from the result of `pillow_part`; () if there is none."""
    if measured is None:
        return ()
    each = [PythonStep("decode", "decode", decoded), *steps.python]
    return tuple(
        StepFacts(step.name, step.kind, seconds / measured.samples)
        for step, seconds in zip(each, measured.spent, strict=True)
    )


def _tries(
    files: Sequence[bytes], facts: ImageFacts, context: Context, open_now: ExitStack
) -> list[_Try]:
    """Packs the images as they are, and smaller where they are much larger than a crop."""
    codec: TrialCodec = "blocks" if facts.formats.get("JPEG", 0.0) >= 0.5 else "raw"
    wanted: list[tuple[str, int, TrialCodec, int | None]]
    wanted = [(f"packing as {codec}", len(files), codec, None)]
    smaller = 2 * context.use.crop
    if facts.short_side > _LARGER * smaller:
        most = int(_TRIED_PIXELS / max(1.0, facts.mean_pixels))
        side = round(smaller * facts.long_side / max(1, facts.short_side))
        wanted.append(("packing smaller", max(8, most), "blocks", side))
    found = []
    for name, most, kind, max_side in wanted:
        few, folder = files[:most], open_now.enter_context(room(context.use.scratch)) / "packed"
        nbytes = sum(map(len, few))
        trial = context.attempts(name, packed_trial, few, nbytes, folder, kind, max_side)
        if trial is not None:
            dataset = open_now.enter_context(Dataset(folder))
            for field in dataset.schema.image_fields[:1]:  # none where nothing was an image
                images = Images(dataset, field, range(trial.samples))
                found.append(_Try(f"{name}, loaded", len(few), trial, images))
    return found


# --- Tables and tokens ----------------------------------------------------------------------------

_TEXT_BYTES = 64 << 20  # largest size of files that are read into memory as a whole
_TRIED_ROWS = 200_000
_WINDOW = 1024  # tokens of a window
_TURNS = 2  # few, because loaders of files take a while to start
_LEAST_BATCH = 4096  # rows; the cost per batch is small compared to that of so many rows


def table_facts(context: Context) -> TableFacts | None:
    """Returns the layout of local tables or tokens, and how fast their rows are loaded."""
    data, attempts = context.data, context.attempts
    batch_size = max(context.use.batch_size, _LEAST_BATCH)

    def rows(source: Any, most: int) -> Measure:
        return partial(_rows_part, context, source, max(1, min(batch_size, most)))

    packed = data.facts.packed
    if packed or data.facts.kind == "tokens":
        source = open_data(data.part, resident=False if packed else None)
        measure = rows(source, data.facts.rows // 4)
        if data.facts.kind == "tokens":
            windows = TokenWindows(source, _WINDOW)
            measure = partial(_rows_part, context, windows, context.use.batch_size)
        parts = in_turns({"rows": measure}, attempts, _TURNS)
        rate = rates_of(parts).get("rows")
        return TableFacts("packed" if packed else "tokens", threads=context.cores, rate=rate)
    files = [Path(path) for path in data.part]
    kind = table_kind(str(files[0])) or "unknown"
    layout = attempts("the layout", parquet_layout, files) if kind == "parquet" else None
    measures: dict[str, Measure] = {}
    if kind in ("parquet", "arrow") or files[0].stat().st_size < _TEXT_BYTES:
        measures["rows"] = rows([str(path) for path in files], batch_size)
    with room(context.use.scratch) as folder:
        trial = folder / "packed"
        tried = attempts("packing rows", _packed_rows, files, trial) if kind == "parquet" else None
        if tried is not None:
            measures["packed rows"] = rows(open_data(trial, resident=False), tried.samples // 8)
        parts = in_turns(measures, attempts, _TURNS)
    rates = rates_of(parts)
    rate, packed_rate = rates.get("rows"), rates.get("packed rows")
    return replace(
        layout or TableFacts(kind),
        threads=context.cores,
        rate=rate,
        trial=replace(tried, rate=packed_rate, before_rate=rate) if tried and packed_rate else None,
    )


def parquet_layout(files: Sequence[Path]) -> TableFacts:
    """Returns the facts in the footers of Parquet files.

    Raises:
        OSError, pyarrow.ArrowInvalid: a file cannot be read.
    """
    rows: list[int] = []
    nbytes: list[int] = []
    compressions: set[str] = set()
    for path in files:
        about = pq.read_metadata(native_file(path))
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            rows.append(group.num_rows)
            nbytes.append(group.total_byte_size)
        if about.num_row_groups:
            first = about.row_group(0)
            compressions |= {first.column(n).compression for n in range(first.num_columns)}
    schema = pq.read_schema(native_file(files[0]))
    text = [t for t in schema.types if pa.types.is_string(t) or pa.types.is_large_string(t)]
    return TableFacts(
        "parquet",
        columns=len(schema.names),
        row_groups=len(rows),
        group_rows=round(median(rows)) if rows else 0,
        group_bytes=round(median(nbytes)) if nbytes else 0,
        compressions=tuple(sorted(compressions)),
        text_columns=len(text),
    )


def _rows_part(context: Context, source: Any, batch_size: int, seconds: float) -> Part | None:
    """Measures a shuffled loader of rows, or of token windows, which count as documents."""
    from fastio.loader import Loader  # which imports torch

    loader = Loader(source, batch_size, True, num_workers=context.cores, distributed=False)
    windows = context.data.facts.kind == "tokens"
    share = context.data.facts.rows / (len(loader) * batch_size) if windows else 1.0
    # One epoch reads all rows into memory. With few rows, more samples would be many epochs.
    warm = min(max(batch_size, windows * _LEAST_BATCH), len(loader.dataset))
    part = loader_part(loader, seconds, warm_samples=warm)
    return None if part is None else replace(part, samples=part.samples * share)


def _packed_rows(files: Sequence[Path], folder: Path) -> Trial | None:
    """Packs the first rows of Parquet files as a trial, or returns None if there are none."""
    with pq.ParquetFile(native_file(files[0])) as file:
        batch: Any = next(file.iter_batches(batch_size=_TRIED_ROWS), None)
    if batch is None or not batch.num_rows:
        return None
    nbytes = files[0].stat().st_size / rows_of(files[:1]) * batch.num_rows
    return packed_trial(pa.Table.from_batches([batch]), nbytes, folder)
