"""Probes of images: formats and sizes, decoding rates as they are and packed as a trial."""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from PIL import Image

from fastio.diagnose.facts import ImageFacts, Trial
from fastio.diagnose.options import Use
from fastio.diagnose.probes.data import Data, chosen
from fastio.diagnose.probes.rates import (
    Attempts,
    Measure,
    Part,
    images_part,
    in_turns,
    room,
)
from fastio.pack import pack
from fastio.packed import Dataset
from fastio.runtime.files import read_file
from fastio.schema import CODEC_ENCODED, CODEC_JPEG
from fastio.sources.folder import FolderDataset
from fastio.sources.tar.dataset import TarDataset

_SAMPLED = 192
_SAMPLED_BYTES = 64 << 20
_HEADERS_S = 4.0
_TRIED_PIXELS = 100e6  # of all images that are shrunk as a trial
_LARGER = 2.0  # than what a crop needs: worth a try of smaller ones
_ORIENTATION = 0x0112  # of EXIF


@dataclass(frozen=True)
class _Sample:
    """A sample of a dataset's images.

    Attributes:
        dataset: that a loader is given.
        field: of images.
        rows: of it that are loaded: from all over it, in random order, as neighbours are alike.
        files: image files' bytes, of as many; none where images are not stored as files.
    """

    dataset: Any
    field: str
    rows: Sequence[int]
    files: tuple[bytes, ...] = ()


def image_facts(data: Data, use: Use, threads: int, attempts: Attempts) -> ImageFacts | None:
    """Returns the facts and decoding rates of a dataset's images, or None if it has none.

    Args:
        data: on this machine.
        use: how it is loaded.
        threads: most that a loader is measured with.
        attempts: notes what cannot be measured.
    """
    with ExitStack() as open_now:
        index = tempfile.TemporaryDirectory(prefix="fastio-doctor-")
        sample = _sample(data, open_now.enter_context(index))
        if sample is None:
            return None
        if not isinstance(sample.dataset, FolderDataset):
            open_now.callback(sample.dataset.close)
        facts = headers(sample.files) if sample.files else _stored_headers(data, sample)
        if isinstance(sample.dataset, Dataset):  # files were read for their headers
            read = attempts("reading the images", _read_whole, sample)
            sample = replace(sample, rows=sample.rows[: read or len(sample.rows)])
        tries = _tries(sample, facts, use, threads, attempts, open_now)
        return _measured(sample, replace(facts, threads=threads), tries, use, attempts)


def _measured(
    sample: _Sample, facts: ImageFacts, tries: Sequence[_Try], use: Use, attempts: Attempts
) -> ImageFacts:
    """Returns the facts with the rates, which are measured in turns."""
    threads = facts.threads
    used = min(use.threads or threads, threads)

    def loading(images: int, count: int) -> tuple[str, Measure]:
        name, rows = f"decoding {images} images with {count} threads", sample.rows[:images]
        return name, partial(images_part, sample.dataset, sample.field, rows, count, use.crop)

    measures = dict(loading(len(sample.rows), count) for count in (1, used, threads))
    for each in tries:
        measures |= [loading(each.images, threads), (each.name, each.measure)]
    if sample.files:
        measures["decoding with Pillow"] = partial(pillow_part, sample.files, use.crop)
    rates = in_turns(measures, attempts)

    def rate(images: int, count: int) -> float | None:
        return rates.get(loading(images, count)[0])

    used_rate = rate(len(sample.rows), used)
    return replace(
        facts,
        rate=rate(len(sample.rows), threads),
        one_thread_rate=rate(len(sample.rows), 1),
        used=None if used_rate is None else (used, used_rate),
        pillow_rate=rates.get("decoding with Pillow"),
        trials=tuple(
            replace(each.trial, rate=rates[each.name], before_rate=rate(each.images, threads))
            for each in tries
            if each.name in rates
        ),
    )


def _read_whole(sample: _Sample) -> int:
    """Reads packed images into the page cache as a whole; loaders read what crops need.

    Returns:
        How many there was time for, at least one.
    """
    end_s = time.monotonic() + _HEADERS_S
    for done, row in enumerate(sample.rows):
        if done and time.monotonic() > end_s:
            return done
        sample.dataset.stored_image(sample.field, row).data.tobytes()
    return len(sample.rows)


def _sample(data: Data, index: str) -> _Sample | None:
    kind = data.facts.kind
    if kind == "folder":
        paths = chosen(data.files, _SAMPLED)
        files = _within_bytes(read_file(path) for path in paths)
        listed = [(str(path), number % 2) for number, path in enumerate(paths[: len(files)])]
        dataset = FolderDataset.from_samples(listed, ("a", "b"))
        return _Sample(dataset, "image", range(len(files)), files)
    if kind == "packed":
        packed = Dataset(data.part)
        field, rows = packed.schema.image_fields[0], _some(len(packed))
        return _Sample(packed, field, rows, _within_bytes(_stored_files(packed, field, rows)))
    if kind == "tars":
        tars = TarDataset(data.part, incomplete="skip", cache=index)
        rows = _some(len(tars))
        for field in tars.schema.image_fields[:1]:
            files = _within_bytes(tars.read(field, row) for row in rows)
            return _Sample(tars, field, rows, files)
    return None


