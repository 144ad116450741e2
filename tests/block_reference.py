"""A second reader of block records, written from the format page alone.

Plain and slow: every rule of the page stands here once, in the page's order, with Python integers
for bits and NumPy for arrays. Tests hold the native code against it; nothing else uses it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

SAMPLINGS = {(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)}  # (H, V)
GRAY, YCBCR, RGB = 0, 1, 2

Block = tuple[int, int, int]  # component, block row, block column
Coefficients = NDArray[np.int16]  # (block rows, block columns, 8, 8), natural order
Plane = NDArray[np.uint8]  # (rows, columns)


def zigzag_order() -> list[int]:
    """The natural index, 8 * row + column, of each zigzag position (ITU-T T.81, figure 5)."""

    def position(index: int) -> tuple[int, int]:
        row, column = divmod(index, 8)
        diagonal = row + column
        return diagonal, row if diagonal % 2 else column

    return sorted(range(64), key=position)


ZIGZAG = zigzag_order()


@cache
def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of some bytes."""
    table = _crc32c_table()
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def signed(number: int, bits: int) -> int:
    """The low bits of a number, read as two's complement."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if bits and number >> (bits - 1) else number


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def require(condition: bool, what: str) -> None:
    """Raises ValueError with what is wrong, unless the condition holds."""
    if not condition:
        raise ValueError(what)


# ---------------------------------------------------------------------------------- the codebook


@dataclass(frozen=True)
class CodeClass:
    """One class of the codebook."""

    last: int  # L, the last zigzag position that its mask tells of
    widths: tuple[int, ...]  # W: bits of the DC difference, then of the value at each position

    @cached_property
    def order(self) -> list[int]:
        """The positions 1 to L in the order of their bits: by descending W, then ascending."""
        return sorted(range(1, self.last + 1), key=lambda z: -self.widths[z])

    @cached_property
    def narrow(self) -> bool:
        """Whether its values are the low 8 bits."""
        return max(self.widths[1:]) <= 8

    def value(self, negative: bool, magnitude_less_1: int) -> int:
        """The value that a sign and |v| - 1 stand for."""
        value = -magnitude_less_1 - 1 if negative else magnitude_less_1 + 1
        return signed(value, 8) if self.narrow else value

    def holds(self, z: int, value: int) -> bool:
        """Whether a value that is not 0 comes back at a zigzag position >= 1."""
        if z > self.last or abs(value) - 1 >> (self.widths[z] - 1):
            return False
        return self.value(value < 0, abs(value) - 1) == value

    def holds_difference(self, difference: int) -> bool:
        """Whether a DC difference fits, so that it needs no escape."""
        half = (1 << self.widths[0]) >> 1
        return -half < difference < half if half else difference == 0


@cache
def parse_codebook(data: bytes) -> tuple[CodeClass, ...]:
    """The 256 classes of a codebook; ValueError where it is not one."""
    require(len(data) == 256 * 65, f"a codebook has 16640 bytes, not {len(data)}")
    classes = []
    for number in range(256):
        last, *widths = data[65 * number : 65 * number + 65]
        require(last <= 63, f"class {number}: L is {last}")
        require(widths[0] <= 12, f"class {number}: W[0] is {widths[0]}")
        for z in range(1, 64):
            allowed = 1 <= widths[z] <= 12 if z <= last else widths[z] == 0
            require(allowed, f"class {number}: W[{z}] is {widths[z]}, and L {last}")
        classes.append(CodeClass(last, tuple(widths)))
    require(classes[0] == CodeClass(63, (12,) * 64), "class 0 is not L = 63, W = 12")
    return tuple(classes)


# -------------------------------------------------------------------------- header and its geometry


@dataclass(frozen=True)
class Header:
    """All that the header of a record tells, and the geometry that follows from it."""

    components: int
    colour: int
    across: int  # H
    down: int  # V
    width: int
    height: int
    identifiers: tuple[int, ...]
    table_numbers: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]  # in zigzag order
    metadata_bytes: int
    dc_bytes: tuple[int, ...]  # of each tile row
    ac_bytes: tuple[int, ...]  # of each tile
    exceptions: tuple[int, ...]  # how many each tile has
    dc_crcs: tuple[int, ...]  # of each tile row
    ac_crcs: tuple[int, ...]  # of each group of tiles
    metadata_crc: int
    size: int  # of the header, bytes

    @property
    def tile_rows(self) -> int:
        return ceil_div(self.height, 8 * self.down)

    @property
    def tile_columns(self) -> int:
        return ceil_div(self.width, 128)

    @property
    def groups(self) -> list[list[tuple[int, int]]]:
        """The tiles of each group, as (row, column), in the order of the AC section."""
        columns = range(self.tile_columns)
        return [
            [(row, column) for column in columns[first : first + 4]]
            for first in columns[::4]
            for row in range(self.tile_rows)
        ]

    def plane_size(self, component: int) -> tuple[int, int]:
        """Rows and columns of samples of a component."""
        if component == 0:
            return self.height, self.width
        return ceil_div(self.height, self.down), ceil_div(self.width, self.across)

    def grid(self, component: int) -> tuple[int, int]:
        """Rows and columns of blocks of a component."""
        rows, columns = self.plane_size(component)
        return ceil_div(rows, 8), ceil_div(columns, 8)

    def row_blocks(self, row: int) -> list[Block]:
        """The blocks of a tile row in the order of the DC section."""
        blocks = []
        for component in range(self.components):
            tall = self.down if component == 0 else 1
            rows, columns = self.grid(component)
            blocks += [
                (component, y, x)
                for y in range(row * tall, min((row + 1) * tall, rows))
                for x in range(columns)
            ]
        return blocks

    def tile_blocks(self, row: int, column: int) -> list[Block]:
        """The blocks of a tile in the order of their numbers."""

        def tile_of(block: Block) -> int:
            component, _, x = block
            return x // (16 if component == 0 else 16 // self.across)

        return [block for block in self.row_blocks(row) if tile_of(block) == column]

    def previous_block(self, block: Block) -> Block | None:
        """The block that another's DC is told from; None: the component's base."""
        component, row, column = block
        if column > 0:
            return component, row, column - 1
        first_of_tile_row = component > 0 or row % self.down == 0
        return None if first_of_tile_row else (component, row - 1, 0)

    def table(self, component: int) -> NDArray[np.int64]:
        """The quantisation table of a component: (8, 8), natural order."""
        table = np.zeros(64, np.int64)
        table[ZIGZAG] = self.tables[self.table_numbers[component]]
        return table.reshape(8, 8)


class _Fields:
    """Reads little-endian fields one after another."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, kind: str, count: int = 1) -> tuple[int, ...]:
        layout = f"<{count}{kind}"
        size = struct.calcsize(layout)
        require(self.at + size <= len(self.data), "the header is cut off")
        self.at += size
        return struct.unpack_from(layout, self.data, self.at - size)

    def one(self, kind: str) -> int:
        return self.take(kind)[0]


