"""tools/make_images: photo-like JPEGs whose classes must be looked at to be told apart."""

from __future__ import annotations

from collections import Counter
from io import BytesIO
from pathlib import Path

import make_images
import numpy as np
import numpy.typing as npt
import photos
import pytest
from PIL import Image, JpegImagePlugin

COUNT, CLASSES = 100, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "images"
    make_images.make_images(out, COUNT, CLASSES, seed=7, workers=1)  # where the noise is drawn once
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.jpg")}


def images(folder: Path) -> list[Image.Image]:
    return [Image.open(BytesIO(data)) for _, data in sorted(contents(folder).items())]


def made(out: Path, count: int, seed: int, workers: int = 1) -> dict[str, bytes]:
    make_images.make_images(out, count, 2, seed, workers)
    return contents(out)


# --- What is written -----------------------------------------------------------------------------


def test_there_is_a_folder_a_class_and_nothing_else(folder: Path) -> None:
    per_class = COUNT // CLASSES
    expected = {f"class_{c:02}/{i:06}.jpg" for c in range(CLASSES) for i in range(per_class)}
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} == expected


def test_same_bytes_for_any_number_of_processes(tmp_path: Path) -> None:
    assert made(tmp_path / "one", 6, seed=3) == made(tmp_path / "two", 6, seed=3, workers=2)


def test_a_longer_run_begins_with_the_same_images(tmp_path: Path) -> None:
    short, long = made(tmp_path / "short", 4, seed=3), made(tmp_path / "long", 6, seed=3)
    assert {name: long[name] for name in short} == short


def test_another_seed_makes_other_images(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one", 4, seed=3), made(tmp_path / "other", 4, seed=4)
    assert not set(one.values()) & set(other.values())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not an empty folder"):
        make_images.make_images(tmp_path, 4, 2, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "out.partial" / "class_00").mkdir(parents=True)
    (tmp_path / "out.partial" / "class_00" / "000000.jpg").write_bytes(b"half")
    assert len(made(tmp_path / "out", 2, seed=0)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("count", "classes", "seed", "name"),
    [
        (4, 0, 0, "classes"),
        (400, photos.MAX_CLASSES + 1, 0, "classes"),
        (1, 2, 0, "count"),
        (4, 2, -1, "seed"),
    ],
)
def test_arguments_out_of_range_are_named(
    tmp_path: Path, count: int, classes: int, seed: int, name: str
) -> None:
    with pytest.raises(ValueError, match=f"^{name} "):
        make_images.make_images(tmp_path / "out", count, classes, seed)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert make_images.main([str(out), "--count", "2", "--classes", "2", "--workers", "1"]) == 0
    assert f"{out}: 2 images in 2 classes" in capsys.readouterr().out


# --- The load on a codec -------------------------------------------------------------------------


def test_sampling_is_mixed_as_stated(folder: Path) -> None:
    names = {0: "4:4:4", 1: "4:2:2", 2: "4:2:0", -1: "gray"}
    mix = Counter(names[JpegImagePlugin.get_sampling(image)] for image in images(folder))
    stated = {name: n * COUNT // 100 for name, n in make_images.SAMPLING_PERCENT.items()}
    assert mix == stated


def test_sizes_are_those_of_photos(folder: Path) -> None:
    sizes = np.array([image.size for image in images(folder)])
    assert 170_000 < sizes.prod(axis=1).mean() < 240_000
    assert len(np.unique(sizes, axis=0)) > 10
    assert 0.1 < (sizes[:, 1] > sizes[:, 0]).mean() < 0.4


def test_images_are_about_110_kilobytes(folder: Path) -> None:
    assert 95_000 < np.mean([len(data) for data in contents(folder).values()]) < 130_000


def test_power_falls_with_frequency_as_in_photos(folder: Path) -> None:
    side = 128
    radius = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))) * side
    rings = [(radius >= low) & (radius < low * 1.5) for low in (4, 6, 9, 13, 20, 30, 42)]
    window = np.outer(np.hanning(side), np.hanning(side))
    power = []
    for image in images(folder)[::4]:
        luma = np.asarray(image.convert("L"), np.float64)[:side, :side]
        if luma.shape == (side, side):
            spectrum = np.abs(np.fft.fft2((luma - luma.mean()) * window)) ** 2
            power.append([np.log(spectrum[ring].mean() + 1) for ring in rings])
    slope = np.polyfit(np.log([radius[ring].mean() for ring in rings]), np.mean(power, axis=0), 1)
    # Power falls with the frequency's power of -2.4 +- 0.9 in ImageNet's photos, by this measure.
    assert -3.3 < slope[0] < -1.5


# --- The classes ---------------------------------------------------------------------------------


def mean_colour(image: Image.Image) -> npt.NDArray[np.float64]:
    return np.asarray(image.convert("RGB"), np.float64).mean(axis=(0, 1))


def edge_directions(image: Image.Image) -> npt.NDArray[np.float64]:
    """A histogram of 8 gradient directions, weighted by strength, of the image made smaller."""
    luma = np.asarray(image.convert("L").reduce(3), np.float64)
    dy, dx = np.gradient(luma)
    histogram, _ = np.histogram(
        np.arctan2(dy, dx) % np.pi, bins=8, range=(0, np.pi), weights=np.hypot(dy, dx)
    )
    return histogram / histogram.sum()


def accuracy(features: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Share of one half of the images whose nearest class mean, of the other half, is their own."""
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    learn = np.arange(len(labels)) % 2 == 0
    means = np.stack([features[learn & (labels == c)].mean(axis=0) for c in range(CLASSES)])
    distance = np.linalg.norm(features[~learn, None] - means[None], axis=2)
    return float((distance.argmin(axis=1) == labels[~learn]).mean())


def test_mean_colour_does_not_tell_the_class_and_edges_do(folder: Path) -> None:
    labels = np.repeat(np.arange(CLASSES), COUNT // CLASSES)
    colour = accuracy(np.stack([mean_colour(image) for image in images(folder)]), labels)
    edges = accuracy(np.stack([edge_directions(image) for image in images(folder)]), labels)
    assert colour < 0.4  # chance is 0.25
    assert edges > 0.6


def test_every_class_has_a_look_of_its_own() -> None:
    looks = {
        (photos.class_material(label), photos.class_shape(label))
        for label in range(photos.MAX_CLASSES)
    }
    assert len(looks) == photos.MAX_CLASSES
