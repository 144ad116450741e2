"""Measures operations on the pixels of an image on one core, in microseconds per instruction set.

    .venv/bin/python benchmarks/pixels.py [--against CHECKOUT] [--part NAME] [--instructions]

The script builds the native program native/bench/pixels.cpp, which runs each operation on a
generated image of three channels that fits into the processor's cache. The table has the medians of
all rounds. With --against, the program of another checkout is run in turns with this one, so that a
change of the clock frequency affects both.

--instructions counts the instructions of an operation with valgrind's callgrind, which does not
support AVX-512. Other programs on the machine do not change these figures.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import (
    ROOT,
    console,
    machine,
    machine_line,
    native_program,
    new_table,
    simd_levels,
    temporary_folder,
    write_json,
)

# The figures of one program: part -> instruction set -> values.
Figures = dict[str, dict[str, list[float]]]


def run(program: Path, rounds: int, size: int, level: str, part: str) -> Figures:
    """Runs a program once, and returns its figures."""
    command = [str(program), str(rounds), str(size), level, part]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found: Figures = json.loads(done.stdout)
    return found


def times(programs: list[Path], arguments: argparse.Namespace) -> list[Figures]:
    """Returns the microseconds that each program measured; the programs run in turns."""
    found: list[Figures] = [{} for _ in programs]
    for _ in range(arguments.turns):
        for figures, program in zip(found, programs, strict=True):
            turn = run(program, arguments.rounds, arguments.size, "all", arguments.part)
            for part, levels in turn.items():
                for level, values in levels.items():
                    figures.setdefault(part, {}).setdefault(level, []).extend(values)
    return found


def instructions(programs: list[Path], arguments: argparse.Namespace) -> list[Figures]:
    """Returns thousands of instructions of each operation: what a round after the first adds."""
    found: list[Figures] = [{} for _ in programs]
    parts = run(programs[0], 1, arguments.size, "portable", arguments.part)
    with temporary_folder() as work:
        for figures, program in zip(found, programs, strict=True):
            for part in parts:
                for level in ("portable", "avx2"):
                    few, many = (
                        _count(program, rounds, arguments.size, level, part, work)
                        for rounds in (1, 5)
                    )
                    figures.setdefault(part, {})[level] = [(many - few) / 4e3]
    return found


def _count(program: Path, rounds: int, size: int, level: str, part: str, work: Path) -> int:
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={work / 'out'}",
         str(program), str(rounds), str(size), level, part],
        capture_output=True,
        text=True,
    )  # fmt: skip
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if not counted:
        sys.exit(done.stderr)
    return int(counted[1])


def report(found: list[Figures], names: list[str], unit: str) -> None:
    levels = simd_levels()
    out = new_table(unit, *(f"{level}{name}" for level in levels for name in names))
    for part, of_level in found[-1].items():
        cells = []
        for level in levels:
            for figures in found:
                values = figures.get(part, {}).get(level)
                cells.append(f"{statistics.median(values):.1f}" if values else "-")
        if of_level:
            out.add_row(part, *cells)
    console().print(machine_line(), out)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    parser.add_argument("--part", default="all", help="an operation (all)")
    parser.add_argument("--size", type=int, default=224, help="rows and columns (224)")
    parser.add_argument("--rounds", type=int, default=31, help="of a turn (31)")
    parser.add_argument("--turns", type=int, default=4, help="of each program (4)")
    parser.add_argument("--instructions", action="store_true", help="count instructions, in 1000s")
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()
    build = ROOT / "build"
    programs, names = [native_program("pixels", build / "bench")], [""]
    if arguments.against:
        programs.insert(0, native_program("pixels", build / "bench-other", arguments.against))
        names = [", other", ", this"]
    measure = instructions if arguments.instructions else times
    found = measure(programs, arguments)
    report(found, names, "1000 instructions" if arguments.instructions else "us")
    result: dict[str, Any] = {"machine": machine(), "programs": found}
    write_json(arguments.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
