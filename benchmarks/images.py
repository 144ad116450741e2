"""Images a second of whole loaders, size of the shards, time to pack: Pillow against fastio.

    .venv/bin/python benchmarks/images.py [FOLDER] [--held-out] [--count 5000] [--json FILE]

FOLDER has a folder of photos for each class; without it, photos are made. Three tables:

Loading. All loaders do the same work, RandomResizedCrop(224) and RandomHorizontalFlip to uint8
batches, on `--count` rows that are copies of the photos, warm in the page cache. No two files have
the same bytes, because fastio would recognise them by their checksums. A round runs every
loader once, so that a machine whose speed drifts does it to all alike; the table has medians of
rounds, each with its ratio to torch's DataLoader with Pillow in the same run. "folder, first epoch"
is a new loader in each round, that knows nothing of the files; "folder" is one in its later epochs,
which has indexes of them. "avx2" and "portable" are the same loader with its kernels held to that
instruction set.

Size. Files of packed datasets over the bytes of the JPEG files, each photo once: the shards with
all that is in them, and with the manifest, which is much of a small dataset and nothing of a large
one. A fair figure for the default codebook takes photos that it was not trained on (--held-out,
where it was trained on the others); "train" is trained on the photos packed, as
`fastio pack --codebook train` does it.

Packing. Milliseconds an image: all of fastio.pack() with one worker, by the clock and in
processor time of all its threads; and blocks_encode() alone, which reads a JPEG's coefficients from
memory and encodes them. benchmarks/codec.py has these two apart.

Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    CODEBOOK,
    about_photos,
    console,
    copied,
    empty_cache_home,
    forced,
    linked,
    machine,
    machine_line,
    new_table,
    photo_parser,
    resident_mb,
    simd_levels,
    source_photos,
    temporary_folder,
    write_json,
)
from rich.table import Table
from torch.utils.data import DataLoader

import fastio
from fastio import _native
from fastio.diagnose.bench.baseline import PillowFolder

SIZE = 224
BATCH = 64
CROPS = [fastio.RandomResizedCrop(SIZE), fastio.RandomHorizontalFlip()]

# --- Loading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A loader, the instruction set that its kernels are held to, and how many threads it has."""

    name: str
    loader: Any
    level: str
    threads: int

    def epoch(self) -> float:
        """One epoch's images a second, from the request for an iterator to the last batch."""
        with forced(self.level):
            start = time.perf_counter()
            images = 0
            for batch, _ in self.loader:
                images += len(batch)
            return images / (time.perf_counter() - start)


class FirstEpoch(Variant):
    """A loader that `loader` makes anew for each epoch, without indexes of the files."""

    def epoch(self) -> float:
        """See `Variant`. The loader is not made in this time."""
        with empty_cache_home(), self.loader() as loader:
            return Variant(self.name, loader, self.level, self.threads).epoch()


def fast_loader(source: Path, threads: int) -> fastio.Loader:
    return fastio.Loader(
        source, BATCH, shuffle=True, num_workers=threads, transforms={"image": CROPS}
    )


