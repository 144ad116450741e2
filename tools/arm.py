"""Builds the native code for 64-bit ARM on another machine, and runs it in qemu's user mode.

    tools/arm                          the native tests (four minutes of one core)
    tools/arm test -tc='*idct*'        the native tests that doctest's arguments select
    tools/arm count PHOTOS             instructions per crop by function, portable and with NEON

It needs the packages g++-aarch64-linux-gnu, qemu-user and doctest-dev of Debian or Ubuntu. If one
is missing, it names it and exits with code 3. libjpeg-turbo for ARM is downloaded from Debian's
archive with a separate apt state in build/arm; nothing is installed. The number of instructions
does not say how long they take: nothing here is a measurement on an ARM machine.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "arm"
SYSROOT = BUILD / "sysroot"
PACKAGES = ("libjpeg62-turbo", "libjpeg62-turbo-dev")
TOOLS = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
    "cmake": "cmake",
    "ninja": "ninja-build",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
# qemu-user ends when the process forks while other threads run, and it cannot get mappings of its
# own when the process can have no more.
NOT_UNDER_QEMU = (
    "a forked child can let go of its parent's engine",
    "a cut-off file is noticed where the process can have no more mappings",
)
# Not counted: this function only computes the checksum of the pixels.
NOT_COUNTED = "pixel_sum"


def run(command: Sequence[str | Path], text: str | None = None) -> str:
    """Runs a command and returns what it prints; exits with that if the command fails."""
    done = subprocess.run(
        [str(word) for word in command], input=text, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\narm: failed: {' '.join(map(str, command))}")
    return done.stdout


def require_tools() -> None:
    """Exits with code 3 and the packages to install, if tools are missing."""
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if not Path("/usr/include/doctest/doctest.h").exists():
        missing.append("doctest-dev")
    if missing:
        print(f"arm: skipped, this needs: apt-get install {' '.join(missing)}", file=sys.stderr)
        sys.exit(3)


def make_sysroot() -> None:
    """Unpacks libjpeg-turbo for ARM, and copies the headers of doctest."""
    done = SYSROOT / "done"
    if done.exists():
        return
    shutil.rmtree(SYSROOT, ignore_errors=True)
    apt = BUILD / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Debug::NoLocking": "1",
    }
    command = ["apt-get", *(f"-o{name}={value}" for name, value in options.items())]
    run([*command, "update"])
    run([*command, "install", "-y", "--no-install-recommends", "--download-only", *PACKAGES])
    for package in PACKAGES:
        for archive in (apt / "cache" / "archives").glob(f"{package}_*.deb"):
            run(["dpkg-deb", "-x", archive, SYSROOT])
    shutil.copytree("/usr/include/doctest", SYSROOT / "doctest" / "doctest")
    done.touch()


def build(target: str) -> Path:
    """Compiles a program for ARM, linked statically, and returns its path."""
    make_sysroot()
    folder = BUILD / "native"
    toolchain = BUILD / "toolchain.cmake"
    toolchain.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        "set(CMAKE_SYSTEM_PROCESSOR aarch64)\n"
        "set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)\n"
    )
    include = SYSROOT / "usr" / "include"
    options = {
        "CMAKE_TOOLCHAIN_FILE": toolchain,
        "CMAKE_EXE_LINKER_FLAGS": "-static",
        "JPEG_LIBRARY": SYSROOT / "usr/lib/aarch64-linux-gnu/libjpeg.a",
        "JPEG_INCLUDE_DIR": f"{include};{include / 'aarch64-linux-gnu'}",
        "DOCTEST_INCLUDE_DIR": SYSROOT / "doctest",
        "FASTIO_MODULE": "OFF",
        "FASTIO_TESTS": "ON",
        "FASTIO_BENCH": "ON",
        "FASTIO_WERROR": "ON",
    }
    defined = [f"-D{name}={value}" for name, value in options.items()]
    run(["cmake", "-S", ROOT / "native", "-B", folder, "-G", "Ninja", *defined])
    run(["cmake", "--build", folder, "--target", target])
    return folder / target


def test(arguments: Sequence[str]) -> int:
    """Runs the native tests; returns doctest's exit code."""
    program = build("fastio_tests")
    left_out = ",".join(NOT_UNDER_QEMU)
    return subprocess.run(
        ["qemu-aarch64", program, f"--test-case-exclude={left_out}", *arguments]
    ).returncode


