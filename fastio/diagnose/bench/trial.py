"""What packing would bring: a part of an image folder, packed as a trial."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from fastio.diagnose.bench.device import Nothing
from fastio.diagnose.bench.loop import Limit, phase_of, run_loop
from fastio.diagnose.bench.subject import Subject
from fastio.pack import pack

_LEAST_IMAGES, _MOST_IMAGES = 16, 768


def packed_rate(subject: Subject, work: Path, seconds: float) -> float | None:
    """Returns the samples per second of the loader alone on random files of a folder, packed as
    blocks.

    Args:
        subject: an image folder.
        work: an empty folder for the part.
        seconds: to measure for.

    Returns:
        The rate; None where hardly any file is a JPEG.
    """
    files = [path for path in subject.files() if path.suffix.lower() in (".jpg", ".jpeg")]
    if len(files) < _LEAST_IMAGES:
        return None
    chosen = random.Random(0).sample(files, min(_MOST_IMAGES, len(files)))
    links, packed = work / "links", work / "packed"
    for number, path in enumerate(chosen):
        link = links / f"{number % 2}" / f"{number:05}{path.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    pack(links, packed)
    # As large as the subject's, so that batches go to as much memory, but a few of them.
    batch_size = max(1, min(subject.batch_size, len(chosen) // 4))
    options = replace(subject.options, data=str(packed), baseline=None)
    part = replace(subject, options=options, batch_size=batch_size, cache=None)
    with part.open(plain=True) as batches:
        run_loop(batches, Nothing(), Limit(seconds / 4))
        runs = [run_loop(batches, Nothing(), Limit(seconds / 2), stats=batches.stats)]
        while sum(run.end_s - run.marks[0] for run in runs) < seconds and len(runs) < 20:
            runs.append(run_loop(batches, Nothing(), Limit(seconds / 2), stats=batches.stats))
    return phase_of("loader_warm", runs).samples_per_s
