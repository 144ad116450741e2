"""README.md and docs/ run: their Python, their commands, the diff; their lists are whole."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer
import xxhash
from PIL import Image

import fastio
from fastio import errors
from fastio.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = "from fastio.cli import main; main()"


def blocks(page: Path) -> list[tuple[str, str, int]]:
    """The fenced blocks of a page: language, text, and the line that the text begins on."""
    text = page.read_text()
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in found]


def of(language: str) -> list[str]:
    return [text for page in PAGES for name, text, _ in blocks(page) if name == language]


def commands() -> list[list[str]]:
    """The commands of the shell blocks as words, their comments left out."""
    lines = "".join(of("sh")).splitlines()
    words = [re.sub(r"\s+#.*", "", line).replace('"', "").split() for line in lines]
    return [part for part in words if part]


def make_photos(folder: Path) -> None:
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(9):
            size = (300 + 40 * label, 260 + 10 * number)
            Image.new("RGB", size, (20 * number, 100 * label, 60)).save(
                folder / name / f"{number}.jpg"
            )


def run_all(folder: Path) -> dict[str, Any]:
    """Runs README.md and then the pages of docs/ from top to bottom; returns what Python leaves."""
    names: dict[str, Any] = {"__name__": "readme"}
    for page in PAGES:
        run_page(page, folder, names)
    return names


def run_page(page: Path, folder: Path, names: dict[str, Any]) -> None:
    for language, text, line in blocks(page):
        if language == "csv":
            (folder / "list.csv").write_text(text)
        elif language == "python":
            # Empty lines before it, so that an error tells the page's own line number.
            exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)
        elif language == "sh":
            for command in re.findall(r"^fastio (.*?)(?:\s+#.*)?$", text, re.MULTILINE):
                words = [word.strip('"') for word in command.split()]
                subprocess.run([sys.executable, "-c", RUN, *words], check=True, timeout=120)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """All pages run in an empty folder with photos/, which stays the current one."""
    folder = tmp_path_factory.mktemp("readme")
    make_photos(folder / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        names = run_all(folder)
        yield names
        names["loader"].close()


def test_all_snippets_run_in_order(names: dict[str, Any]) -> None:
    assert {path.name for path in Path().iterdir()} == {
        *("photos", "packed", "list.csv", "packed-list", "from-python", "written", "sheet.png"),
        *("packed-jpeg", "photos-again", "cache", "tars", "from-tars", "clicks.parquet", "clicks"),
        *("corpus", "tokens", "more", "saved", "from-datasets", "spectrograms", "sounds", "runs"),
    }


def test_its_reader_reads_what_fastio_reads(names: dict[str, Any]) -> None:
    with fastio.open("packed-jpeg") as dataset:
        assert dataset.classes is not None
        for row in (0, 8, 9, 17):
            image, label = names["image_and_label"](row)
            pixels, number = dataset[row]
            assert np.array_equal(np.asarray(image), pixels)
            assert dataset.classes[number] == label


def test_records_lie_as_the_page_says(names: dict[str, Any]) -> None:
    shard = pa.ipc.open_file(pa.memory_map("clicks/shard-000000.arrow")).get_batch(0)
    rows = np.array([list(row) for row in shard.column(".record").to_pylist()], np.uint8)
    assert rows.shape == (1000, 160)
    columns = names["columns"]
    for number, name in enumerate(columns):  # each takes four bytes here, and none are between
        dtype = np.float32 if name == "label" else columns[name].dtype
        found = rows[:, 4 * number : 4 * number + 4].copy().view(dtype)[:, 0]
        assert np.array_equal(found, columns[name])
    about = json.loads(shard.schema.metadata[b"fastio"])
    assert (about["format_version"], about["schema"]["records"]) == (1, True)
    assert int(about["record_crc32c"], 16) == crc32c(rows.tobytes())


# --- The format page, followed by a writer of its own --------------------------------------------


def crc32c(data: bytes) -> int:
    """CRC-32C as its definition has it, a bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def xxh3(pieces: Iterable[bytes]) -> str:
    return xxhash.xxh3_64(b"".join(pieces)).hexdigest()


def buffers(column: pa.Array) -> list[bytes]:
    return [buffer.to_pybytes() for buffer in column.buffers() if buffer is not None]


def write_file(path: Path, columns: dict[str, pa.Array], metadata: dict[str, str]) -> bytes:
    """One record batch as pyarrow writes it, its buffers aligned to 8 bytes."""
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    schema = pa.schema(fields, metadata=metadata)
    with pa.ipc.new_file(path, schema) as file:
        file.write_batch(pa.record_batch(list(columns.values()), schema=schema))
    return path.read_bytes()


