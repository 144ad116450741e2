"""Builds manylinux wheels that contain libjpeg-turbo, without containers.

    tools/wheels                   builds the wheels of all Pythons and machines, in dist/
    tools/wheels --check           checks the wheels in dist/ (wheels_check.py)

The compiler is zig, from PyPI. It has the headers and symbol lists of every glibc, so that wheels
that are built on a new system run on old ones: with glibc 2.28 or newer, as torch's own wheels. It
compiles for both machines and links its C++ library statically. libjpeg-turbo is compiled from its
release, and its symbols are hidden in the module, because Pillow and torchvision load copies of
their own into the same process.

One wheel, built with the stable ABI (abi3), is for Python 3.12 and newer; 3.10 and 3.11 need wheels
of their own. Unless --python is given, interpreters are looked up in PATH, pyenv and uv. If none is
found for a version, the other wheels are built, the version is named at the end, and the exit code
is 1. The x86 code of libjpeg-turbo needs nasm.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import wheels_check

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "wheels"

JPEG_VERSION = "3.2.0"
JPEG_URL = (
    "https://github.com/libjpeg-turbo/libjpeg-turbo/releases/download/"
    f"{JPEG_VERSION}/libjpeg-turbo-{JPEG_VERSION}.tar.gz"
)
JPEG_SHA256 = "6f30092cef9fb839779646608f4ee14ae3cbac989c47fa05e841b0841f09878e"

GLIBC = "2.28"
MACHINES = ("x86_64", "aarch64")
# The last entry is also for all newer versions.
PYTHONS = ("3.10", "3.11", "3.12")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
BUILD_PACKAGES = (
    "nanobind==3.1.0",
    "scikit-build-core==1.1.2",
    # Additional dependencies of scikit-build-core on Python 3.10.
    "exceptiongroup==1.3.2",
    "tomli==2.5.0",
    "typing-extensions==4.16.0",
)
TAGS = {"3.10": "cp310-cp310", "3.11": "cp311-cp311", "3.12": "cp312-abi3"}


@dataclass(frozen=True)
class Python:
    """An interpreter with headers, and its version, such as "3.11"."""

    path: Path
    version: str

    @property
    def serves(self) -> str:
        """The entry of PYTHONS for which a wheel that this interpreter builds can be used."""
        newest = PYTHONS[-1]
        return newest if _number(self.version) >= _number(newest) else self.version


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def run(command: Sequence[object], **env: str) -> None:
    """Runs a command without its output; exits with the output if the command fails."""
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nwheels: failed: {' '.join(map(str, command))}")


# --- Pythons --------------------------------------------------------------------------------------

_ABOUT = """
import json, os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "usable": sys.implementation.name == "cpython" and os.path.exists(header)
    and not sysconfig.get_config_var("Py_GIL_DISABLED"),
}))
"""


def _candidates() -> Iterable[Path]:
    """Yields paths that may be interpreters: in PATH, and those of pyenv and of uv."""
    for folder in os.environ["PATH"].split(os.pathsep):
        yield from sorted(Path(folder).glob("python3.[0-9]*"))
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    yield from sorted(pyenv.glob("versions/*/bin/python3.[0-9]*"))
    yield from sorted((home / ".local/share/uv/python").glob("*/bin/python3.[0-9]*"))


def _python(path: Path) -> Python | None:
    """Returns an interpreter, or None if wheels cannot be built with it."""
    if not os.access(path, os.X_OK):
        return None
    done = subprocess.run([path, "-c", _ABOUT], capture_output=True, text=True)
    if done.returncode:
        return None  # for example, a pyenv shim of a version that is not selected
    about = json.loads(done.stdout)
    python = Python(path, about["version"])
    return python if about["usable"] and python.serves in PYTHONS else None


def find_pythons(given: Sequence[str]) -> list[Python]:
    """Returns one interpreter with headers for each version that is installed, oldest first.

    If interpreters are given, as paths or names in PATH, considers only these, and exits if wheels
    cannot be built with one of them.
    """
    found: dict[str, Python] = {}
    for name in given:
        python = _python(Path(shutil.which(name) or name))
        if python is None:
            sys.exit(
                f"wheels: {name} is not a CPython {PYTHONS[0]} or newer with headers and an "
                "interpreter lock"
            )
        found.setdefault(python.version, python)
    for path in () if given else _candidates():
        if "-" not in path.name and (python := _python(path)):  # not python3.11-config
            found.setdefault(python.version, python)
    return sorted(found.values(), key=lambda python: _number(python.version))


# --- libjpeg-turbo and the compiler ---------------------------------------------------------------


def jpeg_source(given: Path | None) -> Path:
    """Returns the folder of libjpeg-turbo's source. Downloads the source unless it is given."""
    if given and given.is_dir():
        build_file = given / "CMakeLists.txt"
        if not build_file.exists() or f"set(VERSION {JPEG_VERSION})" not in build_file.read_text():
            sys.exit(f"wheels: {given} is not the source of libjpeg-turbo {JPEG_VERSION}")
        return given
    folder = BUILD / f"libjpeg-turbo-{JPEG_VERSION}"
    if folder.is_dir():
        return folder
    archive = given or BUILD / f"libjpeg-turbo-{JPEG_VERSION}.tar.gz"
    if not archive.exists():
        print(f"wheels: downloading {JPEG_URL}")
        try:
            with urllib.request.urlopen(JPEG_URL, timeout=60) as answer:
                archive.write_bytes(answer.read())
        except OSError as error:
            sys.exit(f"wheels: {JPEG_URL}: {error}. Download it, and give it as --libjpeg-source")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != JPEG_SHA256:
        sys.exit(f"wheels: {archive}: SHA-256 is {digest}, not {JPEG_SHA256}")
    shutil.unpack_archive(archive, BUILD)
    return folder