def variants(folder: Path, packed: dict[str, Path], threads: int, opened: ExitStack) -> list[Any]:
    """What is compared; the first is what all others are measured by."""
    best = simd_levels()[0]
    plain = DataLoader(
        PillowFolder(str(folder), SIZE, normalized=False),
        BATCH,
        shuffle=True,
        num_workers=threads,
        persistent_workers=True,
    )

    def fast(name: str, source: Path, count: int, level: str = best) -> Variant:
        loader = opened.enter_context(fast_loader(source, count))
        return Variant(f"fastio, {name}, {counted(count, 'thread')}", loader, level, count)

    counts = sorted({1, threads})
    return [
        Variant(f"DataLoader, Pillow, {counted(threads, 'worker')}", plain, best, threads),
        FirstEpoch(
            f"fastio, folder, first epoch, {counted(threads, 'thread')}",
            partial(fast_loader, folder, threads),
            best,
            threads,
        ),
        fast("folder", folder, threads),
        *(fast("packed jpeg", packed["jpeg"], count) for count in counts),
        *(fast("blocks", packed["blocks"], count) for count in counts),
        *(
            fast(f"blocks, {level}", packed["blocks"], 1, level)
            for level in simd_levels()
            if level != best
        ),
    ]


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def loading(folder: Path, packed: dict[str, Path], threads: int, rounds: int) -> dict[str, Any]:
    """Rates of all variants, and how they compare."""
    with ExitStack() as opened:
        all_variants = variants(folder, packed, threads, opened)
        for variant in all_variants:  # warms the page cache, starts workers and threads
            variant.epoch()
        rates: dict[str, list[float]] = {variant.name: [] for variant in all_variants}
        for _ in range(rounds):
            for variant in all_variants:
                rates[variant.name].append(variant.epoch())
        kept = [v for v in all_variants[1:] if not isinstance(v, FirstEpoch)]
        stats = {v.name: v.loader.stats().to_dict() for v in kept}
    medians = {name: statistics.median(values) for name, values in rates.items()}
    first = next(iter(medians.values()))
    return {
        "images_per_s": medians,
        "all_images_per_s": rates,
        "against_dataloader": {name: rate / first for name, rate in medians.items()},
        "threads_scale": scaling(medians, threads),
        "stats": stats,
        "first_batch_s": first_batch_s(packed["blocks"], threads),
        "memory_growth_mb": memory_growth_mb(packed["blocks"], threads, 50),
    }


def scaling(medians: dict[str, float], threads: int) -> dict[str, float]:
    """What all threads do over what one does, for each way of packing."""
    return {
        what: medians[f"fastio, {what}, {counted(threads, 'thread')}"]
        / medians[f"fastio, {what}, 1 thread"]
        for what in ("packed jpeg", "blocks")
    }


def first_batch_s(dataset: Path, threads: int) -> float:
    """From iter() to the first batch, on a loader made anew."""
    with fast_loader(dataset, threads) as loader:
        start = time.perf_counter()
        next(iter(loader))
        return time.perf_counter() - start


def memory_growth_mb(dataset: Path, threads: int, epochs: int) -> float:
    """How much the process grew over epochs that end early, in MB, after five to settle."""
    with fast_loader(dataset, threads) as loader:
        start = 0.0
        for epoch in range(epochs + 5):
            if epoch == 5:
                start = resident_mb()
            for step, _ in enumerate(loader):
                if step == 3:
                    break
        return resident_mb() - start


# --- Size and packing -----------------------------------------------------------------------------


def sizes(folder: Path, files: Sequence[Path], work: Path) -> dict[str, dict[str, float]]:
    """Bytes of packed datasets over those of the files, for each way of packing."""
    source = sum(path.stat().st_size for path in files)
    result = {}
    for name, codec, codebook in (
        ("jpeg", "jpeg", None),
        ("blocks, default codebook", "blocks", "default"),
        ('blocks, codebook="train"', "blocks", "train"),
    ):
        packed = work / f"size-{codec}-{codebook}"
        fastio.pack(folder, packed, codec=codec, codebook=codebook)  # type: ignore[arg-type]
        with fastio.Dataset(packed) as dataset:
            counts = dataset.manifest.codec_counts()["image"]
        shards = sum(path.stat().st_size for path in packed.rglob("shard-*"))
        everything = sum(path.stat().st_size for path in packed.rglob("*") if path.is_file())
        result[name] = {
            "shards": shards / source,
            "with_manifest": everything / source,
            "rows_in_blocks": counts.get("blocks", 0),
            "rows": len(files),
        }
    return result


def packing(
    folder: Path, files: Sequence[Path], work: Path, rounds: int
) -> dict[str, dict[str, float]]:
    """Milliseconds an image of each instruction set, medians of alternating rounds."""
    jpegs = [np.fromfile(path, np.uint8) for path in files]
    measures = {
        "pack_ms": partial(pack_once, folder, work / "timed", time.perf_counter),
        "pack_processor_ms": partial(pack_once, folder, work / "timed", time.process_time),
        "blocks_encode_ms": partial(encode_all, jpegs),
    }
    times: dict[str, dict[str, list[float]]] = {
        level: {name: [] for name in measures} for level in simd_levels()
    }
    for _ in range(rounds):
        for level in simd_levels():
            with forced(level):
                for name, measure in measures.items():
                    times[level][name].append(measure() / len(files) * 1e3)
    return {
        level: {name: statistics.median(values) for name, values in found.items()}
        for level, found in times.items()
    }


