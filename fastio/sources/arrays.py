"""Arrays and tensors in memory as a dataset: each row of them is a sample.

    arrays, tensors, a tuple or dict of them, a TensorDataset -> ArraySet -> ArrayDataset

The arrays are not copied: native threads read the rows directly from them, so that changes of the
arrays show in later batches, as they do with a DataLoader. torch is not imported: a tensor's
`numpy()` shares its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.packed.layout import AS_STORED, ImageReads
from fastio.packed.rows import Rows
from fastio.schema import (
    CODEC_RAW,
    Array,
    Field,
    Image,
    Scalar,
    Schema,
    Structure,
    Text,
)

_MOST_COLUMNS = 64  # a longer tuple is a dataset of samples
_TRANSPOSED = 5  # the EXIF orientation of images whose height and width are swapped
_SAMPLED_ROWS = 64  # number of rows that a fingerprint is computed from
_COPY = "pass a contiguous copy of it (numpy.ascontiguousarray)"

AnyArray = NDArray[Any]


class Pixels(NamedTuple):
    """How the images of an array of shape (n, H, W), (n, H, W, C) or (n, C, H, W) lie in memory.

    Attributes:
        kind: The type of the field: RGB or gray.
        height, width: The size of the images as they lie in memory: swapped if `transposed`.
        planar: Whether each channel lies in memory as a whole, and not the channels of each pixel.
        transposed: Whether the pixels of a column, not those of a row, are neighbours in memory.
    """

    kind: Image
    height: int
    width: int
    planar: bool
    transposed: bool

    @classmethod
    def of(cls, name: str, array: AnyArray) -> Pixels:
        """Returns the layout of an array, or raises SchemaError if it holds no images."""
        if array.dtype != np.uint8 or array.ndim not in (3, 4):
            raise SchemaError(
                f"{name!r} has the dtype {array.dtype} and the shape {array.shape}: images are "
                "uint8 (rows, H, W), (rows, H, W, C) or (rows, C, H, W)"
            )
        axes = {"H": 1, "W": 2}
        channels = 1
        if array.ndim == 4:
            last = array.shape[3] in (1, 3)
            if not last and array.shape[1] not in (1, 3):
                raise SchemaError(
                    f"{name!r} has the shape {array.shape}: images have 1 or 3 channels"
                )
            if last and array.shape[1] in (1, 3):
                raise SchemaError(
                    f"{name!r} has the shape {array.shape}: the first axis of an image, or the "
                    "last, could be its channels"
                )
            axes = {"H": 1, "W": 2, "C": 3} if last else {"C": 1, "H": 2, "W": 3}
            channels = array.shape[axes["C"]]
        if 0 in array.shape[1:]:
            raise SchemaError(f"{name!r} has the shape {array.shape}: it has no pixels")
        if array.strides[0] < 0:  # `memory` begins at the first row, and has no bytes before it
            raise SchemaError(f"{name!r}: the rows lie in descending order: {_COPY}")
        order = _memory_order(array, axes)
        if order not in ("HWC", "WHC", "CHW", "CWH"):
            raise SchemaError(f"{name!r}: the pixels of an image are not contiguous: {_COPY}")
        transposed = order.index("W") < order.index("H")
        height, width = array.shape[axes["H"]], array.shape[axes["W"]]
        if transposed:
            # The native decoder reads pixels in memory order, and transposes by the orientation.
            height, width = width, height
        planar = channels > 1 and order[0] == "C"
        return cls(Image("RGB" if channels == 3 else "L"), height, width, planar, transposed)


def _memory_order(array: AnyArray, axes: Mapping[str, int]) -> str:
    """Returns the axes of a row in their order in memory, such as "CHW"; "" if there are gaps.

    The position of an axis of length 1 is arbitrary; it is put where "HWC" has it.
    """
    size = {name: array.shape[axis] for name, axis in axes.items()}
    stride = {name: array.strides[axis] for name, axis in axes.items()}
    order = sorted(
        (name for name in "HWC" if size.get(name, 1) > 1), key=lambda name: -stride[name]
    )
    expected = array.itemsize
    for name in reversed(order):
        if stride[name] != expected:
            return ""
        expected *= size[name]
    for name in "HWC":
        if name not in order:
            order.insert("HWC".index(name), name)
    return "".join(order)


@dataclass(frozen=True)
class ArraySet:
    """Arrays and tensors whose rows are the fields of samples.

    Attributes:
        sources: The array or tensor of each field, (n, ...), all with n rows.
        structure: The structure of a sample.
        name: The name of the source's type, for messages.
        images: The names of the fields that hold images.
        classes: The names of the classes of `label`, or None.
        as_tensors: Whether the values of tensors are tensors in samples, too.
        columns: The sources as arrays that share their memory.
        pixels: How the images lie in memory.
        memory: The memory of the images, uint8 (n,).
    """

    sources: Mapping[str, Any]
    structure: Structure
    name: str
    images: Sequence[str] = ()
    classes: tuple[str, ...] | None = None
    as_tensors: bool = True
    columns: Mapping[str, AnyArray] = field(init=False)
    pixels: Mapping[str, Pixels] = field(init=False)
    memory: Mapping[str, NDArray[np.uint8]] = field(init=False)

    def __post_init__(self) -> None:
        # These values are computed once, because a loader needs them in every batch.
        columns = {name: as_array(source) for name, source in self.sources.items()}
        object.__setattr__(self, "columns", columns)
        pixels = {name: Pixels.of(name, columns[name]) for name in self.images}
        object.__setattr__(self, "pixels", pixels)
        memory = {name: _bytes_of(columns[name]) for name in self.images}
        object.__setattr__(self, "memory", memory)
        rows = {name: len(column) for name, column in columns.items()}
        if len(set(rows.values())) > 1:
            of_each = ", ".join(f"{name!r} has {count}" for name, count in rows.items())
            raise SchemaError(f"the arrays differ in their number of rows: {of_each}")

    def __reduce__(self) -> Any:
        # NumPy may unpickle an array with other strides, so that what depends on them is made anew.
        given = self.sources, self.structure, self.name, self.images, self.classes, self.as_tensors
        return ArraySet, given

    @property
    def moved(self) -> bool:
        """Whether the memory of a tensor is elsewhere now.

        torch moves a tensor to shared memory, and frees its memory, when the tensor is sent to
        another process or shared by `share_memory_`.
        """
        return any(
            source.data_ptr() != self.columns[name].__array_interface__["data"][0]
            for name, source in self.sources.items()
            if is_tensor(source)
        )

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def layouts(self) -> tuple[Any, ...]:
        """Addresses, shapes, strides and dtypes, which change if another array is assigned."""
        found = {name: column.__array_interface__ for name, column in self.columns.items()}
        return tuple(
            (name, each["data"], each["shape"], each["strides"], each["typestr"])
            for name, each in found.items()
        )

    def schema(self) -> Schema:
        """Returns the schema of a sample, or raises SchemaError if an array cannot be a field."""
        kinds = {
            name: self.pixels[name].kind if name in self.pixels else _kind(name, column)
            for name, column in self.columns.items()
        }
        return Schema(kinds, self.structure, self.classes)


def _kind(name: str, column: AnyArray) -> Field:
    """Returns the type of a field that is no image."""
    if column.dtype.kind == "U" and column.ndim == 1:
        return Text()
    if not column.dtype.isnative and column.dtype.names is None:
        raise SchemaError(f"{name!r} has another byte order: use .astype({column.dtype.name!r})")
    try:
        if column.ndim == 1:
            return Scalar(column.dtype.name)
        return Array(column.dtype.name, column.shape[1:])
    except SchemaError as error:
        raise SchemaError(f"{name!r}: {error}") from error


def array_set(source: Any, images: Iterable[str | int] | None = None) -> ArraySet | None:
    """Returns arrays in memory as columns; None if the source is something else.

    Args:
        source: An array or tensor, a tuple of up to 64 of them with equal numbers of rows, a dict
            of them, or a TensorDataset.
        images: Which of them hold images: keys of a dict, else positions. None: none of them.

    Raises:
        SchemaError: A dict has arrays of different lengths, a tensor is not in the CPU's memory,
            or one of `images` does not exist or holds no images.
    """
    kind = type(source)
    if type(source) is dict:
        if not all(type(name) is str and is_array(array) for name, array in source.items()):
            return None
        names = {name: name for name in source}
        return ArraySet(source, "dict", kind.__name__, _images(images, names)) if source else None
    arrays: tuple[Any, ...] | None = None
    # Compared by name, because torch is not imported. Subclasses are left out, because they may
    # return other samples.
    if (kind.__module__, kind.__qualname__) == ("torch.utils.data.dataset", "TensorDataset"):
        arrays = tuple(source.tensors)
    elif is_array(source):
        arrays = (source,)
    elif _is_tuple_of_columns(source):
        arrays = source
    if arrays is None:
        return None
    pictures = set(images or ())
    kinds = [
        Image() if place in pictures else _kind(f"array {place}", as_array(array))
        for place, array in enumerate(arrays)
    ]
    fields = usual_names(kinds)
    return ArraySet(
        dict(zip(fields, arrays, strict=True)),
        "single" if is_array(source) else "tuple",
        kind.__name__,
        _images(images, dict(enumerate(fields))),
        class_names(source),
    )


def _is_tuple_of_columns(source: Any) -> bool:
    """Returns whether a source is a tuple of arrays with equal numbers of rows."""
    if type(source) is not tuple or not 1 <= len(source) <= _MOST_COLUMNS:
        return False
    return all(map(is_array, source)) and len({len(array) for array in source}) == 1


def usual_names(fields: Sequence[Field]) -> list[str]:
    """Returns names for fields that have none: image, label (an integer), value (another number).

    A field of another type has the name of the type. If a name occurs again, _1, _2, ... is added.
    """
    names: list[str] = []
    counts: dict[str, int] = {}
    for kind in fields:
        name = type(kind).__name__.lower()
        if isinstance(kind, Scalar):
            name = "label" if "int" in kind.dtype else "value"
        seen = counts.get(name, 0)
        counts[name] = seen + 1
        names.append(f"{name}_{seen}" if seen else name)
    return names


def class_names(dataset: Any) -> tuple[str, ...] | None:
    """Returns a dataset's `classes` if they are names of its labels, as torchvision's are."""
    changed = getattr(dataset, "target_transform", None) is not None  # the labels are others
    names: Any = None if changed else getattr(dataset, "classes", None)
    named = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    return tuple(names) or None if named else None


def is_columns(source: Any) -> bool:
    """Returns whether a loader takes a tuple or dict for columns of samples.

    These are dicts of arrays and tensors, and tuples of them that differ in their dtypes or numbers
    of axes. To torch's DataLoader a tuple is a dataset of samples, which are alike.
    """
    if type(source) is tuple:
        alike = len({(str(array.dtype), array.ndim) for array in source if is_array(array)}) == 1
        return _is_tuple_of_columns(source) and not alike
    return type(source) is dict


def _images(images: Iterable[str | int] | None, names: Mapping[str | int, str]) -> list[str]:
    """Returns the names of the fields that hold images.

    Args:
        images: Keys of `names`, or None.
        names: The names of all fields, by the key or position that the user gives.

    Raises:
        SchemaError: A field does not exist.
    """
    wanted = list(images or ())
    for key in wanted:
        if key not in names:
            raise SchemaError(f"images has {key!r}; there are {', '.join(map(str, names))}")
    return [names[key] for key in wanted]


def is_array(value: Any) -> bool:
    """Returns whether a value is an array or a torch.Tensor that has rows."""
    return (isinstance(value, np.ndarray) or is_tensor(value)) and value.ndim > 0


def is_tensor(value: Any) -> bool:
    """Returns whether a value is a torch.Tensor, and of no subclass. torch is not imported."""
    kind = type(value)
    return kind.__module__ == "torch" and kind.__qualname__ == "Tensor"


def as_array(value: Any) -> AnyArray:
    """Returns an array or a tensor as an array that shares its memory.

    Raises:
        SchemaError: The tensor cannot be an array: it is on a device, is sparse, requires
            gradients, or has a dtype that NumPy lacks.
    """
    if isinstance(value, np.ndarray):
        if type(value) not in (np.ndarray, np.memmap):
            raise SchemaError(
                f"a {type(value).__name__} is not a plain array: pass a numpy.ndarray with the "
                "same values"
            )
        return value
    if not is_tensor(value):
        raise SchemaError(f"a {type(value).__name__} is neither an array nor a torch.Tensor")
    try:
        found: AnyArray = value.numpy()
    except (TypeError, RuntimeError) as error:
        what = f"{str(value.layout).removeprefix('torch.')} tensor of {value.dtype}"
        raise SchemaError(
            f"a {what} on {value.device} cannot be read as an array: {error}"
        ) from error
    return found


class ArrayDataset(Rows):
    """The rows of arrays in memory as samples. Thread-safe while the arrays are not written to.

    Args:
        arrays: The arrays and what they mean.

    Attributes:
        schema: A field for each array: Scalar for (n,), Array for (n, ...), Image for images, Text
            for strings.

    Raises:
        SchemaError: An array cannot be a field.
    """

    def __init__(self, arrays: ArraySet) -> None:
        self.schema = arrays.schema()
        self.path = arrays.name
        self._arrays = arrays
        # What `array_columns` has returned, and for which arrays.
        self._whole: tuple[ArraySet, dict[tuple[str, ...], Mapping[str, AnyArray]]] = arrays, {}

    def __reduce__(self) -> Any:
        return ArrayDataset, (self._arrays,)

    @property
    def arrays(self) -> ArraySet:
        """The arrays where they lie now."""
        arrays = self._arrays
        if arrays.moved:
            self._arrays = arrays = replace(arrays)
        return arrays

    @property
    def tensor_fields(self) -> frozenset[str]:  # type: ignore[override]
        """See `Rows`."""
        arrays = self._arrays
        tensors = (name for name, source in arrays.sources.items() if is_tensor(source))
        return frozenset(tensors if arrays.as_tensors else ())

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"ArrayDataset({self.path}, rows={len(self)}, fields={list(self.schema.fields)})"

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits, computed from the dtypes, the shapes and some of the rows."""
        return _fingerprint(self.arrays)

    def gather_all(self, fields: Sequence[str], rows: NDArray[np.int64]) -> dict[str, Any]:
        """See `Rows`."""
        kinds, rows = self._not_images(fields), self._in_range(rows)
        columns = self.arrays.columns
        return {
            name: columns[name][rows].tolist() if isinstance(kind, Text) else columns[name][rows]
            for name, kind in kinds.items()
        }

    def _decoded(
        self,
        field: str,
        row: int,
        at_least: int | None,
        data: NDArray[np.uint8] | None,
        index: int | None = None,
    ) -> NDArray[np.uint8]:
        pixels = self.arrays.columns[field][row]
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        elif pixels.shape[2] not in (1, 3):
            pixels = pixels.transpose(1, 2, 0)
        return np.array(pixels, order="C")

    def image_size(self, field: str, row: int) -> tuple[int, int]:
        """See `Rows`."""
        pixels = self.arrays.pixels[field]
        size = pixels.height, pixels.width
        return size[::-1] if pixels.transposed else size

    def image_reads(self, field: str, rows: NDArray[np.int64]) -> ImageReads:
        """See `Rows`."""
        if not isinstance(self._field(field), Image):
            return super().image_reads(field, rows)
        arrays = self.arrays
        array, pixels = arrays.columns[field], arrays.pixels[field]
        n, nbytes = len(rows), array[0].size
        return ImageReads(
            str,
            np.zeros(n, np.int32),
            rows * array.strides[0],
            np.full(n, nbytes, np.int64),
            np.full(n, CODEC_RAW, np.uint8),
            np.full(n, _TRANSPOSED if pixels.transposed else AS_STORED, np.uint8),
            np.full(n, pixels.height, np.int32),
            np.full(n, pixels.width, np.int32),
            memory=[arrays.memory[field]],
            planar=pixels.planar,
        )

    def array_columns(self, fields: Sequence[str]) -> Mapping[str, AnyArray]:
        """See `Rows`. Arrays whose rows are not contiguous are left to `gather_all`."""
        arrays, wanted = self.arrays, tuple(fields)
        known, whole = self._whole
        if known is not arrays:  # other threads may still have those that have moved
            whole = {}
            self._whole = arrays, whole
        if wanted not in whole:
            whole[wanted] = {
                name: arrays.columns[name]
                for name in wanted
                if isinstance(self.schema.fields[name], (Scalar, Array))
                and _is_whole(arrays.columns[name])
            }
        return whole[wanted]

    def sample_name(self, row: int) -> str:
        """Returns the name of a row for messages."""
        return f"row {row}"

    def close(self) -> None:
        """Does nothing: the arrays belong to the caller."""


def _is_whole(column: AnyArray) -> bool:
    """Returns whether native threads can read the rows of an array."""
    # Native threads need rows without gaps at ascending addresses, a whole number of values apart.
    apart = column.strides[0]
    ascending = apart >= 0 and apart % column.itemsize == 0
    return len(column) > 0 and ascending and bool(column[0].flags.c_contiguous)


def _bytes_of(images: AnyArray) -> NDArray[np.uint8]:
    """Returns the memory of images from the first byte to the last, uint8 (n,)."""
    if not len(images):
        return np.empty(0, np.uint8)
    extent = (len(images) - 1) * images.strides[0] + images[0].size
    return as_strided(images, (extent,), (1,), writeable=False)


def _fingerprint(arrays: ArraySet) -> str:
    digest = xxhash.xxh3_64()
    for name, column in arrays.columns.items():
        digest.update(repr((name, column.dtype.str, column.shape)).encode())
        some = np.unique(np.linspace(0, max(0, len(column) - 1), _SAMPLED_ROWS).astype(np.int64))
        if len(column):
            digest.update(np.ascontiguousarray(column[some]).tobytes())
    return digest.hexdigest()
