"""Arrow files as a stranger may hand them over: well formed, save for one buffer that lies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROWS = 1000
_WIDTH = 7  # bytes of a string, numbers of a list


def _offsets(step: int = _WIDTH) -> np.ndarray[Any, Any]:
    return np.arange(0, (ROWS + 1) * step, step, dtype=np.int32)


def _strings() -> pa.Array:
    return pa.array([f"s{row:06d}" for row in range(ROWS)])


def _lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(_offsets()), values)


def _numbers() -> pa.Array:
    return pa.array(np.arange(ROWS * _WIDTH, dtype=np.int64))


def _dictionary() -> pa.Array:
    indices = pa.array(np.arange(ROWS, dtype=np.int32) % 50)
    return pa.DictionaryArray.from_arrays(indices, pa.array([f"w{n:03d}" for n in range(50)]))


def _with(
    good: np.ndarray[Any, Any], places: Sequence[int], value: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    bad = good.copy()
    bad[list(places)] = value
    return good, bad


def columns() -> dict[str, tuple[pa.Array, bytes, bytes]]:
    """Columns by what is wrong with them: as they are written, then bytes and what they become."""
    offsets, indices = _offsets(), np.arange(ROWS, dtype=np.int32) % 50
    structs = pa.StructArray.from_arrays([pa.array(["x" * 7] * ROWS * _WIDTH)], ["name"])
    inner = np.arange(0, (ROWS * _WIDTH + 1) * 7, 7, dtype=np.int32)
    found = {
        "negative": (_strings(), *_with(offsets, range(1, ROWS), -(2**30))),
        "slightly_negative": (_strings(), *_with(offsets, [0], -4096)),
        "descending": (_strings(), *_with(offsets, range(2, ROWS, 2), 3)),
        "beyond": (_strings(), *_with(offsets, range(1, ROWS + 1), 2**31 - 1)),
        "list_negative": (_lists(_numbers()), *_with(offsets, range(1, ROWS), -(2**30))),
        "list_beyond": (_lists(_numbers()), *_with(offsets, range(1, ROWS + 1), 2**31 - 1)),
        "list_of_structs": (_lists(structs), *_with(inner, range(1, len(inner)), 2**31 - 1)),
        "dictionary": (_dictionary(), *_with(indices, range(ROWS), 2**30)),
        "dictionary_negative": (_dictionary(), *_with(indices, range(ROWS), -(2**30))),
    }
    return {
        name: (array, good.tobytes(), bad.tobytes()) for name, (array, good, bad) in found.items()
    }


def table(name: str) -> pa.Table:
    """The column of this name, before it lies, beside numbers."""
    column = columns()[name][0]
    return pa.table({"number": pa.array(np.arange(ROWS)), "column": column})


def spoil(path: Path, name: str) -> None:
    """Makes the column of a file lie, which was written of `table`."""
    _, good, bad = columns()[name]
    data = path.read_bytes()
    assert data.count(good) == 1
    path.write_bytes(data.replace(good, bad))


def write_file(path: Path, name: str) -> Path:
    """An Arrow file, or a Feather file."""
    whole = table(name)
    with pa.ipc.new_file(path, whole.schema) as writer:
        writer.write_table(whole)
    spoil(path, name)
    return path


def write_stream(path: Path, name: str) -> Path:
    """An Arrow stream."""
    whole = table(name)
    with pa.ipc.new_stream(path, whole.schema) as writer:
        writer.write_table(whole)
    spoil(path, name)
    return path


def write_saved(folder: Path, name: str) -> Path:
    """A folder of `save_to_disk`."""
    folder.mkdir()
    write_stream(folder / "data.arrow", name)
    state = {"_data_files": [{"filename": "data.arrow"}], "_fingerprint": name}
    (folder / "state.json").write_text(json.dumps(state))
    info: dict[str, Any] = {}
    if name == "list_of_structs":
        inside = {"name": {"dtype": "string", "_type": "Value"}}
        number = {"dtype": "int64", "_type": "Value"}
        info["features"] = {"number": number, "column": [inside]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def inflated(path: Path, claims: int | None = None, stream: bool = False) -> Path:
    """An Arrow file of zeros whose few compressed bytes are a gibibyte, or say that they are more.

    Args:
        path: of the file.
        claims: bytes that the column's buffer says it takes; None: as many as it does.
        stream: write an Arrow stream.
    """
    rows = (1 << 27) if claims is None else 4096
    whole = pa.table({"column": pa.array(np.zeros(rows, np.int64))})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(path, whole.schema, options=options) as writer:
        writer.write_table(whole)
    if claims is not None:
        data, said = path.read_bytes(), (8 * rows).to_bytes(8, "little")
        place = data.rindex(said)
        path.write_bytes(data[:place] + claims.to_bytes(8, "little") + data[place + 8 :])
    return path
