"""Trains a codebook for the block codec on the JPEG files of a dataset.

    tools/train_codebook PHOTOS --output codebook.bin
    fastio pack PHOTOS packed --codebook codebook.bin

A codebook says how many bits the coefficients of 256 kinds of block take (docs/block_record.md). If
it is trained on images of the same kind, their records are a little smaller than with the default
codebook. The decoded images are the same.

To measure the gain, a trial codebook is trained on every second file, and compared with the default
codebook on the other files. The codebook that is written is then trained on all files.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastio import _native
from fastio.pack.images import choose_codebook

Jpeg = NDArray[np.uint8]


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    jpegs = read_jpegs(options.photos, options.files, options.seed)
    if len(jpegs) < 2:
        print(
            f"{options.photos}: at least 2 JPEG files that a block record can hold are needed, "
            f"found {len(jpegs)}",
            file=sys.stderr,
        )
        return 1

    def train(files: list[Jpeg]) -> bytes:
        return _native.train_codebook(files, options.seed, options.passes, options.blocks)

    trial = train(jpegs[::2])
    shipped = choose_codebook(None).data
    assert shipped is not None
    before, after = ratio(shipped, jpegs[1::2]), ratio(trial, jpegs[1::2])
    print(f"{len(jpegs)} JPEG files, {sum(map(len, jpegs)) / 1e6:.1f} MB")
    print("size of the block records, divided by the size of the JPEG files (smaller is better):")
    print(f"  default codebook, every second file                   {before:.4f}")
    print(f"  codebook trained on the other files, the same files   {after:.4f}")
    if after >= before:
        print("  the default codebook is as good or better: train on more files")
    final = train(jpegs)
    options.output.write_bytes(final)
    print(f"  codebook trained on all files, all files              {ratio(final, jpegs):.4f}")
    print(f"wrote {options.output}; use it with: fastio pack --codebook {options.output}")
    return 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/train_codebook",
        description="Train a codebook for the block codec on the JPEG files in a folder.",
    )
    parser.add_argument("photos", type=Path, help="a folder with JPEG files, at any depth")
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--files", type=int, default=1000, help="most JPEG files to use (1000)")
    parser.add_argument(
        "--blocks", type=int, default=500_000, help="blocks to train on, about (500000)"
    )
    parser.add_argument("--passes", type=int, default=60, help="passes over the blocks (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (0)")
    options = parser.parse_args(arguments)
    if min(options.files, options.blocks, options.passes) < 1:
        parser.error("--files, --blocks and --passes must be at least 1")
    if not options.photos.is_dir():
        parser.error(f"{options.photos} is not a folder")
    output = options.output
    if output.is_dir():
        parser.error(f"cannot write {output}: it is a folder")
    if not output.parent.is_dir():
        parser.error(f"cannot write {output}: there is no folder {output.parent}")
    return options


def read_jpegs(folder: Path, most: int, seed: int) -> list[Jpeg]:
    """Returns the JPEG files that a block record can hold, uint8 (bytes,) each, sorted by name."""
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in (".jpg", ".jpeg", ".jpe") and path.is_file()
    )
    if len(paths) > most:
        paths = sorted(random.Random(seed).sample(paths, most))
    book = _native.Codebook(np.frombuffer(choose_codebook(None).data or b"", np.uint8))
    jpegs = []
    for path in paths:
        jpeg = np.fromfile(path, np.uint8)
        try:
            if _native.blocks_encode(jpeg, book) is not None:
                jpegs.append(jpeg)
        except ValueError as error:
            print(f"{path}: left out: {error}", file=sys.stderr)
    return jpegs


def ratio(codebook: bytes, jpegs: list[Jpeg]) -> float:
    """Returns the size of the files' block records divided by the size of the files."""
    book = _native.Codebook(np.frombuffer(codebook, np.uint8))
    records = 0
    for jpeg in jpegs:
        encoded = _native.blocks_encode(jpeg, book)
        assert encoded is not None  # read_jpegs() left such files out
        records += len(encoded[0])
    return records / sum(map(len, jpegs))


if __name__ == "__main__":
    sys.exit(main())
