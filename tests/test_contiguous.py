"""Every tensor of a batch is contiguous, as those of DataLoader are, whatever the data and path."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import fastio
from fastio import (
    CenterCrop,
    Loader,
    Normalize,
    OnBatch,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    _native,
)
from tests.pictures import picture
from tests.saved import image_dataset, table_dataset
from tests.support import open_loader
from tests.token_support import Padding, Windows

ROWS = 11
NORMALIZE = Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
CROPS = [RandomResizedCrop((9, 7)), RandomHorizontalFlip()]


def photos(path: Path) -> Path:
    """Packed JPEGs and PNGs, gray ones and ones on their side among them."""
    for name in ("a", "b"):
        (path / "photos" / name).mkdir(parents=True)
    for n in range(ROWS):
        image = picture(20 + n, 30 - n)
        image = image.convert("L") if n % 4 == 1 else image
        exif = image.getexif()
        exif[0x0112] = 1 + n % 8
        end = "png" if n % 4 == 2 else "jpg"
        image.save(path / "photos" / "ab"[n % 2] / f"{n}.{end}", exif=exif)
    return path / "photos"


def packed_photos(path: Path, codec: Any = "blocks") -> Path:
    fastio.pack(photos(path), path / "packed", codec=codec)
    return path / "packed"


def raw_photos(path: Path) -> Path:
    return packed_photos(path, "raw")


def jpeg_photos(path: Path) -> Path:
    return packed_photos(path, "jpeg")


def mixed_photos(path: Path) -> Any:
    packed = packed_photos(path)
    return fastio.mix([(packed, 1), (packed, 2)], stop=20)


def tokens(path: Path) -> Path:
    schema = fastio.Schema({"text": fastio.Tokens("uint16"), "label": fastio.Scalar("int64")})
    rows = [{"text": np.arange(1 + n % 7, dtype=np.uint16), "label": n} for n in range(40)]
    fastio.pack(rows, path / "tokens", schema=schema)
    return path / "tokens"


def mixed(view: Callable[[Any], Any], path: Path) -> Any:
    packed = tokens(path)
    return fastio.mix([(view(packed), 1), (view(packed), 2)], stop=20)


def ragged(path: Path) -> Path:
    schema = fastio.Schema(
        {
            "x": fastio.Array("float32", (None, 3)),
            "mask": fastio.Array("uint8", (None, None)),
            "fixed": fastio.Array("float32", (2, 3)),
            "n": fastio.Scalar("int64"),
        }
    )
    rows = [
        {
            "x": np.full((n % 5, 3), n, np.float32),
            "mask": np.ones((1 + n % 3, 2 + n % 4), np.uint8),
            "fixed": np.ones((2, 3), np.float32),
            "n": n,
        }
        for n in range(ROWS)
    ]
    fastio.pack(rows, path / "ragged", schema=schema)
    return path / "ragged"


def fixed_lists(path: Path) -> Path:
    schema = fastio.Schema({"x": fastio.Array("float32", (None, 3))})
    fastio.pack(
        [{"x": np.ones((1 + n % 5, 3), np.float32)} for n in range(ROWS)], path / "x", schema=schema
    )
    return path / "x"


def table(path: Path) -> Path:
    columns = {name: np.arange(ROWS) / (1 + k) for k, name in enumerate("abc")}
    pq.write_table(pa.table({**columns, "label": np.arange(ROWS) % 2}), path / "t.parquet")
    return path / "t.parquet"


def packed_table(path: Path) -> Path:
    fastio.pack(table(path), path / "packed", groups={"dense": ["a", "b", "c"]})
    return path / "packed"


def lists(path: Path) -> Path:
    rows = {"x": [[float(n)] * (n % 4) for n in range(ROWS)], "y": np.arange(ROWS)}
    pq.write_table(pa.table(rows), path / "lists.parquet")
    return path / "lists.parquet"


def sound(path: Path) -> Path:
    soundfile = pytest.importorskip("soundfile")
    samples = []
    for n in range(ROWS):
        file = io.BytesIO()
        soundfile.write(file, np.zeros((100 + 30 * n, 2), np.int16), 16000, format="WAV")
        samples.append({"audio": file.getvalue(), "label": n})
    fastio.pack(samples, path / "sound")
    return path / "sound"


def hugging_face(path: Path) -> Any:
    return table_dataset()


def hugging_face_images(path: Path) -> Any:
    return image_dataset()


class Python(torch.utils.data.Dataset[Any]):
    """A dataset of its own, which takes the torch path."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, 4, 5), {"x": np.zeros((2, 3)), "n": index}


def python(path: Path) -> Any:
    return Python()


def tensors(path: Path) -> Any:
    return torch.utils.data.TensorDataset(torch.zeros(ROWS, 3, 4, 5), torch.arange(ROWS))


