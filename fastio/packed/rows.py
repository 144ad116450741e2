"""The base class of datasets: what every kind of data can be asked, and how its rows are read.

Whoever needs to know what a dataset can asks it here, and not for its class:

| what | method | default |
|---|---|---|
| its part in a store | `remote_part` | None: no blocks are staged for it |
| the packed dataset of its rows | `packed` | None |
| rows of each shard | `shard_bounds` | None: the rows do not lie in shards |
| bytes of images | `image_reads`, `read`, `image`, `image_size` | there are no images |
| images in lists | `image_counts`, `list_reads`, `read_listed`, `images` | there are no lists |
| what identifies a row when a pack is resumed | `row_key` | None: nothing |
| columns of fixed width | `fixed_columns` | None: they are read in Python |
| columns that are arrays in memory | `array_columns` | there are none |
| rows of different sizes | `ragged_rows` | None: they are read in Python |
| row groups that are decoded as wholes | `row_grouping`, `row_groups` | "no": there are none |
| a file of sound | `sound_file` | the bytes that `gather_all` returns |
| the rate of sound | `sampling_rate` | None: that of each file |
| values in Python | `gather_all` | every dataset has it |

The native engine reads the bytes that `image_reads`, `fixed_columns`, `array_columns` and
`ragged_rows` name; all other fields come from `gather_all`. A view of a dataset delegates to the
dataset behind it. Methods for images raise SchemaError for a field of another type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastio.cache import Cache
from fastio.errors import ImageError, SampleError, SchemaError
from fastio.packed.image_lists import image_name, null_list
from fastio.packed.layout import ImageReads, Layout, RaggedRows
from fastio.packed.pixels import upright_pixels
from fastio.packed.sample_errors import NOT_OF_SAMPLES, of_sample
from fastio.packed.subclasses import pickled
from fastio.runtime.memory import MAX_PIXELS, MAX_UNZIPPED_BYTES
from fastio.schema import PICTURES, Image, Images, Scalar, Schema
from fastio.shown import without_secrets

if TYPE_CHECKING:
    from fastio.packed.packed import Dataset
    from fastio.packed.remote import Remote
    from fastio.sources.base import Found
    from fastio.sources.table.direct import TableDataset
    from fastio.sources.table.media import MediaTable

_SETTINGS = ("max_pixels", "max_unzipped_bytes", "memory", "resident", "cache", "partitions")
_Self = TypeVar("_Self", bound="Rows")  # typing.Self is of Python 3.11


class Rows(ABC):
    """Rows with a schema, closed at the end of a `with` statement.

    Attributes:
        path: Where they come from, for messages.
        schema: The fields of a sample.
        max_pixels: Images with more pixels, as stored, are errors of their samples.
        max_unzipped_bytes: Compressed files that are larger when they are unzipped, and sounds that
            are larger when they are decoded, are errors of their samples.
        memory: Bytes, or text such as "512MiB", for the row groups of a Loader. None: automatic.
        resident: Whether a Loader copies a packed table to memory. None: automatic.
        cache: The cache for blocks of a remote dataset, and for recoded images, or None.
        partitions: Number of partitions of a remote dataset, each of which one node reads. None:
            one per node.
        recodes: Whether the images are files that may be recoded to block records in a cache.
        separate: Of a remote dataset: whether each row is an object of its own; see `Remote`.
        upright: Whether images in files are turned as their EXIF orientation says.
        tensor_fields: The names of the fields whose values are tensors in samples, not arrays.
        row_grouping: Whether `row_groups` opens the rows as row groups: "no", "possible" (single
            rows can be read too) or "always" (reading a row decodes its row group).
        opened_from: The source and options that `fastio.open` was given, for table files and data
            of the datasets package. None for other data, and for a copy in another process.
    """

    path: str
    schema: Schema
    max_pixels: int = MAX_PIXELS
    max_unzipped_bytes: int = MAX_UNZIPPED_BYTES
    memory: int | str | None = None
    resident: bool | None = None
    cache: Cache | None = None
    partitions: int | None = None
    recodes: bool = False
    separate: bool = False
    upright: bool = True
    tensor_fields: frozenset[str] = frozenset()
    row_grouping: Literal["no", "possible", "always"] = "no"
    opened_from: Found | None = None

    def limit(self, max_pixels: int | None, max_unzipped_bytes: int | None) -> None:
        """Sets limits of a sample; None leaves one as it is. ValueError if one is less than 1."""
        limits = {"max_pixels": max_pixels, "max_unzipped_bytes": max_unzipped_bytes}
        for name, value in limits.items():
            if value is not None:
                if value < 1:
                    raise ValueError(f"{name} must be at least 1, got {value}")
                setattr(self, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        found: Any = super().__reduce_ex__(protocol)
        # Most kinds are pickled as a function that opens them again, and without a state, so
        # settings that were changed after opening would be lost.
        settings = {name: self.__dict__[name] for name in _SETTINGS if name in self.__dict__}
        found = (*found, settings) if settings and len(found) == 2 else found
        return pickled(self, found)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes that the numbers of `label` (or `class`) stand for, or None."""
        return self.schema.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, as in torchvision; AttributeError without classes."""
        if self.classes is None:
            raise AttributeError(f"{self.path} has no classes")
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """The class number of every row, as in torchvision; AttributeError without classes."""
        kept: list[int] | None = self.__dict__.get("_targets")
        if kept is None:
            name = self.schema.class_field
            if name is None:
                raise AttributeError(f"{self.path} has no classes")
            kept = np.asarray(self.gather(name, np.arange(len(self)))).tolist()
            self.__dict__["_targets"] = kept
        return kept

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the contents."""

    @property
    def earlier_versions(self) -> Mapping[str, int]:
        """The number of each earlier version of the dataset, by its fingerprint."""
        return {}

    @abstractmethod
    def gather_all(self, fields: Sequence[str], rows: NDArray[np.int64]) -> Mapping[str, Any]:
        """Returns several fields of many rows, in any order; see `gather`."""

    def gather(self, field: str, rows: NDArray[np.int64]) -> Any:
        """Returns one field of many rows.

        Args:
            field: A field that is not an image.
            rows: int64 (n,), row numbers in any order.

        Returns:
            An array of shape (n,) for Scalar and (n, *shape) for Array; a list of n str, bytes
            or arrays for Text, Bytes and Array of differing shapes; of n lists of str for lists
            of strings.

        Raises:
            SchemaError: There is no such field, it is an image, or a value does not fit it.
            IndexError: A row number is out of range.
            SampleError: The file of a row cannot be read, or does not hold what the field does.
            SourceNotFound, ShardCorrupt, StoreError, OSError: The data cannot be read.
        """
        return self.gather_all([field], rows)[field]

    def __getitem__(self, index: int) -> Any:
        """Returns one sample in the structure of the schema: a dict, a tuple or a single value.

        Images are upright uint8 (H, W, C) arrays, and lists of images are lists of such arrays.
        Numbers of the types int64, float64 and bool are Python's, others are NumPy scalars.

        Args:
            index: The row number. Negative numbers count from the end.

        Raises:
            IndexError: It is out of range.
            ImageError: An image cannot be decoded.
            FastioError, OSError: As `gather`.
        """
        row = self._row(index)
        kinds = self.schema.fields
        others = [name for name in kinds if name not in self.schema.pictured]
        found = self.gather_all(others, np.array([row], np.int64)) if others else {}
        values = {
            name: _single(found[name][0], kind) if name in found else self._pictures(name, row)
            for name, kind in kinds.items()
        }
        if self.schema.structure == "dict":
            return values
        if self.schema.structure == "tuple":
            return tuple(values.values())
        return next(iter(values.values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({without_secrets(self.path)!r}, rows={len(self)})"

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def sample_name(self, row: int) -> str:
        """Returns how messages name a row: its file, and what stands for it there."""
        return f"{self.path} row {row}"

    @property
    def remote_part(self) -> Remote | None:
        """The dataset in a store whose blocks are staged for its rows; None if there is none."""
        return None if self.packed is None else self.packed.remote_part

    @property
    def grouped(self) -> MediaTable | None:
        """The dataset itself if its images are read by row groups; None for others."""
        return None

    @property
    def packed(self) -> Dataset | None:
        """The packed dataset that the rows come from; None if they come from other data."""
        return None

    @property
    def shared_bytes(self) -> int:
        """The total size in bytes of local files that contain the images of many rows each.

        0 if there are none. Such files stay open while a loader reads images.
        """
        return 0 if self.packed is None else self.packed.manifest.nbytes

    def shard_bounds(self) -> NDArray[np.int64] | None:
        """Returns the first row of each shard and the number of rows, int64 (shards + 1,)."""
        return None

    def image_reads(self, field: str, rows: NDArray[np.int64]) -> ImageReads:
        """Returns where the images of rows, int64 (n,) in any order, lie and how they are stored.

        Of a remote dataset these are places in the store.
        """
        raise SchemaError(f"{self.path}: field {field!r} is not an image field")

    def read(self, field: str, row: int) -> bytes:
        """Returns the bytes of an image file as they are; OSError or ValueError if it has none."""
        raise SchemaError(f"{self.path}: field {field!r} has no files of images")

    def row_key(self, row: int) -> str | None:
        """Returns a text that changes when a row does, apart from its images.

        None if nothing identifies the rows across runs; `read` then has no images either.
        """
        return None

    def image(
        self,
        field: str,
        row: int,
        *,
        at_least: int | None = None,
        data: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Returns one upright image, uint8 (H, W, C), decoded in this thread.

        Args:
            field: an image field.
            row: row number from 0.
            at_least: for thumbnails: a size in pixels of the longer side that is enough. An image
                that is stored as blocks may then be 2, 4 or 8 times smaller, which costs less: for
                an eighth, a sixth of its bytes is read.
            data: uint8 (n,), the stored bytes of the image if they were read already. They are
                verified if there are checksums.

        Raises:
            SchemaError: there is no such field, or it is no image.
            IndexError: the row number is out of range.
            ImageError: the image cannot be read or decoded.
            SourceNotFound, ShardCorrupt, StoreError: the file of many rows cannot be read.
        """
        if not isinstance(self._field(field), Image):
            raise SchemaError(f"field {field!r} is not an image field: use gather")
        self._in_range(np.array([row], np.int64))
        with of_sample(self, row, ImageError):
            return self._decoded(field, row, at_least, data)

    def _decoded(
        self,
        field: str,
        row: int,
        at_least: int | None,
        data: NDArray[np.uint8] | None,
        index: int | None = None,
    ) -> NDArray[np.uint8]:
        """Returns an image for callers that have checked field and row, and name it in errors.

        `index` is the place of the image in the row's list; None for a field of single images.
        """
        if data is not None:
            found = data.tobytes()
        else:
            found = self.read(field, row) if index is None else self.read_listed(field, row, index)
        mode = self._field(field).mode
        return upright_pixels(found, mode, None if self.upright else 1, self.max_pixels)

    def image_size(self, field: str, row: int) -> tuple[int, int]:
        """Returns the (height, width) of an image after it is turned upright."""
        height, width = self.image(field, row).shape[:2]
        return height, width

    def _pictures(self, field: str, row: int) -> Any:
        """Returns the image of a row, or its images if the field holds lists."""
        return (self.images if isinstance(self._field(field), Images) else self.image)(field, row)

    def rows_of(self, images: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows that have some images, numbered as in `image_reads`: int64 (n,)."""
        return images

    def image_counts(self, field: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns how many images the lists of rows, int64 (n,), have; -1 where a list is null."""
        raise SchemaError(f"{self.path}: field {field!r} is not a field of lists of images")

    def list_reads(
        self, field: str, rows: NDArray[np.int64], index: NDArray[np.int64]
    ) -> ImageReads:
        """Returns where images in lists lie, as `image_reads` does.

        Args:
            field: A field of lists of images.
            rows, index: int64 (n,), the row of each image, and its place in the row's list.
        """
        raise SchemaError(f"{self.path}: field {field!r} is not a field of lists of images")

    def read_listed(self, field: str, row: int, index: int) -> bytes:
        """Returns the bytes of an image in a list; OSError or ValueError if there are none."""
        raise SchemaError(f"{self.path}: field {field!r} has no files of images in lists")

    def listed_image(
        self,
        field: str,
        row: int,
        index: int,
        *,
        at_least: int | None = None,
        data: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Returns one image of a list as `image` does; its errors do not name the image."""
        return self._decoded(field, row, at_least, data, index)

    def images(
        self, field: str, row: int, *, at_least: int | None = None
    ) -> list[NDArray[np.uint8]]:
        """Returns the upright images of a row's list, uint8 (H, W, C) each; see `image`.

        Raises:
            ImageError: The list is null, or one of its images cannot be read or decoded.
        """
        count = int(self.image_counts(field, self._in_range(np.array([row], np.int64)))[0])
        if count < 0:
            raise ImageError(self.path, row, self.sample_name(row), null_list(field))
        found = []
        for index in range(count):
            try:
                found.append(self.listed_image(field, row, index, at_least=at_least))
            except NOT_OF_SAMPLES:
                raise
            except Exception as error:
                cause = error.cause if isinstance(error, SampleError) else error
                name = image_name(self.sample_name(row), field, index)
                raise ImageError(self.path, row, name, cause) from error
        return found

    def fixed_columns(self, fields: Sequence[str]) -> Layout | None:
        """Returns where those of the fields lie that have one size in every row; None: nowhere.

        Fields that the layout does not have are read by `gather_all`.
        """
        return None

    def array_columns(self, fields: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        """Returns the arrays, (rows, ...), of those fields that are arrays in memory, by name.

        Each row is contiguous, and the rows lie in ascending order. The same fields give the same
        object as long as the arrays are at the same addresses.
        """
        return {}

    def ragged_rows(self, field: str) -> RaggedRows | None:
        """Returns where the rows of a field lie that differ in size; None: not in local shards."""
        return None

    def row_groups(
        self, fields: Sequence[str] | None, memory: int, threads: int, keep_nulls: bool = False
    ) -> TableDataset | None:
        """Opens the same rows as row groups; None if some fields cannot be read by row groups.

        Args:
            fields: The names of the fields to read, in this order. If None, all.
            memory: The memory that the row groups may take, in bytes.
            threads: The number of threads that open files.
            keep_nulls: As for `TableOptions`.
        """
        return None

    @property
    def group_bounds(self) -> NDArray[np.int64]:
        """The first row of each row group, and the number of rows: int64 (groups + 1,)."""
        return np.array([0, len(self)], np.int64)

    @property
    def group_bytes(self) -> int:
        """The approximate size in memory of the largest row group, in bytes."""
        return 0

    def keep(self, nbytes: int) -> None:  # noqa: B027 - most kinds have no row groups
        """Sets the memory for row groups that were read, in bytes; no effect without them."""

    def sound_file(self, field: str, row: int) -> str | NDArray[np.uint8]:
        """Returns the path of a row's sound file, or its bytes, uint8 (n,)."""
        (value,) = self.gather_all([field], np.array([row], np.int64))[field]
        return np.frombuffer(value, np.uint8)

    def sampling_rate(self, field: str) -> int | None:
        """Returns the sampling rate in Hz at which a field of sound is wanted; None if unknown."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Closes what is open."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _row(self, index: int) -> int:
        """Returns the row of an index, which may count from the end, or raises IndexError."""
        if not hasattr(index, "__index__"):
            raise TypeError(f"a row number must be an integer, got {index!r}")
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} is out of range: {self.path} has {len(self)} rows")
        return row

    def _in_range(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns row numbers, int64 (n,), or raises IndexError if one is out of range."""
        rows = np.asarray(rows, np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            bad = rows[(rows < 0) | (rows >= len(self))][0]
            raise IndexError(f"row {bad} is out of range: {self.path} has {len(self)} rows")
        return rows

    def _field(self, name: str) -> Any:
        """Returns a field, or raises SchemaError if there is none of that name."""
        if name not in self.schema.fields:
            raise SchemaError(
                f"{self.path} has no field {name!r}; it has {', '.join(self.schema.fields)}"
            )
        return self.schema.fields[name]

    def _not_images(self, fields: Sequence[str]) -> dict[str, Any]:
        """Returns fields by name, or raises SchemaError if one does not exist or has images."""
        kinds = {name: self._field(name) for name in fields}
        for name, kind in kinds.items():
            if isinstance(kind, PICTURES):
                what = "an image" if isinstance(kind, Image) else "a list of images"
                raise SchemaError(f"field {name!r} is {what}: index the dataset, or use a Loader")
        return kinds


def _single(value: Any, kind: Any) -> Any:
    """Returns a row's value; numbers that Python can represent without loss as its own."""
    own = isinstance(kind, Scalar) and kind.dtype in ("int64", "float64", "bool")
    return value.item() if own else value