def parse_header(data: bytes) -> Header:
    """The header of a record, of which `data` has at least that; ValueError where it is wrong."""
    fields = _Fields(data)
    version, flags, colour, sampling = fields.take("B", 4)
    require(version == 1, f"version {version}")
    require(flags == 0, f"flags {flags:#x}")
    require(colour in (GRAY, YCBCR, RGB), f"colour {colour}")
    components = 1 if colour == GRAY else 3
    across, down = sampling >> 4, sampling & 15
    require((across, down) in SAMPLINGS, f"sampling {across} x {down}")
    require(components == 3 or (across, down) == (1, 1), "a gray image is not subsampled")
    width, height = fields.take("H", 2)
    require(width > 0 and height > 0, f"{width} x {height} samples")
    identifiers, numbers = fields.take("B", 3), fields.take("B", 3)
    count, wide = fields.take("B", 2)
    require(1 <= count <= 3, f"{count} quantisation tables")
    require(wide >> count == 0, f"width bits {wide:#x} of {count} quantisation tables")
    require(all(n < count for n in numbers[:components]), "a component names no table")
    require(not any(identifiers[components:] + numbers[components:]), "fields of no component")
    metadata_bytes = fields.one("I")
    tables = tuple(fields.take("H" if wide >> k & 1 else "B", 64) for k in range(count))
    require(all(min(table) > 0 for table in tables), "a quantisation value of 0")
    rows, columns = ceil_div(height, 8 * down), ceil_div(width, 128)
    dc_bytes = tuple(4 * words for words in fields.take("H", rows))
    ac_bytes = tuple(4 * words for words in fields.take("H", rows * columns))
    exceptions = fields.take("B", rows * columns)
    require(
        not any(fields.take("B", -fields.at % 4)), "the padding before the checksums is not zero"
    )
    crcs = fields.take("I", rows), fields.take("I", rows * ceil_div(columns, 4)), fields.one("I")
    expected = crc32c(data[: fields.at])
    require(fields.one("I") == expected, "the header's checksum is wrong")
    return Header(
        components,
        colour,
        across,
        down,
        width,
        height,
        identifiers[:components],
        numbers[:components],
        tables,
        metadata_bytes,
        dc_bytes,
        ac_bytes,
        exceptions,
        *crcs,
        fields.at,
    )


