"""Rules of images: packing, sizes, formats that are slow to decode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fastio.diagnose.costs import Costs, decode_rate, expected, stays_in_memory, threads_of
from fastio.diagnose.facts import Facts, ImageFacts, Trial
from fastio.diagnose.findings import Finding
from fastio.diagnose.findings import packing as packing_advice
from fastio.diagnose.options import Use

_MANY = 0.1  # a share of images that is worth a line
_CODEC_WORDS = {
    "blocks": "--codec blocks loses nothing",
    "raw": "--codec raw keeps pixels as they are",
}


def packing(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests packing, because packed images are decoded faster."""
    trial = _trial(facts, shrunk=False)
    if trial is None:
        return
    before = expected(facts, use)
    after = _packed(facts, use, trial)
    if before is None or after is None or before.waits_for(cold=True) == "compute":
        return
    yield Finding(
        "files" if before.waits_for(cold=True) == "fetch" else "decode",
        _waits(facts, before),
        _how_to_pack(facts, _option(trial)),
        before.gain_of(after),
        (
            f"{trial.rate:,.0f} images/s from {trial.samples} of them in a trial pack, "
            f"{_before_rate(facts, trial):,.0f} as they are",
            f"{trial.bytes_share:.2f} x the bytes; {_CODEC_WORDS[trial.codec]}",
        ),
    )


def smaller(facts: Facts, use: Use) -> Iterator[Finding]:
    """Suggests smaller images if they are much larger than their crops."""
    trial, images = _trial(facts, shrunk=True), facts.images
    if trial is None or images is None or trial.max_side is None:
        return
    before = expected(facts, use)
    after = _packed(facts, use, trial)
    if before is None or after is None or before.waits_for(cold=True) == "compute":
        return
    yield Finding(
        "files",
        f"images of {images.short_side:,} x {images.long_side:,} pixels for crops of {use.crop}",
        f"{_how_to_pack(facts, f' --max-side {trial.max_side}')} (this changes the images)",
        before.gain_of(after),
        (
            f"{trial.rate:,.0f} images/s from {trial.samples} of them shrunk in a trial, "
            f"{_before_rate(facts, trial):,.0f} as they are",
            f"{trial.bytes_share:.2f} x the bytes",
        ),
    )


def instead_of_pillow(facts: Facts, use: Use) -> Iterator[Finding]:
    """Compares the loader with a DataLoader that decodes with Pillow."""
    images = facts.images
    rate = decode_rate(facts, use)
    if images is None or not images.pillow_rate or not rate:
        return
    if facts.data is None or facts.data.kind != "folder":
        return
    count = min(threads_of(facts, use), images.threads)
    workers = images.pillow_rate * count
    compute_s = 1 / use.model_rate if use.model_rate else 0.0
    before, after = (Costs(prep_s=1 / one, compute_s=compute_s) for one in (workers, rate))
    yield Finding(
        "decode",
        "a DataLoader with Pillow would wait for its workers",
        f"use fastio.Loader({facts.data.path!r}, ...) in place of DataLoader",
        before.gain_of(after),
        (
            f"{rate:,.0f} images/s by fastio, {images.pillow_rate:,.0f} a worker by Pillow "
            f"({workers:,.0f} by {count} at best)",
        ),
    )


def progressive(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports progressive JPEGs, which are decoded as a whole and in several passes."""
    images = facts.images
    if images is None or images.progressive < _MANY:
        return
    yield Finding(
        "files",
        f"{images.progressive:.0%} of the images are progressive JPEGs, which are decoded whole",
        "pack them (blocks have no scans), or jpegtran FILE without -progressive; nothing is lost",
    )


def by_pillow(facts: Facts, use: Use) -> Iterator[Finding]:
    """Reports formats that the native decoder leaves to Pillow."""
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
    """Returns the images per second of the trial's images as they are, with as many threads."""
    rate = trial.before_rate or (facts.images.rate if facts.images else None)
    assert rate is not None  # or there is no stage to be faster
    return rate


def _packed(facts: Facts, use: Use, trial: Trial) -> Costs | None:
    """Returns the costs of a sample of the packed data."""
    before, images = expected(facts, use), facts.images
    if before is None or images is None or not images.rate or facts.data is None:
        return None
    # The try had all threads, and a part of the images: others are faster by as much.
    faster = trial.rate / _before_rate(facts, trial)
    # Memory may hold so many bytes.
    nbytes = round(facts.data.nbytes * trial.bytes_share)
    stays = stays_in_memory(facts.replaced(data=replace(facts.data, nbytes=nbytes)))
    fetch_s = 0.0 if stays else before.fetch_s * trial.bytes_share
    return replace(before, prep_s=before.prep_s / faster, fetch_s=fetch_s)


def _waits(facts: Facts, costs: Costs) -> str:
    words = {
        "decode": f"threads that decode {_formats(facts.images)}",
        "fetch": "the disk",
        "copy": "copies to the GPU",
    }
    return f"you wait for {words[costs.waits_for(cold=True)]}"


def _formats(images: ImageFacts | None) -> str:
    names = list(images.formats) if images else []
    return f"{names[0]}s" if len(names) == 1 else "images"


def _how_to_pack(facts: Facts, options: str) -> str:
    if facts.data is None or not facts.data.packed:
        return packing_advice(facts.data.path if facts.data else None, options)
    return f"`fastio export {facts.data.path} FOLDER`; {packing_advice('FOLDER', options)}"


def _option(trial: Trial) -> str:
    return "" if trial.codec == "blocks" else f" --codec {trial.codec}"
