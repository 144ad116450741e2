"""The parts of the block codec, on one core: nanoseconds a block and milliseconds an image.

    .venv/bin/python benchmarks/codec.py [FOLDER] [--held-out] [--rounds 9] [--json FILE]

FOLDER has a folder of photos for each class; without it, photos are made. They are encoded in
memory with the default codebook, by the native program that native/bench/codec.cpp is built to.
For each instruction set of the machine, medians of rounds; a round has all of them in turn.

  DC              reading the DC section of a photo: classes, differences, sums; a block
  expand          AC bits of whole tiles to dequantised coefficients; a block
  inverse DCT     8 x 8; 4 x 4 and 2 x 2 for reduced sizes; from the first cache; a block
  region decode   all of the above for what a crop needs, with its checksums, to planes; an image
  resample        planes to 224 x 224 RGB pixels, with colour conversion; an image
  whole crop      RandomResizedCrop(224) + flip: these two, header and filter taps; an image
  encode          of coefficients; reading them from the JPEG file's bytes stands by itself

Blocks are those of all components. Crops have fixed seeds: every run measures the same ones. The
second table has whole crops by how much they shrink; planes of those that shrink much are decoded
at a reduced size, at an eighth from the DC section alone. Then bytes that a crop moves where no
plane is reduced, and how many a second that makes: what is read of the record, coefficients
(written and read again, in the first cache), planes (written and read again), and the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import (
    CODEBOOK,
    ROOT,
    SHRINKS,
    about_photos,
    console,
    machine,
    machine_line,
    native_program,
    new_table,
    photo_parser,
    simd_levels,
    source_photos,
    temporary_folder,
    write_json,
)
from rich.table import Table

# What the program calls a part, and what stands in the table.
PARTS = {
    "dc ns/block": "DC, ns a block",
    "expand ns/block": "expand, ns a block",
    "idct 8 ns/block": "inverse DCT 8 x 8, ns a block",
    "idct 4 ns/block": "inverse DCT 4 x 4, ns a block",
    "idct 2 ns/block": "inverse DCT 2 x 2, ns a block",
    "region decode ms": "region decode, ms an image",
    "resample ms": "resample, ms an image",
    "crop ms": "whole crop, ms an image",
    "read coefficients ms": "reading coefficients, ms an image",
    "encode ms": "encode, ms an image",
}


def measure(program: Path, files: Sequence[Path], rounds: int, crops: int) -> dict[str, Any]:
    """What the program finds, with medians of its rounds."""
    done = subprocess.run(
        [str(program), str(CODEBOOK), str(rounds), str(crops)],
        input="".join(f"{path.resolve()}\n" for path in files),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    result["medians"] = {
        part: {level: statistics.median(values) for level, values in levels.items()}
        for part, levels in result["rounds"].items()
    }
    return result


def part_table(medians: dict[str, dict[str, float]]) -> Table:
    levels = simd_levels()
    out = new_table("", *levels)
    for part, name in PARTS.items():
        digits = 3 if part.endswith("ms") else 2
        out.add_row(name, *(f"{medians[part][level]:.{digits}f}" for level in levels))
    return out


def shrink_table(result: dict[str, Any]) -> Table:
    levels = simd_levels()
    out = new_table("whole crop that shrinks", "crops", *(f"{level}, ms" for level in levels))
    for shrink in SHRINKS:
        found = result["medians"].get(f"crop ms, shrink {shrink}")
        if found:
            count = f"{result['crops_of_shrink'][shrink]:,}"
            out.add_row(shrink, count, *(f"{found[level]:.3f}" for level in levels))
    return out


def about_bytes(result: dict[str, Any]) -> str:
    moved = result["moved_bytes"]
    total = moved["record"] + 2 * moved["coefficients"] + 2 * moved["planes"] + moved["result"]
    best = simd_levels()[0]
    per_second = total / result["medians"]["crop ms"][best] / 1e6
    parts = ", ".join(f"{name} {count / 1e3:,.0f}" for name, count in moved.items())
    photo = (
        f"A photo has {result['blocks']:,.0f} blocks, {result['jpeg_bytes'] / 1e3:,.1f} KB as a "
        f"JPEG file, {result['record_bytes'] / 1e3:,.1f} as a block record "
        f"({result['record_bytes'] / result['jpeg_bytes']:.4f})."
    )
    if any(SHRINKS[name] >= 4 for name in result["crops_of_shrink"]):
        return f"{photo} Bytes that a crop moves are not told: some shrink four times or more."
    return (
        f"{photo} KB that a crop moves: {parts}; with what is written and read again "
        f"{total / 1e3:,.0f}, {per_second:.1f} GB/s with {best}"
    )


def report(result: dict[str, Any]) -> None:
    out = console()
    out.print(
        f"The block codec's parts, one core, medians of {result['rounds_asked']} rounds; "
        f"{machine_line()}",
        f"{result['about']}; {result['crops']} crops of each; {result['foreign']} that no record "
        "holds left out",
        part_table(result["medians"]),
        shrink_table(result),
        about_bytes(result),
        sep="\n",
    )


def measured(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    files = source_photos(arguments, work)
    program = native_program("codec", arguments.build)
    return {
        "machine": machine(),
        "about": about_photos(files, arguments.held_out),
        "rounds_asked": arguments.rounds,
        **measure(program, files, arguments.rounds, arguments.crops),
    }


def main() -> None:
    parser = photo_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="(9)")
    parser.add_argument("--crops", type=int, default=4, help="of each photo (4)")
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "bench", help="where to build (build/bench)"
    )
    arguments = parser.parse_args()
    with temporary_folder() as work:
        result = measured(arguments, work)
    report(result)
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