def seal(path: Path, data: bytes) -> None:
    """Puts the hash of a file in it, before its footer."""
    footer = len(data) - 10 - struct.unpack_from("<i", data, len(data) - 10)[0]
    digest = xxhash.xxh3_64(data).intdigest()
    path.write_bytes(data[:footer] + struct.pack("<Q", digest) + data[footer:])


def shard_columns(pixels: list[bytes], names: list[str]) -> dict[str, pa.Array]:
    """Raw gray images of 2 x 3 pixels, and a Text."""
    rows = len(pixels)
    return {
        "image": pa.array(pixels, pa.large_binary()),
        "image.codec": pa.array([1] * rows, pa.uint8()),
        "image.height": pa.array([2] * rows, pa.int32()),
        "image.width": pa.array([3] * rows, pa.int32()),
        "image.orientation": pa.array([1] * rows, pa.uint8()),
        "image.crc32c": pa.array([crc32c(data) for data in pixels], pa.uint32()),
        "name": pa.array(names, pa.large_utf8()),
    }


def test_a_dataset_written_as_the_page_says_is_read(tmp_path: Path) -> None:
    fields = [{"name": "image", "type": "image", "mode": "L"}, {"name": "name", "type": "text"}]
    schema = {"structure": "dict", "fields": fields, "classes": None}
    pixels = [bytes(range(n, n + 6)) for n in (0, 6, 12)]
    columns = shard_columns(pixels, ["a", "", "c c"])
    about: dict[str, Any] = {"format_version": 1, "schema": schema}
    shard = write_file(tmp_path / "part one.arrow", columns, {"fastio": json.dumps(about)})
    begin, end = shard.index(b"".join(pixels)), sum(map(len, pixels))
    end += begin
    (schema_bytes,) = struct.unpack_from("<i", shard, 12)
    (batch_bytes,) = struct.unpack_from("<i", shard, 20 + schema_bytes)
    (footer_bytes,) = struct.unpack_from("<i", shard, len(shard) - 10)
    body, foot = 24 + schema_bytes + batch_bytes, len(shard) - 10 - footer_bytes - 8
    assert shard[foot : foot + 8] == b"\xff\xff\xff\xff\0\0\0\0"

    numbers = {
        "rows": 3,
        "first_row": 0,
        "bytes": len(shard),
        "head_bytes": body,
        "foot_bytes": len(shard) - foot,
        "image.offset": begin,
        "image.bytes": end - begin,
        "image.jpeg": 0,
        "image.raw": 3,
        "image.encoded": 0,
        "image.blocks": 0,
    }
    texts = {
        "name": "part one.arrow",
        "xxh3": xxh3([shard]),
        "head_xxh3": xxh3([shard[:body], shard[foot:]]),
        "columns_xxh3": xxh3([shard[body:begin], shard[end:foot]]),
    }
    arrays = {name: pa.array([value], pa.int64()) for name, value in numbers.items()}
    arrays |= {name: pa.array([value], pa.large_utf8()) for name, value in texts.items()}
    order = ["name", "rows", "first_row", "bytes", "xxh3", "head_bytes", "foot_bytes"]
    order += ["head_xxh3", "columns_xxh3"]
    manifest = {name: arrays[name] for name in [*order, *list(numbers)[5:]]}
    about |= {
        "packing": {},
        "codebook": None,
        "rows": 3,
        "bytes": len(shard),
        "shards": 1,
        "something": "else",
    }
    about["columns_xxh3"] = xxh3(buffer for c in manifest.values() for buffer in buffers(c))
    text = json.dumps(about)
    metadata = {"fastio": text, "fastio.xxh3": xxh3([text.encode()])}
    seal(tmp_path / "manifest.arrow", write_file(tmp_path / "manifest.arrow", manifest, metadata))

    with fastio.open(tmp_path) as dataset:
        assert [check.problem for check in dataset.verify()] == [None]
        assert [sample["name"] for sample in dataset] == ["a", "", "c c"]
        assert [sample["image"].tobytes() for sample in dataset] == pixels
    with fastio.Loader(tmp_path, batch_size=3) as loader:
        (batch,) = loader
    assert [image.numpy().tobytes() for image in batch["image"]] == pixels


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("name", ["manifest.arrow", "shard-000000.arrow"])
def test_a_file_is_laid_out_as_the_page_says(name: str) -> None:
    data = Path("packed", name).read_bytes()
    (schema_bytes,) = struct.unpack_from("<i", data, 12)
    (batch_bytes,) = struct.unpack_from("<i", data, 20 + schema_bytes)
    (footer_bytes,) = struct.unpack_from("<i", data, len(data) - 10)
    body = 24 + schema_bytes + batch_bytes
    footer = len(data) - 10 - footer_bytes
    assert data[:12] == b"ARROW1\0\0\xff\xff\xff\xff"
    assert data[16 + schema_bytes :][:4] == b"\xff\xff\xff\xff"
    end = footer - (16 if name == "manifest.arrow" else 8)
    assert (body % 64, end % 64) == (0, 0)
    assert data[end : end + 8] == b"\xff\xff\xff\xff\0\0\0\0"
    if name == "manifest.arrow":
        rest = data[: footer - 8] + data[footer:]
        assert data[footer - 8 : footer] == struct.pack("<Q", xxhash.xxh3_64(rest).intdigest())
    assert data[-6:] == b"ARROW1"
    mapped = pa.py_buffer(data)
    columns = pa.ipc.open_file(mapped).get_batch(0).columns
    found = [buffer for column in columns for buffer in column.buffers() if buffer is not None]
    assert {(buffer.address - mapped.address) % 64 for buffer in found} == {0}


