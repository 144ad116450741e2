"""What datasets of rows have in common, whatever the rows are read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastio.errors import SchemaError
from fastio.runtime.memory import MAX_PIXELS, MAX_UNZIPPED_BYTES
from fastio.schema import Schema

_SETTINGS = ("max_pixels", "max_unzipped_bytes", "memory", "resident")
_Self = TypeVar("_Self", bound="Rows")  # typing.Self is of Python 3.11


class Rows(ABC):
    """Rows with a schema, closed at the end of a `with` statement.

    Attributes:
        path: where they come from, for messages.
        schema: of a sample.
        max_pixels: of an image, as stored; a larger one is an error of its sample.
        max_unzipped_bytes: of what a zipped file of a sample holds; more is an error of its sample.
        memory: bytes, or as "512MiB", that a Loader may take for row groups; None: it decides.
        resident: whether a Loader copies a packed table to memory; None: it decides.
    """

    path: str
    schema: Schema
    max_pixels: int = MAX_PIXELS
    max_unzipped_bytes: int = MAX_UNZIPPED_BYTES
    memory: int | str | None = None
    resident: bool | None = None

    def limit(self, max_pixels: int | None, max_unzipped_bytes: int | None) -> None:
        """Sets what a sample may take; None leaves it as it is.

        Raises:
            ValueError: a limit is less than 1.
        """
        limits = {"max_pixels": max_pixels, "max_unzipped_bytes": max_unzipped_bytes}
        for name, value in limits.items():
            if value is not None:
                if value < 1:
                    raise ValueError(f"{name} must be at least 1, got {value}")
                setattr(self, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        found = super().__reduce_ex__(protocol)
        settings = {name: self.__dict__[name] for name in _SETTINGS if name in self.__dict__}
        return (*found, settings) if settings and len(found) == 2 else found

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes that the numbers of `label` (or `class`) stand for, or None."""
        return self.schema.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, as torchvision's ImageFolder has it.

        Raises:
            AttributeError: there are no classes.
        """
        if self.classes is None:
            raise AttributeError(f"{self.path} has no classes")
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """The class number of every row, as torchvision's ImageFolder has it; read when asked for.

        Raises:
            AttributeError: there are no classes.
        """
        kept: list[int] | None = self.__dict__.get("_targets")
        if kept is None:
            names = [name for name in ("label", "class") if name in self.schema.fields]
            if self.classes is None or not names or not hasattr(self, "gather"):
                raise AttributeError(f"{self.path} has no classes")
            kept = self.gather(names[0], np.arange(len(self), dtype=np.int64)).tolist()
            self.__dict__["_targets"] = kept
        return kept

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def close(self) -> None:
        """Lets go of what is open."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _row(self, index: int) -> int:
        """The row that an index means; negative ones count from the end.

        Raises:
            IndexError: it is out of range.
        """
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} is out of range: {self.path} has {len(self)} rows")
        return row

    def _in_range(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row numbers, int64 (n,), none of them out of range.

        Raises:
            IndexError: one is negative or too large.
        """
        rows = np.asarray(rows, np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            bad = rows[(rows < 0) | (rows >= len(self))][0]
            raise IndexError(f"row {bad} is out of range: {self.path} has {len(self)} rows")
        return rows

    def _field(self, name: str) -> Any:
        """What a field is.

        Raises:
            SchemaError: there is no field of that name.
        """
        if name not in self.schema.fields:
            raise SchemaError(
                f"{self.path} has no field {name!r}; it has {', '.join(self.schema.fields)}"
            )
        return self.schema.fields[name]