def toolchain(machine: str) -> Path:
    """Writes compiler scripts that call zig for a machine; returns the CMake toolchain file."""
    folder = BUILD / machine / "zig"
    folder.mkdir(parents=True, exist_ok=True)
    target = f"-target {machine}-linux-gnu.{GLIBC}"
    for name, words in {
        "cc": f"cc {target}",
        "c++": f"c++ {target}",
        "ar": "ar",
        "ranlib": "ranlib",
    }.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {words} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    lines = [f"set(CMAKE_C_COMPILER {folder / 'cc'})", f"set(CMAKE_CXX_COMPILER {folder / 'c++'})"]
    lines += [f"set(CMAKE_AR {folder / 'ar'})", f"set(CMAKE_RANLIB {folder / 'ranlib'})"]
    # nanobind 3.1 uses stderr without including <cstdio>; other C++ libraries include it.
    lines += ['set(CMAKE_CXX_FLAGS_INIT "-include cstdio")']
    if machine != platform.machine():
        lines = ["set(CMAKE_SYSTEM_NAME Linux)", f"set(CMAKE_SYSTEM_PROCESSOR {machine})", *lines]
    file = folder / "toolchain.cmake"
    file.write_text("\n".join(lines) + "\n")
    return file


def build_jpeg(source: Path, machine: str) -> Path:
    """Compiles the static library for a machine; returns the folder where it is installed."""
    build, prefix = BUILD / machine / "jpeg-build", BUILD / machine / "jpeg"
    key = f"{source} {JPEG_VERSION} {GLIBC}"
    done = prefix / "fastio-wheels"
    if done.exists() and done.read_text() == key:
        return prefix
    if machine == "x86_64" and not shutil.which("nasm"):
        sys.exit(
            "wheels: nasm is missing, which libjpeg-turbo's x86 code needs: apt-get install nasm"
        )
    shutil.rmtree(build, ignore_errors=True)
    shutil.rmtree(prefix, ignore_errors=True)
    # Hidden, so that code that uses another copy of the library does not call this one.
    options = ["-DENABLE_SHARED=OFF", "-DWITH_TURBOJPEG=OFF", "-DREQUIRE_SIMD=ON"]
    options += ["-DWITH_TOOLS=OFF", "-DWITH_TESTS=OFF", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"]
    options += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS=-fvisibility=hidden"]
    options += [f"-DCMAKE_TOOLCHAIN_FILE={toolchain(machine)}", f"-DCMAKE_INSTALL_PREFIX={prefix}"]
    run(["cmake", "-G", "Ninja", "-S", source, "-B", build, *options, "-DCMAKE_INSTALL_LIBDIR=lib"])
    run(["cmake", "--build", build, "--target", "install"])
    # The core replaces libjpeg's entropy decoder, whose structures this header declares.
    shutil.copy(source / "src" / "jpegint.h", prefix / "include")
    done.write_text(key)
    return prefix


# --- Wheels ---------------------------------------------------------------------------------------


def build_packages() -> Path:
    """Returns a folder with the Python packages that a build needs, for all Pythons.

    They share one folder, because scikit-build-core rebuilds everything when its own path changes.
    """
    folder = BUILD / "packages"
    key = " ".join(BUILD_PACKAGES)
    done = folder / "fastio-wheels"
    if not done.exists() or done.read_text() != key:
        shutil.rmtree(folder, ignore_errors=True)
        plain = ["--python-version", PYTHONS[0], "--implementation", "py", "--abi", "none"]
        plain += ["--platform", "any", "--only-binary=:all:"]
        run([*PIP, "install", "--target", folder, *plain, *BUILD_PACKAGES])
        done.write_text(key)
    return folder


# auditwheel reads wheels of any machine, but its command line accepts only tags of this machine.
_AUDITWHEEL = """
import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())
"""


def build_wheel(python: Python, machine: str, jpeg: Path, output: Path) -> Path:
    """Builds one wheel and returns its path in `output`, with the tag that auditwheel confirmed."""
    made = BUILD / machine / f"made-{python.serves}"
    shutil.rmtree(made, ignore_errors=True)
    suffix = (
        "abi3"
        if python.serves == PYTHONS[-1]
        else f"cpython-{python.version.replace('.', '')}-{machine}-linux-gnu"
    )
    # One build folder per machine: the core is compiled once, the module once for each Python.
    settings = {
        "build-dir": f"build/wheels/{machine}/module",
        "cmake.args": f"-DCMAKE_TOOLCHAIN_FILE={toolchain(machine)}",
        "cmake.define.FASTIO_STATIC_JPEG": str(jpeg),
    }
    run(
        [*PIP, "--python", python.path, "wheel", "--no-deps", "--no-build-isolation"]
        + ["--wheel-dir", made, ROOT]
        + [f"--config-settings={name}={value}" for name, value in settings.items()],
        PYTHONPATH=str(build_packages()),
        _PYTHON_HOST_PLATFORM=f"linux-{machine}",
        SETUPTOOLS_EXT_SUFFIX=f".{suffix}.so",
    )
    (wheel,) = made.glob("*.whl")
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    # Fails if the module needs a newer glibc than that of the tag, or other libraries.
    audit = ["repair", "--only-plat", "--plat", tag, "-w", output, wheel]
    run([sys.executable, "-c", _AUDITWHEEL, machine, *audit])
    (repaired,) = output.glob(f"fastio-*-{TAGS[python.serves]}-{tag}.whl")
    return repaired


def main() -> None:
    """Builds wheels, or checks them."""
    parser = argparse.ArgumentParser(
        prog="tools/wheels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="path or name of an interpreter; may be repeated (default: all that are found)",
    )
    parser.add_argument(
        "--machine", choices=MACHINES, action="append", help="may be repeated (default: both)"
    )
    parser.add_argument(
        "--libjpeg-source",
        type=Path,
        help=f"the source of libjpeg-turbo {JPEG_VERSION}: its archive, or a folder",
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist/)"
    )
    parser.add_argument(
        "--check", action="store_true", help="check the wheels in the output folder"
    )
    parser.add_argument(
        "--torch",
        action="store_true",
        help="with --check: also install torch, and run the quick start of the README",
    )
    options = parser.parse_args()
    output = options.output.resolve()
    pythons = find_pythons(options.python)
    # Each wheel is built with the oldest interpreter that it is for.
    makers = {python.serves: python for python in reversed(pythons)}
    if options.check:
        sys.exit(wheels_check.check(sorted(output.glob("*.whl")), pythons, BUILD, options.torch))
    BUILD.mkdir(parents=True, exist_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    source = jpeg_source(options.libjpeg_source)
    for machine in options.machine or MACHINES:
        jpeg = build_jpeg(source.resolve(), machine)
        for python in reversed(makers.values()):
            wheel = build_wheel(python, machine, jpeg, output)
            print(f"wheels: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    left_out = [version for version in PYTHONS if version not in makers]
    if left_out and not options.python:
        sys.exit(
            f"wheels: not built, since no Python with headers was found: {', '.join(left_out)}"
        )


if __name__ == "__main__":
    main()