# --- Its lists -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("names")
def test_both_sides_of_the_diff_work() -> None:
    (diff,) = [text for name, text, _ in blocks(PAGES[0]) if name == "diff"]
    lengths = []
    for side in "-+":
        lines = [line[1:] for line in diff.splitlines() if line.startswith(side)]
        made: dict[str, Any] = {"dataset": fastio.FolderDataset("photos")}
        exec("\n".join(lines), made)
        lengths.append(len(made["loader"]))
    assert lengths == [1, 1]


def test_commands_name_tools_that_are_there() -> None:
    tools = {words[0] for words in commands() if words[0].startswith("tools/")}
    assert tools == {"tools/demo", "tools/test", "tools/setup"}
    assert all((ROOT / name).is_file() for name in tools)


def fastio_commands(command: Any = None, name: str = "fastio") -> dict[str, Any]:
    """All commands by what is typed for them, as "fastio cache warm"."""
    command = command or typer.main.get_command(main)
    inner = getattr(command, "commands", {})
    found = {} if inner else {name: command}
    for word, one in inner.items():
        found |= fastio_commands(one, f"{name} {word}")
    return found


def options_of(command: Any) -> set[str]:
    return {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}


def test_every_command_is_listed() -> None:
    section = README.split("## The command line")[1].split("\n## ")[0]
    listed = re.findall(r"^(fastio [a-z |]+?)(?= [\[A-Z ])", section, re.MULTILINE)
    train = {f"fastio train {task}" for task in ("image", "text", "tabular")}
    named = {name.split("|")[0].strip() for name in listed}
    assert named == set(fastio_commands()) - train | {"fastio train image"}
    assert train < set(fastio_commands())


def test_options_that_it_names_are_those_of_the_commands() -> None:
    known = {name: options_of(command) for name, command in fastio_commands().items()}
    lines = [line for line in README.splitlines() if "torchrun" not in line]
    for line in lines:
        for name, rest in re.findall(r"\b(fastio [a-z]+(?: [a-z]+)?)\b([^`#]*)", line):
            options = known.get(name) or known.get(" ".join(name.split()[:2]))
            if options is not None:
                assert set(re.findall(r"(?<= )--[a-z-]+", rest)) <= options, line
    others = {"--output", "--nproc-per-node"}  # of tools/train_codebook and torchrun
    named = set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", README))
    assert named - others <= set().union(*known.values()) | {"--help"}


def test_help_says_what_every_option_does() -> None:
    for name, command in fastio_commands().items():
        silent = [option.name for option in command.params if not getattr(option, "help", None)]
        assert not silent, name


def anchors(page: Path) -> set[str]:
    """What links to a page may name behind #."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_lead_to_files_and_sections_that_are_there(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]*)\)", prose(page)):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_the_contents_name_every_section() -> None:
    text = prose(ROOT / "README.md")
    contents = text.split("\n## ")[0]
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    missing = {s for s in sections if f"(#{s.lower().replace(' ', '-')})" not in contents}
    assert missing == {"License"}


def test_every_error_that_users_meet_is_listed() -> None:
    table = README.split("## When things go wrong")[1].split("\n## ")[0]
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {name for name in names - {"FastioError"} if f"`{name}`" not in table} == set()
