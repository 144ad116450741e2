"""The dtypes that a format of the datasets package gives to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fastio.schema import DTYPES
from fastio.sources.table.leaves import is_list, is_number, value_type

_TENSORS = ("torch", "numpy")


@dataclass(frozen=True)
class Format:
    """The format of a dataset, as `set_format` of the datasets package sets it.

    Attributes:
        kind: The format, such as "torch"; None for Python's objects.
        settings: Its other arguments.
    """

    kind: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def dtype(self, column: pa.DataType) -> str | None:
        """Returns the dtype of a column's numbers; None if the format does not change it.

        In the formats "torch" and "numpy", integers are int64 and floats float32, unless the format
        has a `dtype`.
        """
        numbers = column.value_type if is_list(column) else value_type(column)
        if self.kind not in _TENSORS or not is_number(numbers):
            return None
        given = self.settings.get("dtype")
        name = getattr(given, "__name__", str(given)).removeprefix("torch.")
        if given is not None:
            return name if name in DTYPES else None
        if pa.types.is_floating(numbers):
            return "float32"
        # uint64 stays: int64 cannot hold all of its numbers.
        whole = pa.types.is_integer(numbers) and not pa.types.is_uint64(numbers)
        return "int64" if whole else None
