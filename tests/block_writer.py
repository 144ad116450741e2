"""A writer of block records for tests, as plain as the reader: ordinary, rare and spoilt ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.block_reference import (
    ZIGZAG,
    Block,
    CodeClass,
    Coefficients,
    Header,
    ceil_div,
    crc32c,
    groups_joined,
    parse_codebook,
    require,
    signed,
)

# Picks a block's class: of its number in the DC part of its tile row and its 64 values in zigzag
# order, the DC difference first.
Choose = Callable[[int, Sequence[int]], int]


class _BitWriter:
    def __init__(self) -> None:
        self.bits = 0
        self.count = 0

    def put(self, field: int, count: int) -> None:
        self.bits |= (field & ((1 << count) - 1)) << self.count
        self.count += count

    def done(self) -> bytes:
        return padded(self.bits.to_bytes(ceil_div(self.count, 8), "little"))


def padded(part: bytes) -> bytes:
    """A part, filled up with zeros to a multiple of 4 bytes."""
    return part + bytes(-len(part) % 4)


def packed_exceptions(exceptions: Sequence[tuple[int, int, int]]) -> bytes:
    """Exceptions, each as (block, position, value), in the order in which they are given."""
    fields = (z | block << 6 | (value & 0xFFF) << 12 for block, z, value in exceptions)
    return padded(b"".join(field.to_bytes(3, "little") for field in fields))


@dataclass
class Draft:
    """What a record is put together of, for a test to spoil before `record` adds the checksums."""

    head: bytearray  # the header as far as the index
    groups: list[list[tuple[int, int]]]  # the tiles of each group, as (row, column)
    dc: list[bytes]  # of each tile row
    ac: list[bytes]  # of each tile, in the order of the AC section
    exceptions: list[int]  # how many each tile has
    metadata: bytes

    def index(self) -> bytes:
        """The index as it should be."""
        parts = self.dc + self.ac
        require(all(len(part) % 4 == 0 for part in parts), "a part is no multiple of 4 bytes")
        words = [len(part) // 4 for part in parts]
        require(max(words) < 1 << 16, "a part is too long for the index")
        index = padded(struct.pack(f"<{len(words)}H", *words) + bytes(self.exceptions))
        for part in (*self.dc, *groups_joined(self.ac, self.groups)):
            index += struct.pack("<I", crc32c(part))
        return index + struct.pack("<I", crc32c(self.metadata))

    def record(self, index: bytes | None = None) -> bytes:
        """The record, with right checksums whatever its parts hold, and the index unless given."""
        header = bytes(self.head) + (self.index() if index is None else index)
        header += struct.pack("<I", crc32c(header))
        return header + b"".join(self.dc) + b"".join(self.ac) + self.metadata


def cheapest(codebook: bytes) -> Choose:
    """A choice of the class that takes the fewest bits; of several the first."""
    book = parse_codebook(codebook)
    distinct = {code_class: number for number, code_class in reversed(list(enumerate(book)))}

    def bits(code_class: CodeClass, values: Sequence[int], nonzero: Sequence[int]) -> int:
        if not code_class.holds_difference(values[0]) and code_class.widths[0] == 0:
            return 1 << 30
        total = code_class.last + code_class.widths[0]
        total += 0 if code_class.holds_difference(values[0]) else 16
        for z in nonzero:
            total += code_class.widths[z] if code_class.holds(z, values[z]) else 24
        return total

    def choose(number: int, values: Sequence[int]) -> int:
        nonzero = [z for z in range(1, 64) if values[z]]
        return min((bits(each, values, nonzero), n) for each, n in distinct.items())[1]

    return choose


def _write_dc_part(
    bases: Sequence[int],
    blocks: Sequence[Sequence[int]],
    numbers: Sequence[int],
    book: Sequence[CodeClass],
) -> bytes:
    stream, escapes = _BitWriter(), _BitWriter()
    for values, number in zip(blocks, numbers, strict=True):
        width, difference = book[number].widths[0], values[0]
        fits = book[number].holds_difference(difference)
        require(
            fits or width > 0, f"class {number} has no bits for a DC difference of {difference}"
        )
        stream.put(difference if fits else -(1 << (width - 1)), width)
        if not fits:
            escapes.put(difference, 16)
    return (
        struct.pack(f"<H{len(bases)}h", escapes.count // 16, *bases)
        + padded(bytes(numbers))
        + stream.done()
        + escapes.done()
    )


def _write_ac_part(
    blocks: Sequence[Sequence[int]], numbers: Sequence[int], book: Sequence[CodeClass]
) -> tuple[bytes, int]:
    """The part and how many exceptions it has."""
    masks, planes_of_bits, exceptions = _BitWriter(), _BitWriter(), []
    for block, (values, class_number) in enumerate(zip(blocks, numbers, strict=True)):
        code_class = book[class_number]
        nonzero = [z for z in range(1, 64) if values[z]]
        present = [z for z in code_class.order if values[z] and code_class.holds(z, values[z])]
        for z in nonzero:
            if z in present:
                continue
            require(-2048 <= values[z] < 2048, f"no exception holds {values[z]}")
            exceptions.append((block, z, values[z]))
        places = {z: i for i, z in enumerate(code_class.order)}
        masks.put(sum(1 << places[z] for z in present), code_class.last)
        for j in range(12):
            for z in present:
                if code_class.widths[z] > j:
                    magnitude = abs(values[z]) - 1
                    planes_of_bits.put(values[z] < 0 if j == 0 else magnitude >> (j - 1), 1)
    require(len(exceptions) <= 255, f"{len(exceptions)} exceptions in a tile")
    masks.put(planes_of_bits.bits, planes_of_bits.count)
    return masks.done() + packed_exceptions(exceptions), len(exceptions)


def draft(
    components: Sequence[Coefficients],
    height: int,
    width: int,
    tables: Sequence[Sequence[int]],
    codebook: bytes,
    *,
    colour: int | None = None,
    sampling: tuple[int, int] = (1, 1),
    identifiers: Sequence[int] | None = None,
    table_numbers: Sequence[int] | None = None,
    metadata: bytes = b"",
    choose: Choose | None = None,
    base: int | None = None,
) -> Draft:
    """The parts of a record.

    `tables` are in zigzag order; those with a value above 255 get 16 bits. `sampling` is (H, V).
    `colour` is gray or YCbCr unless it is given. `choose` picks classes, the cheapest unless it
    is given; what a class cannot hold becomes an escape or an exception. `base` is every
    component's base DC, or else the DC of its first block in the tile row. ValueError where the
    format has no record for what is asked.
    """
    count = len(components)
    book = parse_codebook(codebook)
    choose = choose or cheapest(codebook)
    numbers = [min(c, len(tables) - 1) for c in range(count)]
    fields = bytes((*(identifiers or range(1, count + 1)), 0, 0))[:3]
    fields += bytes((*(table_numbers or numbers), 0, 0))[:3]
    wide = [max(table) > 255 for table in tables]
    head = bytearray(struct.pack("<BB", 1, 0))
    head += bytes([count // 2 if colour is None else colour, sampling[0] << 4 | sampling[1]])
    head += struct.pack("<HH", width, height) + fields
    head += bytes([len(tables), sum(is_wide << k for k, is_wide in enumerate(wide))])
    head += struct.pack("<I", len(metadata))
    for table, is_wide in zip(tables, wide, strict=True):
        head += struct.pack("<64H" if is_wide else "<64B", *table)

    shape = Header(
        count, 0, *sampling, width, height, (), (), (), 0, (), (), (), (), (), 0, len(head)
    )
    zigzag = [blocks.reshape(*blocks.shape[:2], 64)[..., ZIGZAG] for blocks in components]
    result = Draft(head, shape.groups, [], [], [], metadata)
    all_values: dict[Block, list[int]] = {}
    all_classes: dict[Block, int] = {}
    for row in range(shape.tile_rows):
        blocks = shape.row_blocks(row)
        bases = []
        values = {block: zigzag[block[0]][block[1:]].tolist() for block in blocks}
        for block in blocks:
            previous = shape.previous_block(block)
            if previous is None:
                bases.append(values[block][0] if base is None else base)
            before = bases[-1] if previous is None else zigzag[previous[0]][previous[1:]][0]
            values[block][0] = signed(values[block][0] - int(before), 16)
        classes = {block: choose(number, values[block]) for number, block in enumerate(blocks)}
        result.dc.append(_write_dc_part(bases, list(values.values()), list(classes.values()), book))
        all_values |= values
        all_classes |= classes
    for group in shape.groups:
        for tile in group:
            blocks = shape.tile_blocks(*tile)
            part, exceptions = _write_ac_part(
                [all_values[block] for block in blocks],
                [all_classes[block] for block in blocks],
                book,
            )
            result.ac.append(part)
            result.exceptions.append(exceptions)
    return result
