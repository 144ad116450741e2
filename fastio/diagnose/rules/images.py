"""Rules of images: packing, sizes, formats that are slow to decode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fastio.diagnose.facts import Facts, ImageFacts, Trial
from fastio.diagnose.findings import Finding
from fastio.diagnose.pipeline import (
    Pipeline,
    decode_rate,
    pipeline_of,
    stays_in_memory,
    threads_of,
)
from fastio.diagnose.use import Use

_MANY = 0.1  # a share of images that is worth a line
_CODEC_WORDS = {
    "blocks": "--codec blocks loses nothing",
    "raw": "--codec raw keeps pixels as they are",
}


def packing(facts: Facts, use: Use) -> Iterator[Finding]:
    """Packed, images are decoded faster."""
    trial = _trial(facts, shrunk=False)
    if trial is None:
        return
    before = pipeline_of(facts, use)
    after = _packed(facts, use, trial)
    if before is None or after is None or before.slowest == "model":
        return
    yield Finding(
        "decode" if before.slowest in ("decode", "copy") else "files",
        _waits(facts, before),
        f"{_how_to_pack(facts)}{_option(trial)}, then Loader('PACKED')",
        before.gain_of(after),
        (
            f"{trial.rate:,.0f} images/s from {trial.samples} of them packed for a try, "
            f"{_before_rate(facts, trial):,.0f} as they are",
            f"{trial.bytes_share:.2f} x the bytes; {_CODEC_WORDS[trial.codec]}",
        ),
    )


def smaller(facts: Facts, use: Use) -> Iterator[Finding]:
    """Images much larger than their crop cost bytes and time."""
    trial, images = _trial(facts, shrunk=True), facts.images
    if trial is None or images is None or trial.max_side is None:
        return
    before = pipeline_of(facts, use)
    after = _packed(facts, use, trial)
    if before is None or after is None or before.slowest == "model":
        return
    yield Finding(
        "files",
        f"images of {images.short_side:,} x {images.long_side:,} pixels for crops of {use.crop}",
        f"{_how_to_pack(facts)} --max-side {trial.max_side} (this changes the images)",
        before.gain_of(after),
        (
            f"{trial.rate:,.0f} images/s from {trial.samples} of them shrunk for a try, "
            f"{_before_rate(facts, trial):,.0f} as they are",
            f"{trial.bytes_share:.2f} x the bytes",
        ),
    )


def instead_of_pillow(facts: Facts, use: Use) -> Iterator[Finding]:
    """What a DataLoader with Pillow would do."""
    images = facts.images
    rate = decode_rate(facts, use)
    if images is None or not images.pillow_rate or not rate:
        return
    if facts.data is None or facts.data.kind != "folder":
        return
    count = min(threads_of(facts, use), images.threads)
    workers = images.pillow_rate * count
    before = Pipeline({"decode": workers})
    after = Pipeline({"decode": rate})
    if use.model_rate:
        before = before.replaced(model=use.model_rate)
        after = after.replaced(model=use.model_rate)
    yield Finding(
        "decode",
        "where these are loaded by DataLoader and Pillow, you wait for its workers",
        f"fastio.Loader({facts.data.path!r}, ...) in DataLoader's place",
        before.gain_of(after),
        (
            f"{rate:,.0f} images/s by fastio, {images.pillow_rate:,.0f} a worker by Pillow "
            f"({workers:,.0f} by {count} at best)",
        ),
    )


def progressive(facts: Facts, use: Use) -> Iterator[Finding]:
    """Progressive JPEGs are decoded as a whole, several times over."""
    images = facts.images
    if images is None or images.progressive < _MANY:
        return
    yield Finding(
        "files",
        f"{images.progressive:.0%} of the images are progressive JPEGs, which are decoded whole",
        "pack them (blocks have no scans), or jpegtran FILE without -progressive; nothing is lost",
    )


def by_pillow(facts: Facts, use: Use) -> Iterator[Finding]:
    """Formats that the native decoder leaves to Pillow."""
    images = facts.images
    if images is None:
        return
    others = 1.0 - images.formats.get("JPEG", 0.0) + images.cmyk if images.formats else 0.0
    if others < _MANY or _trial(facts, shrunk=False) is None:
        return
    names = [f"{name} {share:.0%}" for name, share in images.formats.items() if name != "JPEG"]
    names += [f"CMYK JPEG {images.cmyk:.0%}"] if images.cmyk else []
    yield Finding(
        "files",
        f"Pillow decodes {min(others, 1.0):.0%} of the images: {', '.join(names)}",
        "fastio pack with --codec raw (lossless, large) or --quality 90 (makes them JPEGs)",
    )


IMAGE_RULES = (packing, smaller, instead_of_pillow, progressive, by_pillow)


def _trial(facts: Facts, *, shrunk: bool) -> Trial | None:
    trials = facts.images.trials if facts.images else ()
    return next((t for t in trials if (t.max_side is not None) == shrunk and t.rate), None)


def _before_rate(facts: Facts, trial: Trial) -> float:
    """Images a second of those that were tried, as they are, with as many threads."""
    rate = trial.before_rate or (facts.images.rate if facts.images else None)
    assert rate is not None  # or there is no stage to be faster
    return rate


def _packed(facts: Facts, use: Use, trial: Trial) -> Pipeline | None:
    """The stages as they would be with the packed data."""
    before = pipeline_of(facts, use)
    images = facts.images
    if before is None or images is None or not images.rate:
        return None
    # The try had all threads, and a part of the images: others are faster by as much.
    faster = trial.rate / _before_rate(facts, trial)
    after = before.replaced(decode=before.stages["decode"] * faster)
    if "disk" in after.stages:
        after = _from_shards(facts, trial, after)
    return after


def _from_shards(facts: Facts, trial: Trial, stages: Pipeline) -> Pipeline:
    """The disk's stage with so many bytes, which memory may hold then."""
    assert facts.data is not None
    nbytes = round(facts.data.nbytes * trial.bytes_share)
    if stays_in_memory(facts.replaced(data=replace(facts.data, nbytes=nbytes))):
        return stages.without("disk")
    return stages.replaced(disk=stages.stages["disk"] / max(trial.bytes_share, 1e-3))


def _waits(facts: Facts, stages: Pipeline) -> str:
    words = {
        "decode": f"threads that decode {_formats(facts.images)}",
        "disk": "the disk",
        "copy": "copies to the GPU",
        "network": "the network",
        "model": "the model",
    }
    return f"you wait for {words[stages.slowest]}"


def _formats(images: ImageFacts | None) -> str:
    names = list(images.formats) if images else []
    return f"{names[0]}s" if len(names) == 1 else "images"


def _how_to_pack(facts: Facts) -> str:
    if facts.data is None or not facts.data.packed:
        return f"fastio pack {facts.data.path if facts.data else 'DATA'} PACKED"
    return f"fastio export {facts.data.path} FOLDER; fastio pack FOLDER PACKED"


def _option(trial: Trial) -> str:
    return "" if trial.codec == "blocks" else f" --codec {trial.codec}"
