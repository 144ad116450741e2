"""Files of NumPy arrays, .npy, whose headers are compared with their bytes before memory is taken.

The format is NumPy's (numpy.lib.format). Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import math
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_VERSIONS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_header(file: IO[bytes], nbytes: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Returns the shape, whether it is in Fortran's order, and the dtype of an .npy file.

    Args:
        file: The file, at its beginning. Afterwards it is at the first value.
        nbytes: The size of the whole file.

    Raises:
        ValueError: it is no header, or the file has fewer bytes than its array takes; the message
            is a reason, without a name.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = _VERSIONS.get(version)
        if read is None:
            raise ValueError(f"version {version} of the format is not supported")
        shape, fortran, dtype = read(file)
    except Exception as error:  # what is no literal of Python raises errors of every kind
        raise ValueError(f"it is not a readable .npy file: {error}") from error
    if any(length < 0 for length in shape):
        raise ValueError(f"it is not a readable .npy file: its header has the shape {shape}")
    there = nbytes - file.tell()
    taken = math.prod(shape) * dtype.itemsize
    if taken > there and not dtype.hasobject:  # which are pickled, and read by nobody
        raise ValueError(
            f"it is not a readable .npy file: its header describes a {dtype.name} array of shape "
            f"{shape}, which takes {taken:,} bytes, but it has {there:,}"
        )
    return tuple(shape), bool(fortran), dtype


def array_of(data: bytes) -> NDArray[Any]:
    """Returns the array in an .npy file, in memory of its own, or raises as `read_header`."""
    file = io.BytesIO(data)
    shape, fortran, dtype = read_header(file, len(data))
    if dtype.hasobject:
        raise ValueError("it is not a readable .npy file: it contains pickled Python objects")
    if not dtype.itemsize:  # frombuffer does not take an itemsize of 0
        return np.zeros(shape, dtype)
    values = np.frombuffer(data, dtype, math.prod(shape), file.tell())
    # A copy is writable and aligned, and does not keep the file's bytes.
    return values.reshape(shape, order="F" if fortran else "C").copy()