def _some(rows: int) -> Sequence[int]:
    """Returns random rows from all over a dataset."""
    return random.Random(2).sample(range(rows), min(rows, _SAMPLED))


def _within_bytes(files: Iterable[bytes]) -> tuple[bytes, ...]:
    kept: list[bytes] = []
    total, end_s = 0, time.monotonic() + _HEADERS_S
    for data in files:
        if kept and time.monotonic() > end_s:
            break
        total += len(data)
        if kept and total > _SAMPLED_BYTES:
            break
        kept.append(data)
    return tuple(kept)


def _stored_files(dataset: Dataset, field: str, rows: Iterable[int]) -> Iterator[bytes]:
    """Yields the stored image files of a packed dataset, if the first image is a file."""
    for row in rows:
        stored = dataset.stored_image(field, row)
        if stored.codec not in (CODEC_JPEG, CODEC_ENCODED):
            return
        yield stored.data.tobytes()


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
        nbytes / count,
        sum(width * height for width, height in sizes) / count,
        round(median(min(size) for size in sizes)),
        round(median(max(size) for size in sizes)),
    )


def _stored_headers(data: Data, sample: _Sample) -> ImageFacts:
    """Returns the image facts of a packed dataset, from its columns."""
    shards, places = sample.dataset.locate(np.array(sample.rows, np.int64))
    heights, widths = (
        np.array(
            [
                sample.dataset.shard(int(shard)).fixed(f"{sample.field}.{part}")[place]
                for shard, place in zip(shards, places, strict=True)
            ],
            np.int64,
        )
        for part in ("height", "width")
    )
    return ImageFacts(
        len(heights),
        mean_bytes=data.facts.sample_bytes,
        mean_pixels=float(np.mean(heights * widths)),
        short_side=round(float(np.median(np.minimum(heights, widths)))),
        long_side=round(float(np.median(np.maximum(heights, widths)))),
    )


def pillow_part(files: Sequence[bytes], crop: int, seconds: float) -> Part:
    """Measures how fast one process decodes, crops and resizes with Pillow."""
    end_s, done = time.monotonic() + seconds, 0
    draws = random.Random(0)
    began_s = time.perf_counter()
    while not done or time.monotonic() < end_s:
        with Image.open(io.BytesIO(files[done % len(files)])) as image:
            width, height = image.size
            edge = max(1.0, min(width, height) * draws.uniform(0.5, 1.0))
            x, y = draws.uniform(0, width - edge), draws.uniform(0, height - edge)
            box = (x, y, x + edge, y + edge)
            image.convert("RGB").resize((crop, crop), Image.Resampling.BILINEAR, box)
        done += 1
    return Part(done, time.perf_counter() - began_s)


# --- Packed as a trial ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Try:
    """Images that were packed as a trial.

    Attributes:
        name: in notes.
        images: of the sample's, from the first, so many.
        trial: what is known of them before they are measured.
        measure: a loader of them.
    """

    name: str
    images: int
    trial: Trial
    measure: Measure


def _tries(
    sample: _Sample,
    facts: ImageFacts,
    use: Use,
    threads: int,
    attempts: Attempts,
    open_now: ExitStack,
) -> list[_Try]:
    if not sample.files:
        return []
    jpegs = facts.formats.get("JPEG", 0.0)
    codec: Literal["blocks", "raw"] = "blocks" if jpegs >= 0.5 else "raw"
    wanted: list[tuple[int, Literal["blocks", "raw"], int | None]]
    wanted = [(len(sample.files), codec, None)]
    smaller = 2 * use.crop
    if facts.short_side > _LARGER * smaller:
        most = min(len(sample.files), int(_TRIED_PIXELS / max(1.0, facts.mean_pixels)))
        side = round(smaller * facts.long_side / max(1, facts.short_side))
        wanted.append((max(8, most), "blocks", side))
    found = []
    for most, kind, max_side in wanted:
        files, name = sample.files[:most], "packing smaller" if max_side else f"packing as {kind}"
        folder = open_now.enter_context(room(use.scratch))
        trial = attempts(name, packed_for_try, files, folder, kind, max_side, threads)
        if trial is not None:
            dataset = open_now.enter_context(Dataset(folder / "packed"))
            for field in dataset.schema.image_fields[:1]:  # none where nothing was an image
                rows = range(trial.samples)
                measure = partial(images_part, dataset, field, rows, threads, use.crop)
                found.append(_Try(f"{name}, loaded", len(files), trial, measure))
    return found


def packed_for_try(
    files: Sequence[bytes],
    folder: Path,
    codec: Literal["blocks", "raw"],
    max_side: int | None,
    threads: int,
) -> Trial | None:
    """Packs images into a folder as a trial, or returns None if none could be read. Its rate is
    measured later.

    Raises:
        FastioError, OSError: they cannot be packed.
    """
    report = pack(
        files, folder / "packed", codec=codec, max_side=max_side, on_error="skip", workers=threads
    )
    before = sum(map(len, files))
    if not report.rows:
        return None
    return Trial(codec, max_side, report.rows, 0.0, report.bytes / max(1, before))