def pack_once(folder: Path, target: Path, clock: Any) -> float:
    """Seconds of packing the folder with one worker."""
    start = clock()
    fastio.pack(folder, target, codec="blocks", workers=1, overwrite=True)
    return float(clock() - start)


def encode_all(jpegs: Iterable[Any]) -> float:
    """Seconds of encoding the files in memory. The encoder is made for the active kernels."""
    codebook = _native.Codebook(np.fromfile(CODEBOOK, np.uint8))
    start = time.perf_counter()
    for jpeg in jpegs:
        _native.blocks_encode(jpeg, codebook)
    return time.perf_counter() - start


# --- What is printed ------------------------------------------------------------------------------


def loading_table(result: dict[str, Any]) -> Table:
    out = new_table("loader", "images/s (median)", "min .. max", "against DataLoader")
    for name, rate in result["images_per_s"].items():
        rates = result["all_images_per_s"][name]
        ratio = result["against_dataloader"][name]
        spread = f"{min(rates):,.0f} .. {max(rates):,.0f}"
        out.add_row(name, f"{rate:,.0f}", spread, f"{ratio:.2f} x")
    return out


def size_table(result: dict[str, dict[str, float]]) -> Table:
    out = new_table("packed as", "shards / JPEG files", "with the manifest", "rows in blocks")
    for name, r in result.items():
        rows = f"{r['rows_in_blocks']:,.0f} of {r['rows']:,.0f}"
        out.add_row(name, f"{r['shards']:.4f}", f"{r['with_manifest']:.4f}", rows)
    return out


def packing_table(result: dict[str, dict[str, float]]) -> Table:
    out = new_table("ms an image", "pack()", "pack(), processor time", "blocks_encode()")
    for level, r in result.items():
        values = r["pack_ms"], r["pack_processor_ms"], r["blocks_encode_ms"]
        out.add_row(level, *(f"{value:.2f}" for value in values))
    return out


def report(result: dict[str, Any]) -> None:
    out, load = console(), result["loading"]
    out.print(
        f"Loading: {result['images']} images, RandomResizedCrop({SIZE}) + flip to uint8, warm, "
        f"medians of {result['rounds']} rounds; {machine_line()}",
        loading_table(load),
        sep="\n",
    )
    scales = ", ".join(f"{scale:.2f} x ({what})" for what, scale in load["threads_scale"].items())
    out.print(
        f"{result['threads']} threads against one: {scales}; first batch after "
        f"{load['first_batch_s'] * 1e3:.0f} ms; memory grew by {load['memory_growth_mb']:.1f} MB "
        "over 50 epochs with early breaks\n"
    )
    out.print(f"Size: {result['photos']}", size_table(result["size"]), "", sep="\n")
    out.print("Packing, one worker", packing_table(result["packing"]), sep="\n")


def measure(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    files = source_photos(arguments, work)
    os.environ["XDG_CACHE_HOME"] = str(work)  # indexes are kept here
    repeated = copied(files, arguments.count, work / "repeated")
    once = linked(files, len(files), work / "once")
    packed = {codec: work / codec for codec in ("jpeg", "blocks")}
    for codec, target in packed.items():
        fastio.pack(repeated, target, codec=codec)  # type: ignore[arg-type]
    return {
        "machine": machine(),
        "photos": about_photos(files, arguments.held_out),
        "images": arguments.count,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "size": sizes(once, files, work),
        "loading": loading(repeated, packed, arguments.threads, arguments.rounds),
        "packing": packing(once, files, work, arguments.pack_rounds),
    }


def main() -> None:
    parser = photo_parser(__doc__)
    parser.add_argument("--count", type=int, default=5000, help="rows, by repeating (5000)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5, help="of loading (5)")
    parser.add_argument("--pack-rounds", type=int, default=3, help="of packing (3)")
    arguments = parser.parse_args()
    with temporary_folder() as work:
        result = measure(arguments, work)
    report(result)
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