# ------------------------------------------------------------------------------ the record's parts


@dataclass(frozen=True)
class Record:
    """A record cut in its parts, the checksums of which are right."""

    header: Header
    dc: tuple[bytes, ...]  # of each tile row
    ac: tuple[bytes, ...]  # of each tile
    metadata: bytes


def _aligned(size: int) -> int:
    return 4 * ceil_div(size, 4)


def _cut(data: bytes, at: int, sizes: Sequence[int]) -> tuple[bytes, ...]:
    edges = list(accumulate(sizes, initial=at))
    return tuple(data[a:b] for a, b in pairwise(edges))


def _check(name: str, part: bytes, crc: int) -> None:
    require(crc32c(part) == crc, f"{name}: wrong checksum")


def _dc_parts(header: Header, data: bytes) -> tuple[bytes, ...]:
    require(header.size + sum(header.dc_bytes) <= len(data), "the DC section is cut off")
    parts = _cut(data, header.size, header.dc_bytes)
    for row, (part, crc) in enumerate(zip(parts, header.dc_crcs, strict=True)):
        _check(f"DC section, tile row {row}", part, crc)
    return parts


def groups_joined(parts: Sequence[bytes], groups: Sequence[Sequence[object]]) -> list[bytes]:
    """The parts of tiles, those of a group in one."""
    rest = iter(parts)
    return [b"".join(next(rest) for _ in group) for group in groups]


def parse_record(data: bytes) -> Record:
    """A whole record's header and parts; ValueError where sizes or checksums are wrong."""
    header = parse_header(data)
    ac_begin = header.size + sum(header.dc_bytes)
    ac_end = ac_begin + sum(header.ac_bytes)
    whole = ac_end + header.metadata_bytes
    require(len(data) == whole, f"a record of {whole} bytes has {len(data)}")
    ac = _cut(data, ac_begin, header.ac_bytes)
    for group, part, crc in zip(
        header.groups, groups_joined(ac, header.groups), header.ac_crcs, strict=True
    ):
        _check("AC section, tiles from row {} and column {}".format(*group[0]), part, crc)
    metadata = data[ac_end:]
    _check("metadata", metadata, header.metadata_crc)
    return Record(header, _dc_parts(header, data), ac, metadata)


class _Bits:
    """Reads a stream of bits: the lowest of each byte first, the lowest of each field first."""

    def __init__(self, data: bytes) -> None:
        self.bits = int.from_bytes(data, "little")
        self.left = 8 * len(data)

    def take(self, count: int) -> int:
        require(count <= self.left, "its bits end early")
        field = self.bits & ((1 << count) - 1)
        self.bits >>= count
        self.left -= count
        return field

    def finish(self) -> None:
        require(self.left < 32, "more words than its bits need")
        require(self.bits == 0, "bits set after its end")


def _read_dc_part(
    header: Header, row: int, part: bytes, codebook: Sequence[CodeClass]
) -> dict[Block, tuple[CodeClass, int]]:
    """Class and DC of each block of a tile row."""
    blocks = header.row_blocks(row)
    classes_at = 2 + 2 * header.components
    classes_end = classes_at + len(blocks)
    stream_at = _aligned(classes_end)
    require(stream_at <= len(part), "it ends before its classes do")
    (escapes,) = struct.unpack_from("<H", part)
    bases = struct.unpack_from(f"<{header.components}h", part, 2)
    escapes_at = len(part) - _aligned(2 * escapes)
    require(stream_at <= escapes_at, "it ends before its escapes do")
    classes = [codebook[number] for number in part[classes_at:classes_end]]
    require(not any(part[classes_end:stream_at]), "bits set after its classes")
    bits = _Bits(part[stream_at:escapes_at])
    widths = [code_class.widths[0] for code_class in classes]
    differences = [signed(bits.take(width), width) for width in widths]
    bits.finish()
    lowest = [bool(w) and d == -(1 << (w - 1)) for w, d in zip(widths, differences, strict=True)]
    require(sum(lowest) == escapes, f"{escapes} escapes for {sum(lowest)} differences")
    numbers = iter(struct.unpack_from(f"<{escapes}h", part, escapes_at))
    differences = [next(numbers) if low else d for low, d in zip(lowest, differences, strict=True)]
    require(not any(part[escapes_at + 2 * escapes :]), "bits set after its escapes")
    result: dict[Block, tuple[CodeClass, int]] = {}
    for block, code_class, difference in zip(blocks, classes, differences, strict=True):
        previous = header.previous_block(block)
        before = bases[block[0]] if previous is None else result[previous][1]
        result[block] = code_class, signed(before + difference, 16)
    return result


