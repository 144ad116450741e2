"""Contact sheets show every image with its caption."""

from __future__ import annotations

import numpy as np
import pytest

from fastio.cli.contact_sheet import contact_sheet
from tests.pictures import pixels


def test_every_image_is_on_the_sheet_in_its_proportions() -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255)]
    images = [np.full((100, 200, 3), colour, dtype=np.uint8) for colour in colours]
    sheet = np.asarray(contact_sheet(images, ["x"] * 5, tile=50))
    for colour in colours:
        found = np.argwhere((sheet == colour).all(axis=2))
        height, width = found.max(axis=0) - found.min(axis=0) + 1
        assert (height, width) == (25, 50)


def test_small_images_are_not_enlarged() -> None:
    image = np.zeros((5, 7, 3), dtype=np.uint8)
    sheet = np.asarray(contact_sheet([image], [""], tile=64))
    assert int((sheet == 0).all(axis=2).sum()) == 35


def test_gray_images_are_gray() -> None:
    image = np.full((20, 20, 1), 77, dtype=np.uint8)
    sheet = np.asarray(contact_sheet([image], [""], tile=20))
    assert int((sheet == 77).all(axis=2).sum()) == 400


@pytest.mark.parametrize("count", [1, 2, 7, 24])
def test_the_sheet_has_room_for_all(count: int) -> None:
    images = (pixels(30, 40, seed) for seed in range(count))
    sheet = contact_sheet(images, [str(number) for number in range(count)], tile=64)
    assert sheet.width * sheet.height >= count * 64 * 64
    assert sheet.mode == "RGB"


@pytest.mark.parametrize(
    "caption", ["", "x" * 500, "größe 日本語 🎈", "two\nlines\tand more", "\udcff half a pair"]
)
def test_captions_may_be_anything(caption: str) -> None:
    contact_sheet([pixels(10, 10)], [caption])


def test_long_captions_stay_in_their_tile() -> None:
    blank = np.full((10, 10, 3), 250, dtype=np.uint8)
    sheet = np.asarray(contact_sheet([blank] * 2, ["M" * 100, ""], tile=64))
    inked = np.argwhere((sheet < 128).all(axis=2))[:, 1]
    assert inked.size
    assert inked.max() < 8 + 64


def test_nothing_to_show_is_an_error() -> None:
    with pytest.raises(ValueError, match="no images"):
        contact_sheet([], [])


def test_as_many_captions_as_images_are_needed() -> None:
    with pytest.raises(ValueError, match="argument"):
        contact_sheet([pixels(3, 3)], ["a", "b"])