# --- Counting -------------------------------------------------------------------------------------


def instructions(file: Path) -> collections.Counter[str]:
    """Returns the number of instructions of each function, from a file that the plugin wrote."""
    counts: collections.Counter[str] = collections.Counter()
    for line in file.read_text().splitlines():
        count, name = line.split(" ", 1)
        if NOT_COUNTED not in name:
            counts[name] += int(count)
    return counts


def count_crops(level: str, codec: str, photos: Sequence[Path], crops: int) -> dict[str, float]:
    """Returns the instructions per crop of each function, from two runs that differ by `crops`."""
    program = build("fastio_bench_crop")
    plugin = BUILD / "count.so"
    source = ROOT / "native" / "bench" / "count_instructions.c"
    run(["cc", "-O2", "-shared", "-fPIC", "-o", plugin, source])
    codebook = ROOT / "fastio" / "packed" / "codebook.bin"
    counted = []
    for number in (1, 1 + crops):
        out = BUILD / f"count-{number}"
        command: list[str | Path] = [program, level, codec, codebook, str(number)]
        said = run(
            ["qemu-aarch64", "-plugin", f"{plugin},out={out}", *command],
            "".join(f"{path.resolve()}\n" for path in photos),
        )
        counted.append(instructions(out))
    print(f"{codec}, {level}: {said.strip()}")
    few, many = counted
    return {name: (many[name] - few[name]) / (crops * len(photos)) for name in many}


def print_counts(counts: dict[str, float], most: int) -> None:
    """Prints the functions with the most instructions."""
    print(f"{sum(counts.values()):12,.0f} instructions a crop")
    names = sorted(counts, key=lambda name: -counts[name])[:most]
    readable = run(["c++filt"], "\n".join(names)).splitlines()
    for name, shown in zip(names, readable, strict=True):
        print(f"{counts[name]:12,.0f} {shown[:80]}")


def count(folder: Path, number: int, crops: int, most: int) -> int:
    """Prints instructions per crop of block records and of JPEGs, portable and with NEON."""
    photos = [
        path for path in sorted(folder.glob("*/*")) if path.suffix.lower() in (".jpg", ".jpeg")
    ]
    photos = photos[:: max(1, len(photos) // number)][:number]
    if not photos:
        sys.exit(f"arm: {folder} has no subfolders with JPEG files")
    for codec in ("blocks", "jpeg"):
        totals = []
        for level in ("portable", "neon"):
            counts = count_crops(level, codec, photos, crops)
            print_counts(counts, most)
            totals.append(sum(counts.values()))
        print(f"{codec}: {totals[0] / totals[1]:.2f} times fewer with NEON\n")
    return 0


def parse(arguments: Iterable[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="tools/arm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("test", help="run the native tests; further arguments are doctest's")
    counting = commands.add_parser("count", help="count the instructions per crop")
    counting.add_argument("photos", type=Path, help="folder with a folder of photos for each class")
    counting.add_argument("--number", type=int, default=10, help="number of photos (10)")
    counting.add_argument("--crops", type=int, default=2, help="number of crops of each photo (2)")
    counting.add_argument(
        "--functions", type=int, default=12, help="number of functions to show (12)"
    )
    return parser.parse_known_args(list(arguments))


def main() -> int:
    known, rest = parse(sys.argv[1:])
    if rest and known.command != "test":
        sys.exit(f"arm: unknown arguments {' '.join(rest)}; see tools/arm --help")
    require_tools()
    if known.command == "count":
        return count(known.photos, known.number, known.crops, known.functions)
    return test(rest)


if __name__ == "__main__":
    sys.exit(main())
