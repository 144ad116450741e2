"""Probes of images: formats and sizes, decoding rates as they are and packed as a trial."""

from __future__ import annotations

import io
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from PIL import Image

from fastio.diagnose.facts import ImageFacts, Trial
from fastio.diagnose.options import Use
from fastio.diagnose.probes.data import Data, Images
from fastio.diagnose.probes.files import first_pieces
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

_SAMPLED = 192
_SAMPLED_BYTES = 64 << 20
_HEADERS_S = 4.0
_TRIED_PIXELS = 100e6  # of all images that are shrunk as a trial
_LARGER = 2.0  # than what a crop needs: worth a try of smaller ones
_ORIENTATION = 0x0112  # of EXIF


@dataclass(frozen=True)
class _Sample:
    """A sample of a dataset's images that are in memory.

    Attributes:
        images: the images that are loaded.
        files: the bytes of their files; none if they are not stored as files.
    """

    images: Images
    files: tuple[bytes, ...]


def image_facts(data: Data, use: Use, threads: int, attempts: Attempts) -> ImageFacts | None:
    """Returns the facts and decoding rates of a dataset's images, or None if it has none.

    Args:
        data: the dataset, on this machine.
        use: how it is loaded.
        threads: largest number of threads of a loader.
        attempts: notes what cannot be measured.
    """
    with ExitStack() as open_now:
        images = open_now.enter_context(data.images(_SAMPLED))
        if images is None:
            return None
        # As a whole: loaders read what crops need.
        read = [piece.read() for piece in first_pieces(images.pieces(), _SAMPLED_BYTES, _HEADERS_S)]
        images = Images(images.dataset, images.field, images.rows[: len(read)])
        sample = _Sample(images, tuple(read) if images.are_files else ())
        facts = headers(sample.files) if sample.files else _stored_headers(data, images)
        tries = _tries(sample, facts, use, threads, attempts, open_now)
        return _measured(sample, replace(facts, threads=threads), tries, use, attempts)


def _measured(
    sample: _Sample, facts: ImageFacts, tries: Sequence[_Try], use: Use, attempts: Attempts
) -> ImageFacts:
    """Returns the facts with the rates, which are measured in turns."""
    threads, all_of = facts.threads, sample.images
    used = min(use.threads or threads, threads)

    def loading(images: int, count: int) -> tuple[str, Measure]:
        name, rows = f"decoding {images} images with {count} threads", all_of.rows[:images]
        return name, partial(images_part, all_of.dataset, all_of.field, rows, count, use.crop)

    measures = dict(loading(len(all_of.rows), count) for count in (1, used, threads))
    for each in tries:
        measures |= [loading(each.images, threads), (each.name, each.measure)]
    if sample.files:
        measures["decoding with Pillow"] = partial(pillow_part, sample.files, use.crop)
    rates = in_turns(measures, attempts)

    def rate(images: int, count: int) -> float | None:
        return rates.get(loading(images, count)[0])

    used_rate = rate(len(all_of.rows), used)
    return replace(
        facts,
        rate=rate(len(all_of.rows), threads),
        one_thread_rate=rate(len(all_of.rows), 1),
        used=None if used_rate is None else (used, used_rate),
        pillow_rate=rates.get("decoding with Pillow"),
        trials=tuple(
            replace(each.trial, rate=rates[each.name], before_rate=rate(each.images, threads))
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
        nbytes / count,
        sum(width * height for width, height in sizes) / count,
        round(median(min(size) for size in sizes)),
        round(median(max(size) for size in sizes)),
    )


def _stored_headers(data: Data, images: Images) -> ImageFacts:
    """Returns the facts of images that are no files, from the dataset's columns."""
    sizes = np.stack([images.reads.height, images.reads.width]).astype(np.int64)
    return ImageFacts(
        sizes.shape[1],
        mean_bytes=data.facts.sample_bytes,
        mean_pixels=float(np.mean(sizes.prod(axis=0))),
        short_side=round(float(np.median(sizes.min(axis=0)))),
        long_side=round(float(np.median(sizes.max(axis=0)))),
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