def _read_dc_section(
    header: Header, parts: Sequence[bytes], codebook: Sequence[CodeClass]
) -> dict[Block, tuple[CodeClass, int]]:
    """Class and DC of each block."""
    result = {}
    for row, part in enumerate(parts):
        try:
            result.update(_read_dc_part(header, row, part, codebook))
        except ValueError as error:
            raise ValueError(f"DC part of tile row {row}: {error}") from None
    return result


def _read_ac_part(part: bytes, count: int, classes: Sequence[CodeClass]) -> list[list[int]]:
    """The coefficients of each block of a tile in zigzag order, 0 in place of the DC."""
    exceptions_at = len(part) - _aligned(3 * count)
    require(exceptions_at >= 0, "it ends before its exceptions do")
    bits = _Bits(part[:exceptions_at])
    masks = [bits.take(code_class.last) for code_class in classes]
    blocks = []
    for code_class, mask in zip(classes, masks, strict=True):
        block = [0] * 64
        present = [z for i, z in enumerate(code_class.order) if mask >> i & 1]
        negative = {z: bits.take(1) for z in present}
        magnitude = dict.fromkeys(present, 0)
        for j in range(1, 12):
            wide = [z for z in present if code_class.widths[z] > j]
            plane = bits.take(len(wide))  # a bit of each
            for number, z in enumerate(wide):
                magnitude[z] |= (plane >> number & 1) << (j - 1)
        for z in present:
            block[z] = code_class.value(negative[z] == 1, magnitude[z])
        blocks.append(block)
    bits.finish()
    exceptions = part[exceptions_at : exceptions_at + 3 * count]
    require(not any(part[exceptions_at + 3 * count :]), "bits set after its exceptions")
    before = -1
    for at in range(0, 3 * count, 3):
        field = int.from_bytes(exceptions[at : at + 3], "little")
        z, number = field & 63, field >> 6 & 63
        require(number < len(blocks), f"an exception in block {number} of {len(blocks)}")
        require(z != 0, "an exception at position 0")
        require(field & 4095 > before, "exceptions that do not ascend")
        before = field & 4095
        blocks[number][z] = signed(field >> 12, 12)
    return blocks


def coefficients(data: bytes, codebook: bytes) -> list[Coefficients]:
    """The quantised coefficients of each component; ValueError where the record is wrong."""
    record, book = parse_record(data), parse_codebook(codebook)
    header = record.header
    result = [
        np.zeros((*header.grid(component), 64), np.int16) for component in range(header.components)
    ]
    dc_section = _read_dc_section(header, record.dc, book)
    tiles = [tile for group in header.groups for tile in group]
    for tile, part, count in zip(tiles, record.ac, header.exceptions, strict=True):
        blocks = header.tile_blocks(*tile)
        try:
            ac = _read_ac_part(part, count, [dc_section[block][0] for block in blocks])
        except ValueError as error:
            raise ValueError(
                "AC part of tile {} of row {}: {}".format(*tile[::-1], error)
            ) from None
        for block, values in zip(blocks, ac, strict=True):
            component, row, column = block
            result[component][row, column, ZIGZAG] = [dc_section[block][1], *values[1:]]
    return [blocks_of.reshape(*blocks_of.shape[:2], 8, 8) for blocks_of in result]


# ------------------------------------------------------------------------------------ the picture


def _idct_1d(x: Sequence[NDArray[np.int64]], shift: int) -> list[NDArray[np.int64]]:
    """Eight samples of eight coefficients, as jidctint.c does it, in 13 bits of fraction."""
    z1 = (x[2] + x[6]) * 4433
    tmp2, tmp3 = z1 - x[6] * 15137, z1 + x[2] * 6270
    tmp0, tmp1 = (x[0] + x[4]) * 8192, (x[0] - x[4]) * 8192
    even = [tmp0 + tmp3, tmp1 + tmp2, tmp1 - tmp2, tmp0 - tmp3]

    z5 = (x[7] + x[3] + x[5] + x[1]) * 9633
    z1, z2 = (x[7] + x[1]) * -7373, (x[5] + x[3]) * -20995
    z3, z4 = z5 - (x[7] + x[3]) * 16069, z5 - (x[5] + x[1]) * 3196
    odd = [
        x[1] * 12299 + z1 + z4,
        x[3] * 25172 + z2 + z3,
        x[5] * 16819 + z2 + z4,
        x[7] * 2446 + z1 + z3,
    ]
    sums = [a + b for a, b in zip(even, odd, strict=True)]
    differences = [a - b for a, b in zip(even, odd, strict=True)]
    return [value + (1 << (shift - 1)) >> shift for value in sums + differences[::-1]]


