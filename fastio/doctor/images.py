"""Probes of images: what they are, how fast they are decoded, and would be if they were packed."""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

import numpy as np
from PIL import Image

from fastio.dataset import Dataset
from fastio.doctor.attempt import Attempts
from fastio.doctor.data import Data, chosen
from fastio.doctor.facts import ImageFacts, Trial
from fastio.doctor.rates import SECONDS, image_loader, loader_rate, room
from fastio.doctor.use import Use
from fastio.formats.folder import FolderDataset
from fastio.formats.tars import TarDataset
from fastio.pack import pack
from fastio.schema import CODEC_ENCODED, CODEC_JPEG

_SAMPLED = 192
_SAMPLED_BYTES = 64 << 20
_HEADERS_S = 4.0
_TRIED = 128
_TRIED_PIXELS = 100e6  # of all images that are shrunk for a try
_LARGER = 2.0  # than what a crop needs: worth a try of smaller ones
_ORIENTATION = 0x0112  # of EXIF


@dataclass(frozen=True)
class _Sample:
    """Images that stand for the rest.

    Attributes:
        dataset: that a loader is given.
        field: of images.
        rows: of it that are loaded, from the first.
        files: image files' bytes, of as many; none where images are not stored as files.
    """

    dataset: Any
    field: str
    rows: int
    files: tuple[bytes, ...] = ()


def image_facts(data: Data, use: Use, threads: int, attempts: Attempts) -> ImageFacts | None:
    """What images a dataset has, and their rates; None where it has none.

    Args:
        data: on this machine.
        use: how it is loaded.
        threads: most that a loader is measured with.
        attempts: notes what cannot be measured.
    """
    with tempfile.TemporaryDirectory(prefix="fastio-doctor-") as index:
        sample = _sample(data, index)
        if sample is None:
            return None
        facts = headers(sample.files) if sample.files else _stored_headers(data, sample)
        rates = {
            count: attempts(f"decoding with {count} threads", _rate, sample, count, use.crop)
            for count in sorted({1, threads})
        }
        facts = replace(facts, threads=threads, rate=rates[threads], one_thread_rate=rates[1])
        if sample.files:
            pillow = attempts("decoding with Pillow", pillow_rate, sample.files, use.crop)
            facts = replace(facts, pillow_rate=pillow)
        trials = _trials(sample, facts, use, threads, attempts)
        if not isinstance(sample.dataset, FolderDataset):
            sample.dataset.close()
    return replace(facts, trials=trials)


def _sample(data: Data, index: str) -> _Sample | None:
    kind = data.facts.kind
    if kind == "folder":
        paths = chosen(data.files, _SAMPLED)
        files = _within_bytes(path.read_bytes() for path in paths)
        listed = [(str(path), number % 2) for number, path in enumerate(paths[: len(files)])]
        return _Sample(FolderDataset.from_samples(listed, ("a", "b")), "image", len(files), files)
    if kind == "packed":
        packed = Dataset(data.part)
        field, rows = packed.schema.image_fields[0], min(len(packed), _SAMPLED)
        return _Sample(packed, field, rows, _within_bytes(_stored_files(packed, field, rows)))
    if kind == "tars":
        tars = TarDataset(data.part, incomplete="skip", cache=index)
        rows = min(len(tars), _SAMPLED)
        for field in tars.schema.image_fields[:1]:
            files = _within_bytes(tars.read(field, row) for row in range(rows))
            return _Sample(tars, field, rows, files)
    return None


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


def _stored_files(dataset: Dataset, field: str, rows: int) -> Iterator[bytes]:
    """Of a packed dataset, the images that are files, if the first is one."""
    for row in range(rows):
        stored = dataset.stored_image(field, row)
        if stored.codec not in (CODEC_JPEG, CODEC_ENCODED):
            return
        yield stored.data.tobytes()


def headers(files: Sequence[bytes]) -> ImageFacts:
    """What the headers of image files say; files that Pillow does not open are left out."""
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
    """Of a packed dataset, from its columns."""
    shard, field = sample.dataset.shard(0), sample.field
    heights, widths = (
        shard.fixed(f"{field}.{part}")[: sample.rows].astype(np.int64)
        for part in ("height", "width")
    )
    return ImageFacts(
        len(heights),
        mean_bytes=data.facts.sample_bytes,
        mean_pixels=float(np.mean(heights * widths)),
        short_side=round(float(np.median(np.minimum(heights, widths)))),
        long_side=round(float(np.median(np.maximum(heights, widths)))),
    )


def _rate(sample: _Sample, threads: int, crop: int) -> float | None:
    loader = image_loader(sample.dataset, sample.field, sample.rows, threads, crop)
    return loader_rate(loader, SECONDS, warm_samples=sample.rows)


def pillow_rate(files: Sequence[bytes], crop: int) -> float | None:
    """Images a second of one process that opens, crops and resizes with Pillow, as a DataLoader's
    worker does."""
    end_s, done = time.monotonic() + SECONDS, 0
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
    return done / (time.perf_counter() - began_s)


def _trials(
    sample: _Sample, facts: ImageFacts, use: Use, threads: int, attempts: Attempts
) -> tuple[Trial, ...]:
    if not sample.files:
        return ()
    files = sample.files[:_TRIED]
    jpegs = facts.formats.get("JPEG", 0.0)
    codec: Literal["blocks", "raw"] = "blocks" if jpegs >= 0.5 else "raw"
    found = [attempts(f"packing as {codec}", trial, files, codec, None, use, threads)]
    smaller = 2 * use.crop
    if facts.short_side > _LARGER * smaller:
        most = max(8, min(len(files), int(_TRIED_PIXELS / max(1.0, facts.mean_pixels))))
        side = round(smaller * facts.long_side / max(1, facts.short_side))
        found.append(attempts("packing smaller", trial, files[:most], "blocks", side, use, threads))
    return tuple(each for each in found if each is not None)


def trial(
    files: Sequence[bytes],
    codec: Literal["blocks", "raw"],
    max_side: int | None,
    use: Use,
    threads: int,
) -> Trial:
    """Packs images for a try, and measures a loader of them.

    Raises:
        FastioError, OSError: they cannot be packed.
    """
    with room(use.scratch) as folder:
        report = pack(
            files,
            folder / "packed",
            codec=codec,
            max_side=max_side,
            on_error="skip",
            workers=threads,
        )
        with Dataset(folder / "packed") as dataset:
            field = dataset.schema.image_fields[0]
            loader = image_loader(dataset, field, report.rows, threads, use.crop)
            rate = loader_rate(loader, SECONDS, warm_samples=report.rows)
        before = sum(map(len, files))
    return Trial(codec, max_side, report.rows, rate or 0.0, report.bytes / max(1, before))
