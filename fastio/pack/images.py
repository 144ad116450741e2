"""Images on their way into a shard: how each is stored, and the codebooks of the block codec."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray
from PIL import Image as PillowImage
from PIL import ImageFile, JpegImagePlugin

from fastio import _native
from fastio.errors import PackError
from fastio.pack.items import UNREAD, Item, Source
from fastio.pack.progress import progress_bar
from fastio.packed.codebook import default_codebook_data, open_codebook
from fastio.packed.pixels import (
    EXIF_ORIENTATION,
    JPEG_START,
    exif_orientation,
    open_header,
    open_image,
    pillow_image,
    to_pixels,
    turn_upright,
)
from fastio.runtime.memory import MAX_PIXELS
from fastio.schema import CODEC_BLOCKS, CODEC_ENCODED, CODEC_JPEG, CODEC_RAW, Image
from fastio.store import local_path

# The values of `codec` in pack() and Writer.
ImageCodec = Literal["blocks", "jpeg", "raw"]
IMAGE_CODECS: tuple[ImageCodec, ...] = ("blocks", "jpeg", "raw")
# The codec of a new dataset if none is given.
DEFAULT_CODEC: ImageCodec = "blocks"

DEFAULT_QUALITY = 90
GRAY_MODES = ("1", "L", "LA", "La")
# A colour profile in these modes describes channels that are lost in the conversion to RGB.
_FOREIGN_MODES = ("CMYK", "YCbCr", "LAB", "HSV")


@dataclass(frozen=True)
class ImageOptions:
    """How images are stored; see the arguments of `fastio.pack`.

    Attributes:
        codec: What image files become: "blocks", "jpeg" or "raw".
        codebook: The codebook of the codec "blocks".
        max_side: The largest longer side in pixels; larger images are shrunk.
        quality: The quality of re-encoded JPEGs. If None, only shrunk images are re-encoded.
        max_pixels: Image files with more pixels are bad samples.
    """

    codec: ImageCodec
    codebook: _native.Codebook | None = None
    max_side: int | None = None
    quality: int | None = None
    max_pixels: int = MAX_PIXELS


class ImageCell(NamedTuple):
    """One image as a shard stores it; the fields are those of its columns.

    `jpeg_index` is the index of a JPEG (docs/format.md), or b"".
    """

    data: bytes
    codec: int
    height: int
    width: int
    orientation: int
    crc32c: int
    jpeg_index: bytes = b""


def _cell(
    data: bytes, codec: int, height: int, width: int, orientation: int = 1, index: bytes = b""
) -> ImageCell:
    crc = _native.crc32c(np.frombuffer(data, dtype=np.uint8))
    return ImageCell(data, codec, height, width, orientation, crc, index)


def encode_file(
    data: bytes, field: Image, options: ImageOptions, orientation: int | None = None
) -> ImageCell:
    """Returns an image file as it is stored, after all of its pixels were decoded.

    The codec "blocks" turns JPEG files into block records if those can hold them. Other JPEG files
    that the native decoder reads, and files of other formats, are kept byte for byte. The codec
    "raw" stores upright pixels, and so does every codec for damaged JPEG files if Pillow is set to
    load them (`ImageFile.LOAD_TRUNCATED_IMAGES`).

    Args:
        data: The bytes of the file.
        field: The field of the image.
        options: How it is stored.
        orientation: The EXIF orientation of the image. If None, that of the file.

    Raises:
        ValueError: The file is empty, damaged, unknown, or has more than 8 bits per channel.
    """
    if options.codec != "raw" and (options.max_side or options.quality):
        data = reencode(data, options.max_side, options.quality, options.max_pixels)
    jpeg_orientation: int | None = None
    as_pixels = options.codec == "raw"
    if data.startswith(JPEG_START):
        try:
            stored = _encode_jpeg(data, options)
        except ValueError:
            if not ImageFile.LOAD_TRUNCATED_IMAGES:
                raise
            as_pixels = True
        else:
            if isinstance(stored, ImageCell):
                return stored if orientation is None else stored._replace(orientation=orientation)
            jpeg_orientation = stored
    with open_image(data, options.max_pixels) as image:
        pixels = to_pixels(image, field.mode)
        if orientation is None:
            found = jpeg_orientation
            orientation = exif_orientation(image) if found is None else found
    if as_pixels:
        return encode_pixels(turn_upright(pixels, orientation), field, options.max_side)
    return _cell(data, CODEC_ENCODED, pixels.shape[0], pixels.shape[1], orientation)


def _encode_jpeg(data: bytes, options: ImageOptions) -> ImageCell | int:
    """Returns a JPEG file as it is stored; or its orientation, if Pillow has to decode it."""
    jpeg = np.frombuffer(data, dtype=np.uint8)
    if options.codec == "blocks":
        assert options.codebook is not None
        stored = _native.blocks_encode(jpeg, options.codebook, options.max_pixels)
        # None: the block codec cannot hold it (CMYK, arithmetic coding).
        if stored is not None:
            record, height, width, orientation = stored
            return _cell(record, CODEC_BLOCKS, height, width, orientation)
    found = _native.jpeg_probe(jpeg, options.max_pixels)
    height, width, channels, orientation, kind, index = found
    if options.codec != "raw" and channels in (1, 3) and kind in ("baseline", "progressive"):
        return _cell(data, CODEC_JPEG, height, width, orientation, index)
    return int(orientation)


@dataclass(frozen=True)
class PillowFile:
    """The file of a Pillow image that was opened and not decoded.

    Attributes:
        data: The bytes of the file.
        mode: The mode of the image.
    """

    data: bytes
    mode: str


def taken(value: Any) -> Any:
    """Returns a value of a sample in a form that does not change, for use by other threads.

    Called in the order of the samples. A Pillow image becomes a `PillowFile`, or is decoded if its
    pixels may differ from its file; if that fails, it becomes a ValueError. Arrays, tensors and
    other values that can be written to are copied: the code of the user may use their memory for
    the next sample. Other values are returned unchanged.
    """
    if isinstance(value, (int, float, str, bytes)):
        return value
    if isinstance(value, np.ndarray):
        return value.copy()
    # Only the first value of a list is checked, because a list of tokens may be long.
    if isinstance(value, (list, tuple)) and value and is_picture(value[0]):
        return list(map(taken, value))
    if not isinstance(value, PillowImage.Image):
        return _copied(value)
    data = _file_of(value)
    if data is not None:
        return PillowFile(data, value.mode)
    try:
        value.load()
    except Exception as error:  # as for `open_image`
        return ValueError(f"cannot be decoded: {error or type(error).__name__}")
    return value.copy()


def _copied(value: Any) -> Any:
    if isinstance(value, (list, bytearray)):
        return value.copy()
    if isinstance(value, memoryview):
        return bytes(value)
    return value.detach().clone() if is_tensor(value) else value


def is_tensor(value: Any) -> bool:
    """Returns whether a value is a torch tensor, without importing torch."""
    return hasattr(value, "numpy") and hasattr(value, "detach") and hasattr(value, "dtype")


def is_picture(value: Any) -> bool:
    """Returns whether a value in a list may be an image, and is not a number or a string."""
    kinds = (bytes, bytearray, memoryview, PillowImage.Image, PillowFile, np.ndarray)
    return isinstance(value, kinds) or is_tensor(value)


def encode_pillow(
    image: PillowImage.Image | PillowFile, field: Image, options: ImageOptions
) -> ImageCell:
    """Returns a Pillow image as it is stored, without applying an EXIF orientation; see `taken`.

    An image that was opened but not decoded yet is stored like its file. Other images, and all
    images with the codec "raw", are stored as pixels.

    Raises:
        ValueError: It cannot be decoded, has more than 8 bits per channel, or is in colour but the
            field is gray.
    """
    if field.mode == "L" and image.mode not in GRAY_MODES:
        raise ValueError(
            f"an image of mode {image.mode!r} in a gray field; convert it, or give a schema with "
            "Image('RGB')"
        )
    if isinstance(image, PillowImage.Image):
        return encode_pixels(to_pixels(image, field.mode), field, options.max_side)
    if options.codec != "raw":
        return encode_file(image.data, field, options)._replace(orientation=1)
    with open_image(image.data, options.max_pixels) as opened:
        return encode_pixels(to_pixels(opened, field.mode), field, options.max_side)


def _file_of(image: PillowImage.Image) -> bytes | None:
    """Returns the file that an image was opened from; None if its pixels may differ from the file.

    They may differ if the image was decoded or changed, if `draft` has set its size or mode, or if
    it is not the first of several images in its file.
    """
    if not isinstance(image, ImageFile.ImageFile) or not image.tile or image.fp is None:
        return None
    try:
        place = image.fp.tell()
        image.fp.seek(0)
        data = image.fp.read()
        # The position is restored, because the user's code may decode the image later.
        image.fp.seek(place)
        with open_header(data, image.width * image.height) as header:
            same = (header.format, header.size, header.mode) == (
                image.format,
                image.size,
                image.mode,
            )
    except Exception:  # the file is closed or has changed; decoding raises a better error
        return None
    return data if same and not image.tell() else None


def encode_pixels(pixels: NDArray[Any], field: Image, max_side: int | None = None) -> ImageCell:
    """Returns pixels, uint8 (H, W, C) or (H, W), as they are stored; shrunk to `max_side`.

    Raises:
        ValueError: The dtype, the shape or the number of channels is wrong.
    """
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    fits = pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == field.channels
    if not fits or not pixels.size:
        raise ValueError(
            f"pixels of dtype {pixels.dtype} and shape {pixels.shape}, expected uint8 (H, W, "
            f"{field.channels})"
        )
    pixels = shrink(pixels, max_side)
    return _cell(pixels.tobytes(), CODEC_RAW, pixels.shape[0], pixels.shape[1])


# --- Re-encoding ---------------------------------------------------------------------------------


def reencode(
    data: bytes, max_side: int | None, quality: int | None, max_pixels: int = MAX_PIXELS
) -> bytes:
    """Returns an image file as a smaller JPEG, or unchanged if nothing is to be done.

    The image is re-encoded with Pillow if its longer side exceeds `max_side`, or if a quality is
    given (default for shrunk images: 90). The orientation, the colour profile and the chroma
    subsampling of a JPEG are kept. Transparency and other metadata are lost.

    Raises:
        ValueError: The file is damaged, unknown, has more than 8 bits per channel, more pixels than
            `max_pixels`, or exceeds what a JPEG can hold.
    """
    if quality is None and not _is_larger(data, max_side, max_pixels):
        return data
    orientation = None
    if data.startswith(JPEG_START):
        # Pillow's decoder accepts damaged data silently; this one raises.
        orientation = _native.jpeg_probe(np.frombuffer(data, dtype=np.uint8), max_pixels)[3]
    with open_image(data, max_pixels) as image:
        orientation = orientation or exif_orientation(image)
        pixels = to_pixels(image, "L" if image.mode in GRAY_MODES else "RGB")
        sampling = (
            JpegImagePlugin.get_sampling(image)
            if isinstance(image, JpegImagePlugin.JpegImageFile)
            else -1
        )
        profile = None if image.mode in _FOREIGN_MODES else image.info.get("icc_profile")
    exif = PillowImage.Exif()
    if orientation != 1:
        exif[EXIF_ORIENTATION] = orientation
    file = io.BytesIO()
    try:
        pillow_image(shrink(pixels, max_side)).save(
            file,
            "JPEG",
            quality=quality or DEFAULT_QUALITY,
            subsampling=sampling,
            icc_profile=profile,
            exif=exif.tobytes() if len(exif) else b"",
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be encoded as a JPEG: {error}") from error
    return file.getvalue()


def shrink(pixels: NDArray[np.uint8], max_side: int | None) -> NDArray[np.uint8]:
    """Returns pixels, uint8 (H, W, C), shrunk in proportion to a longer side of `max_side`.

    They are antialiased; smaller ones are returned unchanged, and so are all if it is None.
    """
    height, width = pixels.shape[:2]
    longer = max(height, width)
    if max_side is None or longer <= max_side:
        return pixels
    size = tuple(max(1, round(side * max_side / longer)) for side in (width, height))
    small: NDArray[np.uint8] = np.asarray(
        pillow_image(pixels).resize((size[0], size[1]), PillowImage.Resampling.LANCZOS)
    )
    return small.reshape(size[1], size[0], pixels.shape[2])


def _is_larger(data: bytes, max_side: int | None, max_pixels: int) -> bool:
    """Returns whether the header states a larger image; False if it is not an image."""
    try:
        with open_header(data, max_pixels) as image:
            return max_side is not None and max(image.size) > max_side
    except Exception:  # decoding the file will raise a better error
        return False


# --- Codebooks ------------------------------------------------------------------------------------


# The values of `codebook` in pack() besides the path of a file.
DEFAULT = "default"
TRAIN = "train"

# The largest number of images to train on, and of their bytes in memory. More do not improve the
# codebook.
_SAMPLE_IMAGES = 512
_SAMPLE_BYTES = 256 << 20
_SEED = 0


@dataclass(frozen=True)
class CodebookChoice:
    """The codebook that a pack uses.

    Attributes:
        origin: "default", "file" or "trained".
        data: The 16,640 bytes; None if it is still to be trained.
    """

    origin: str
    data: bytes | None

    @property
    def identity(self) -> str:
        """Returns what a resumed pack must have in common with the interrupted one."""
        return TRAIN if self.data is None else codebook_hash(self.data)


def choose_codebook(choice: str | os.PathLike[str] | None) -> CodebookChoice:
    """Returns the codebook that the argument `codebook` of `fastio.pack` selects, or PackError."""
    if choice is None or choice == DEFAULT:
        return CodebookChoice("default", default_codebook_data())
    if choice == TRAIN:
        return CodebookChoice("trained", None)
    path = Path(local_path(choice))
    try:
        data = path.read_bytes()
        open_codebook(data)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PackError(
            f"{path} is not a codebook: {reason}. Use 'default', 'train', or a file that "
            "tools/train_codebook wrote"
        ) from error
    return CodebookChoice("file", data)


def codebook_hash(data: bytes) -> str:
    """Returns the xxh3_64 of a codebook as 16 hexadecimal digits."""
    return xxhash.xxh3_64(data).hexdigest()


def train_codebook(source: Source, images: ImageOptions, progress: bool = False) -> bytes:
    """Returns a codebook (16,640 bytes) for the JPEG files of a source; equal for equal sources.

    It is trained on up to 512 files, spread evenly over the source, of at most 256 MiB in all, as
    they are after `reencode`.

    Raises:
        PackError: The source cannot be read twice, or the sample has no JPEG file.
        SampleError: The source failed to give a sample.
    """
    jpegs = _sample(source, images, progress)
    try:
        with progress_bar("training a codebook", None, None, progress):
            return _native.train_codebook(jpegs, seed=_SEED)
    except ValueError as error:
        raise PackError(
            f"a codebook cannot be trained: a sample of {source.name} contains no intact JPEG "
            "file that the block codec supports; use the default codebook"
        ) from error


def _sample(source: Source, images: ImageOptions, progress: bool) -> list[NDArray[np.uint8]]:
    """Returns some of the source's JPEG files as they will be packed, uint8 (bytes,) each."""
    total = None if source.total is None else min(source.total, _SAMPLE_IMAGES)
    jpegs: list[NDArray[np.uint8]] = []
    nbytes = 0
    with progress_bar("reading images", "samples", total, progress) as advance:
        for item in source.sample(_SAMPLE_IMAGES):
            for data in _jpegs(item):
                try:
                    data = reencode(data, images.max_side, images.quality, images.max_pixels)
                    small = np.frombuffer(data, dtype=np.uint8)
                except ValueError:
                    continue  # packing will say what is wrong with it
                jpegs.append(small)
                nbytes += len(small)
            advance(1)
            if nbytes >= _SAMPLE_BYTES:
                break
    return jpegs


def _jpegs(item: Item) -> Iterator[bytes]:
    """Yields the JPEG files of a sample."""
    for value in item.values:
        data = value
        if isinstance(value, UNREAD):
            try:
                data = value.read()
            except (OSError, ValueError):
                continue  # packing will say so
        elif isinstance(value, PillowFile):
            data = value.data
        if isinstance(data, (bytes, bytearray, memoryview)):
            data = bytes(data)
            if data.startswith(JPEG_START):
                yield data