def inverse_dct(dequantised: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Samples (..., 8, 8) of dequantised coefficients (..., 8, 8): columns first, then rows."""
    columns = np.stack(_idct_1d([dequantised[..., v, :] for v in range(8)], 11), -2)
    rows = np.stack(_idct_1d([columns[..., u] for u in range(8)], 18), -1)
    return np.clip(rows + 128, 0, 255).astype(np.uint8)


def _dequantise(values: NDArray[np.int16], table: NDArray[np.int64]) -> NDArray[np.int64]:
    """The low 16 bits of the products, two's complement."""
    return (values * table).astype(np.int16).astype(np.int64)


def planes(data: bytes, codebook: bytes) -> list[Plane]:
    """The samples of each component, neither upsampled nor converted."""
    header = parse_header(data)
    result = []
    for component, blocks in enumerate(coefficients(data, codebook)):
        samples = inverse_dct(_dequantise(blocks, header.table(component)))
        rows, columns = header.plane_size(component)
        grid_rows, grid_columns = header.grid(component)
        plane = samples.transpose(0, 2, 1, 3).reshape(8 * grid_rows, 8 * grid_columns)
        result.append(plane[:rows, :columns])
    return result


def dc_planes(data: bytes, codebook: bytes) -> list[Plane]:
    """One sample for each block of each component; `data` need hold no more than the DC section."""
    header, book = parse_header(data), parse_codebook(codebook)
    result = [np.zeros(header.grid(component), np.int16) for component in range(header.components)]
    dc_section = _read_dc_section(header, _dc_parts(header, data), book)
    for (component, row, column), (_, dc) in dc_section.items():
        result[component][row, column] = dc
    dequantised = [
        _dequantise(values, header.table(component)[0, 0])
        for component, values in enumerate(result)
    ]
    return [np.clip((dc + 4 >> 3) + 128, 0, 255).astype(np.uint8) for dc in dequantised]


def _doubled(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each row as two, 3/4 of itself and 1/4 of the nearer neighbour, times 4."""
    padded = np.pad(values, ((1, 1), (0, 0)), "edge")
    pairs = np.stack((3 * values + padded[:-2], 3 * values + padded[2:]), 1)
    return pairs.reshape(-1, values.shape[1])


def upsample(plane: Plane, across: int, down: int) -> Plane:
    """A plane of down * rows and across * columns, as libjpeg's fancy upsampling makes it.

    It replicates samples where it has no triangle filter: for 4:1:1, and across planes of at
    most two columns.
    """
    if across == 4 or (across == 2 and plane.shape[1] <= 2):
        return plane.repeat(down, 0).repeat(across, 1)
    values = plane.astype(np.int64)
    if across == 2:
        low, high, shift = (8, 7, 4) if down == 2 else (1, 2, 2)
        values = _doubled((_doubled(values) if down == 2 else values).T).T
        values[:, 0::2] += low
        values[:, 1::2] += high
        values >>= shift
    elif down == 2:
        values = _doubled(values)
        values[0::2] += 1
        values[1::2] += 2
        values >>= 2
    return values.astype(np.uint8)


def ycbcr_to_rgb(y: Plane, cb: Plane, cr: Plane) -> NDArray[np.uint8]:
    """JFIF's full-range conversion in libjpeg's 16 bits of fraction: (H, W, 3)."""
    luma, blue, red = y.astype(np.int64), cb.astype(np.int64) - 128, cr.astype(np.int64) - 128
    colours = (
        luma + (91881 * red + 32768 >> 16),
        luma + (-22554 * blue - 46802 * red + 32768 >> 16),
        luma + (116130 * blue + 32768 >> 16),
    )
    pixels: NDArray[np.uint8] = np.clip(np.stack(colours, -1), 0, 255).astype(np.uint8)
    return pixels


def rgb(data: bytes, codebook: bytes) -> NDArray[np.uint8]:
    """The picture: (H, W, 3); a gray one has three equal channels."""
    header = parse_header(data)
    first, *others = planes(data, codebook)
    if not others:
        return np.stack([first] * 3, -1)
    cropped = [
        upsample(plane, header.across, header.down)[: header.height, : header.width]
        for plane in others
    ]
    if header.colour == RGB:
        return np.stack((first, *cropped), -1)
    return ycbcr_to_rgb(first, *cropped)
