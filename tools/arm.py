"""Builds fastio for 64-bit ARM on another machine, and runs it in qemu's user mode.

    tools/arm                          the native tests (four minutes of one core)
    tools/arm test -tc='*idct*'        the native tests that doctest's arguments select
    tools/arm python                   the Python tests that need no torch (PYTHON_TESTS)
    tools/arm python tests/test_x.py   the Python tests that pytest's arguments select
    tools/arm python --wheel FILE      the same, with the module of a wheel from tools/wheels
    tools/arm count PHOTOS             instructions per crop by function: portable, NEON, SVE2

It needs the packages g++-aarch64-linux-gnu, qemu-user and doctest-dev of Debian or Ubuntu. If one
is missing, tools/arm names it and exits with code 3. libjpeg-turbo and Python for ARM are
downloaded from Debian's archive with a separate apt state in build/arm, and Python packages from
PyPI; nothing is installed. Python must be of the version that the archive has. What is built and
downloaded is kept: a run that was interrupted continues there. The number of instructions does not
say how long they take: nothing here is a measurement on an ARM machine.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "arm"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# Folders in BUILD, and the packages that are unpacked there.
SYSROOT = BUILD / "sysroot"
JPEG_PACKAGES = ("libjpeg62-turbo", "libjpeg62-turbo-dev")
PYTHON_ROOT = BUILD / "python"
PYTHON_PACKAGES = (f"python{VERSION}", "libstdc++6", "libjpeg62-turbo")
SITE = BUILD / "site"  # packages of PyPI
TREE = BUILD / "tree"  # a copy of the checkout, with the module for ARM
TOOLS = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
    "cmake": "cmake",
    "ninja": "ninja-build",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
# qemu-user ends when the process forks while other threads run, does not support seccomp filters,
# which forbid system calls, and needs mappings of its own when the process can have no more.
NOT_UNDER_QEMU = (
    "a forked child can let go of its parent's engine",
    "a forked child reads with rings of its own while its parent reads",
    "where io_uring is forbidden*",
    "a cut-off file is noticed where the process can have no more mappings",
)
# Tests that need little or no torch: formats, packing, pixels, orders, crops, tables, tars, caches.
# Of these, tools/arm_pytest.py skips those that need torch or a fork.
PYTHON_TESTS = (
    "tests/test_block_records.py",
    "tests/test_cache_direct.py",
    "tests/test_cache_folder.py",
    "tests/test_cache_index.py",
    "tests/test_cache_lost_claims.py",
    "tests/test_cache_trust.py",
    "tests/test_damage.py",
    "tests/test_dataset.py",
    "tests/test_dataset_check.py",
    "tests/test_dataset_manifest.py",
    "tests/test_dataset_pixels.py",
    "tests/test_engine.py",
    "tests/test_native_arguments.py",
    "tests/test_order.py",
    "tests/test_pack_blocks.py",
    "tests/test_pack_images.py",
    "tests/test_pack_lists.py",
    "tests/test_pack_tables.py",
    "tests/test_pack_writer.py",
    "tests/test_parquet_columns.py",
    "tests/test_plan.py",
    "tests/test_sampling.py",
    "tests/test_schema.py",
    "tests/test_shard.py",
    "tests/test_shard_order.py",
    "tests/test_table_columns.py",
    "tests/test_table_files.py",
    "tests/test_tar_dataset.py",
    "tests/test_tar_headers.py",
    "tests/test_tar_names.py",
    "tests/test_tar_pack.py",
    "tests/test_tar_samples.py",
    "tests/test_transforms.py",
)
LEVELS = ("portable", "neon", "sve2")
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


def unpack(packages: Sequence[str], folder: Path) -> bool:
    """Unpacks packages for ARM and what they depend on, once. Returns whether it did."""
    done = folder / "done"
    if done.exists():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    apt = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
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
    run([*command, "install", "-y", "--no-install-recommends", "--download-only", *packages])
    for archive in (apt / "cache" / "archives").glob("*.deb"):
        run(["dpkg-deb", "-x", archive, folder])
    shutil.rmtree(apt)
    done.touch()
    return True


def make_sysroot() -> None:
    """Unpacks libjpeg-turbo for ARM, and copies the headers of doctest."""
    if unpack(JPEG_PACKAGES, SYSROOT):
        shutil.copytree("/usr/include/doctest", SYSROOT / "doctest" / "doctest")


def build(target: str, **more: str | Path) -> Path:
    """Compiles a program for ARM, linked statically, and returns its path.

    `more` are further definitions for CMake.
    """
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
        **more,
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


# --- Python ---------------------------------------------------------------------------------------


def make_site() -> None:
    """Downloads nanobind and the packages that fastio and its tests need, for ARM, except torch."""
    import tomllib  # not in Python 3.10, where tests import this file

    with open(ROOT / "pyproject.toml", "rb") as file:
        settings = tomllib.load(file)
    dependencies = settings["project"]["dependencies"]
    needed = [name for name in dependencies if not name.startswith("torch>")]
    needed += [name for name in settings["build-system"]["requires"] if "nanobind" in name]
    needed += ["pytest", "hypothesis"]
    done = SITE / "done"
    if done.exists() and done.read_text() == "\n".join(needed):
        return
    shutil.rmtree(SITE, ignore_errors=True)
    # A tag does not imply those of older versions of glibc here, so that all are listed.
    tags = ["2014", *(f"_2_{minor}" for minor in range(17, 37))]
    platforms = [f"--platform=manylinux{tag}_aarch64" for tag in tags]
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(SITE), *platforms]
    run([*command, f"--python-version={VERSION}", "--only-binary=:all:", *needed])
    done.write_text("\n".join(needed))


def build_module() -> Path:
    """Compiles the module for ARM, and returns its path."""
    options: dict[str, str | Path] = {
        "Python_EXECUTABLE": sys.executable,
        "nanobind_DIR": SITE / "nanobind" / "cmake",
    }
    build("_native", FASTIO_MODULE="ON", NB_SUFFIX=".so", NB_SUFFIX_S=".abi3.so", **options)
    (module,) = (BUILD / "native").glob("_native.*so")
    return module


def unpack_module(wheel: Path) -> Path:
    """Unpacks the module of a wheel, and returns its path."""
    folder = BUILD / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if re.fullmatch(r"fastio/_native\..*so", n))
        return Path(archive.extract(name, folder))


def make_tree(module: Path) -> None:
    """Copies the files of the checkout and the module to TREE."""
    shutil.rmtree(TREE, ignore_errors=True)
    listed = run(["git", "-C", ROOT, "ls-files", "-coz", "--exclude-standard"])
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)
    shutil.copy2(module, TREE / "fastio")


def make_interpreter() -> Path:
    """Writes a script that runs Python for ARM. It becomes sys.executable, which tests start."""
    script = BUILD / "python-arm"
    program = PYTHON_ROOT / "usr" / "bin" / f"python{VERSION}"
    script.write_text(f'#!/bin/sh\nexec qemu-aarch64 -L "{PYTHON_ROOT}" -0 "$0" "{program}" "$@"\n')
    script.chmod(0o755)
    return script


def python(arguments: Sequence[str], wheel: Path | None) -> int:
    """Runs the Python tests that need no torch; returns pytest's exit code."""
    unpack(PYTHON_PACKAGES, PYTHON_ROOT)
    make_site()
    make_tree(unpack_module(wheel) if wheel else build_module())
    command = [str(make_interpreter()), "-m", "pytest", "-p", "arm_pytest"]
    command += arguments or ["-q", *PYTHON_TESTS]
    environment = {**os.environ, "PYTHONPATH": f"{SITE}:{TREE / 'tools'}"}
    return subprocess.run(command, cwd=TREE, env=environment).returncode


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
    """Prints instructions per crop of block records and of JPEGs, for each level."""
    photos = [
        path for path in sorted(folder.glob("*/*")) if path.suffix.lower() in (".jpg", ".jpeg")
    ]
    photos = photos[:: max(1, len(photos) // number)][:number]
    if not photos:
        sys.exit(f"arm: {folder} has no subfolders with JPEG files")
    for codec in ("blocks", "jpeg"):
        totals = []
        for level in LEVELS:
            counts = count_crops(level, codec, photos, crops)
            print_counts(counts, most)
            totals.append(sum(counts.values()))
        for level, total in zip(LEVELS[1:], totals[1:], strict=True):
            print(f"{codec}: {totals[0] / total:.2f} times fewer instructions with {level}")
    return 0


def parse(arguments: Iterable[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="tools/arm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("test", help="run the native tests; further arguments are doctest's")
    testing = commands.add_parser("python", help="run Python tests; further arguments are pytest's")
    testing.add_argument("--wheel", type=Path, help="test the module of this wheel for ARM")
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
    if rest and known.command == "count":
        sys.exit(f"arm: unknown arguments {' '.join(rest)}; see tools/arm --help")
    require_tools()
    if known.command == "count":
        return count(known.photos, known.number, known.crops, known.functions)
    return python(rest, known.wheel) if known.command == "python" else test(rest)


if __name__ == "__main__":
    sys.exit(main())
