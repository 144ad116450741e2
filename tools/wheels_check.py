"""Checks the size, symbols and licences of wheels, and whether they work without a compiler.

For each wheel of this machine, an environment is made with each installed Python that the wheel is
for. The wheel is installed with its dependencies (torch only with --torch) and used with a PATH
without a compiler. Images are decoded alone, and in one process with other copies of libjpeg that
are loaded before or after fastio.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import Parser
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wheels import Python

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 8_000_000  # bytes
# Libraries of every Linux system that manylinux allows.
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
LOADERS = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
LICENCES = {"LICENSE", "libjpeg-turbo/LICENSE.md", "libjpeg-turbo/README.ijg"}


class Failed(Exception):
    """A check of a wheel failed."""


# --- The file -------------------------------------------------------------------------------------


def check_file(wheel: Path) -> None:
    """Checks size, licences, libraries, symbols and stable ABI of a wheel of any machine."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    size = wheel.stat().st_size
    if size >= LARGEST:
        raise Failed(f"{size:,} bytes, {LARGEST:,} are allowed")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        licences = {n.split("/licenses/")[1] for n in names if ".dist-info/licenses/" in n}
        if LICENCES - licences:
            raise Failed(f"licences are missing: {sorted(LICENCES - licences)}")
        modules = [n for n in names if ".so" in Path(n).suffixes]
        if len(modules) != 1:
            raise Failed(f"one native module is expected, there are {modules}")
        elf = ELFFile(BytesIO(archive.read(modules[0])))
    dynamic = next(s for s in elf.iter_sections() if isinstance(s, DynamicSection))
    needed = {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
    if needed - LIBRARIES - LOADERS:
        raise Failed(f"needs {sorted(needed - LIBRARIES - LOADERS)}")
    symbols = elf.get_section_by_name(".dynsym")
    assert isinstance(symbols, SymbolTableSection)
    shown = {s.name for s in symbols.iter_symbols() if s["st_shndx"] != "SHN_UNDEF" and s.name}
    if shown != {"PyInit__native"}:
        raise Failed(f"symbols are not hidden: {sorted(shown - {'PyInit__native'})[:10]}")
    if "-abi3-" in wheel.name:
        _run([sys.executable, "-m", "abi3audit", "--strict", wheel], wheel.parent)


# --- In use ---------------------------------------------------------------------------------------

# Prints the hash of the pixels of all photos, decoded by fastio, with other copies of libjpeg
# loaded before fastio, after it, or not at all.
_DECODE = """
import ctypes, glob, hashlib, importlib.util, os, sys
import sysconfig

def load_others():
    folder = sysconfig.get_path("purelib")
    found = sorted(glob.glob(os.path.join(folder, "*.libs", "libjpeg*.so*")))
    assert found, "there is no other libjpeg"
    for path in found:
        ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    from PIL import Image
    with Image.open("photos/a/0.jpg") as image:
        image.load()
    if importlib.util.find_spec("torchvision"):
        from torchvision.io import decode_jpeg, read_file
        decode_jpeg(read_file("photos/a/0.jpg"))

if sys.argv[1] == "before":
    load_others()
import fastio
if sys.argv[1] == "after":
    load_others()
digest = hashlib.sha256()
for row in range(len(fastio.open("photos"))):
    digest.update(fastio.open("photos")[row][0].tobytes())
print(digest.hexdigest())
"""

_PHOTOS = """
import os
import numpy as np
from PIL import Image
random = np.random.default_rng(0)
for kind in "ab":
    os.makedirs(f"photos/{kind}")
    for number in range(32):
        small = random.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((400, 300), Image.Resampling.BICUBIC)
        image.save(f"photos/{kind}/{number}.jpg", progressive=number % 4 == 3)
"""

# Compares fastio's pixels of a folder and of a packed dataset.
_COMPARE = """
import glob
import numpy as np
from PIL import Image
import fastio
fastio.pack("photos", "packed-here")
folder, packed = fastio.open("photos"), fastio.open("packed-here")
paths = sorted(glob.glob("photos/a/*.jpg"))
assert len(folder) == len(packed) == 64
for row in range(64):
    assert folder[row][1] == packed[row][1]
    a, b = (np.asarray(d[row][0]).astype(int) for d in (folder, packed))
    assert a.shape == b.shape == (300, 400, 3) and abs(a - b).max() <= 8, (row, abs(a - b).max())
"""


def readme_quick_start() -> Iterator[tuple[str, str]]:
    """Yields the blocks of README's quick start as (language, code)."""
    section = (ROOT / "README.md").read_text().split("## Quick start")[1].split("\n## ")[0]
    yield from re.findall(r"^```(\w+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def _requirements(wheel: Path) -> list[str]:
    """Returns the dependencies of a wheel without torch, as pip's arguments."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    wanted = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    return [r for r in wanted if not re.match(r"torch\b", r)]


def check_use(wheel: Path, python: Python, folder: Path, with_torch: bool) -> None:
    """Installs a wheel with one Python in a new environment, and uses it there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    venv = folder / "venv"
    inside = venv / "bin" / "python"
    _run([python.path, "-m", "venv", venv], folder)
    pip = [inside, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile"]
    if with_torch:
        # In one command, so that pip installs versions of torch and torchvision that fit together.
        _run([*pip, wheel, "torchvision"], folder)
    else:
        _run([*pip, *_requirements(wheel)], folder)
        _run([*pip, "--no-deps", wheel], folder)
    # Only the programs of this environment: no compiler and no cmake.
    alone = {"PATH": str(venv / "bin"), "HOME": str(folder)}
    _run([inside, "-c", _PHOTOS], folder, alone)
    found = {
        how: _run([inside, "-c", _DECODE, how], folder, alone) for how in ("no", "before", "after")
    }
    if len(set(found.values())) != 1:
        raise Failed(f"pixels differ beside other copies of libjpeg: {found}")
    _run([inside, "-c", _COMPARE], folder, alone)
    if with_torch:
        for language, code in readme_quick_start():
            if language == "python":
                _run([inside, "-c", f"import fastio\n{code}"], folder, alone)
            else:
                _run(["/bin/sh", "-e", "-c", code], folder, alone)


def _run(command: Sequence[object], folder: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=env or os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command[:3]))} ... failed:\n{done.stdout}")
    return done.stdout


def check(wheels: Sequence[Path], pythons: Sequence[Python], build: Path, with_torch: bool) -> int:
    """Checks wheels and prints a line for each; returns how many failed, 1 if there are none."""
    if not wheels:
        print("wheels: there are no wheels to check; tools/wheels builds them")
        return 1
    failed = 0
    for wheel in wheels:
        here = wheel.stem.endswith(platform.machine())
        serving = [p for p in pythons if here and f"-cp{p.serves.replace('.', '')}-" in wheel.name]
        said = "its size, licences and symbols are right"
        try:
            check_file(wheel)
            for python in serving:
                check_use(wheel, python, build / "check" / python.version, with_torch)
                said += f", works with Python {python.version}"
            if not serving:
                said += "; not run, because this machine or its Pythons cannot run it"
        except Failed as failure:
            failed += 1
            said = f"FAILED: {failure}"
        print(f"wheels: {wheel.name}: {said}", flush=True)
    return min(failed, 1)