Source = Callable[[Path], Any]
KINDS: dict[str, tuple[Source, dict[str, Any]]] = {
    "photos of a folder": (photos, {"transforms": CROPS}),
    "photos as floats": (photos, {"transforms": [*CROPS, NORMALIZE]}),
    "photos as half floats": (photos, {"transforms": [*CROPS, fastio.ToDtype("float16")]}),
    "photos of many sizes": (photos, {}),
    "floats of many sizes": (photos, {"transforms": [NORMALIZE]}),
    "one photo": (photos, {"batch_size": None, "transforms": CROPS}),
    "blocks": (packed_photos, {"transforms": CROPS}),
    "blocks as floats": (packed_photos, {"transforms": [*CROPS, NORMALIZE]}),
    "blocks of many sizes": (packed_photos, {}),
    "packed files": (jpeg_photos, {"transforms": CROPS}),
    "raw pixels": (raw_photos, {"transforms": [Resize((8, 8)), NORMALIZE]}),
    "a callable": (packed_photos, {"transforms": [*CROPS, OnBatch(lambda x: x * 2)]}),
    "bad photos left out": (packed_photos, {"transforms": CROPS, "on_error": "skip"}),
    "mixed photos": (mixed_photos, {"transforms": CROPS}),
    "windows": (tokens, {"view": Windows(5)}),
    "windows without targets": (
        tokens,
        {"view": Windows(5, targets=False)},
    ),
    "windows of documents": (
        tokens,
        {"view": Windows(5, positions=True, cu_seqlens=True)},
    ),
    "best-fit windows": (
        tokens,
        {"view": Windows(5, packing="best-fit")},
    ),
    "mixed windows": (partial(mixed, Windows(5)), {}),
    "padded documents": (tokens, {"view": Padding(16, multiple_of=1)}),
    "mixed documents": (partial(mixed, Padding(16, multiple_of=1)), {}),
    "tokens as they are": (tokens, {}),
    "lists of arrays": (ragged, {"ragged": "list"}),
    "padded arrays": (ragged, {"ragged": "padded"}),
    "flat arrays": (fixed_lists, {"ragged": "flat"}),
    "a table": (table, {"shuffle": True}),
    "groups of a table": (table, {"groups": {"dense": ["a", "b", "c"]}, "shuffle": True}),
    "a packed table": (packed_table, {"shuffle": True}),
    "lists of a table": (lists, {"ragged": "padded"}),
    "sound": (sound, {"transforms": {"audio": fastio.AudioDecode()}, "ragged": "list"}),
    "padded sound": (sound, {"transforms": {"audio": fastio.AudioDecode()}, "ragged": "padded"}),
    "clips of sound": (
        sound,
        {"transforms": {"audio": fastio.AudioDecode(length=64, channels=2)}, "ragged": "padded"},
    ),
    "Hugging Face": (hugging_face, {}),
    "Hugging Face images": (hugging_face_images, {"transforms": {"image": CROPS}}),
    "Python": (python, {"num_workers": 0}),
    "tensors": (tensors, {}),
}


def leaves(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch
    return [
        leaf
        for part in parts
        if not isinstance(part, (str, bytes, int, float)) and part is not None
        for leaf in leaves(part)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_contiguous(kind: str, tmp_path: Path) -> None:
    source, options = KINDS[kind]
    with open_loader(source(tmp_path), **{"batch_size": 4, "num_workers": 1, **options}) as loader:
        found = [leaf for batch in loader for leaf in leaves(batch)]
    assert found
    assert all(leaf.is_contiguous() for leaf in found)
    for leaf in found:
        leaf.view(len(leaf) if leaf.dim() else 1, -1 if leaf.numel() else 0)


@pytest.mark.parametrize("source", [photos, packed_photos, jpeg_photos, raw_photos])
def test_the_layout_changes_no_pixel(source: Source, tmp_path: Path) -> None:
    """Of widths with every tail of a kernel, on each instruction set; of gray images, too."""
    data = fastio.open(source(tmp_path))
    before = _native.simd_active()
    try:
        for width in range(1, 71):
            levels = _native.simd_levels()
            _native.simd_force(levels[width % len(levels)])
            steps: list[Any] = [Resize((1 + width * 7 % 23, width))]
            steps += [CenterCrop(width + 3)] if width % 5 == 0 else []  # zeros around
            steps += [NORMALIZE] if width % 2 else []
            found = []
            for last in (False, True):
                with Loader(data, ROWS, transforms=steps, num_workers=1, channels_last=last) as it:
                    found.append(next(iter(it))[0])
            assert torch.equal(*found)
            assert found[0].is_contiguous()
            assert found[1].is_contiguous(memory_format=torch.channels_last)
    finally:
        _native.simd_force(before)
        data.close()
