"""A JPEG file of given coefficients, so that a test knows every number that is in it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.block_reference import ZIGZAG, Coefficients, ceil_div

ESCAPED_FF = b"\xff\x00"


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


class _EntropyCoded:
    """Huffman-coded numbers, with codes that are plain to see.

    A DC size is its own 4 bits, an AC run and size its own 8 bits: DHT lists 15 codes of 4 bits
    and 255 of 8, all but the one of only 1 bits, which Huffman tables of JPEG must not use.
    """

    def __init__(self) -> None:
        self.bits = ""

    def number(self, prefix: int, prefix_bits: int, value: int) -> None:
        size = abs(value).bit_length()
        self.bits += f"{prefix | size:0{prefix_bits}b}"
        if size:
            self.bits += f"{value if value > 0 else value + (1 << size) - 1:0{size}b}"

    def block(self, zigzag: Sequence[int], difference: int) -> None:
        self.number(0, 4, difference)
        run = 0
        for value in zigzag[1:]:
            if value == 0:
                run += 1
                continue
            self.bits += f"{0xF0:08b}" * (run // 16)
            self.number(run % 16 << 4, 8, value)
            run = 0
        if run:
            self.bits += f"{0:08b}"

    def done(self) -> bytes:
        padded = self.bits + "1" * (-len(self.bits) % 8)
        data = int(padded, 2).to_bytes(len(padded) // 8, "big")
        return data.replace(b"\xff", ESCAPED_FF)


def _scan(components: Sequence[Coefficients], sampling: Sequence[tuple[int, int]]) -> bytes:
    """All blocks, MCU by MCU; blocks past a component's own edge repeat the DC before."""
    zigzag = [blocks.reshape(*blocks.shape[:2], 64)[..., ZIGZAG].tolist() for blocks in components]
    stream = _EntropyCoded()
    before = [0] * len(components)
    across, down = sampling[0]
    for mcu_row in range(ceil_div(len(zigzag[0]), down)):
        for mcu_column in range(ceil_div(len(zigzag[0][0]), across)):
            for c, (wide, tall) in enumerate(sampling):
                for y in range(mcu_row * tall, (mcu_row + 1) * tall):
                    for x in range(mcu_column * wide, (mcu_column + 1) * wide):
                        exists = y < len(zigzag[c]) and x < len(zigzag[c][0])
                        block = zigzag[c][y][x] if exists else [before[c]] + [0] * 63
                        stream.block(block, block[0] - before[c])
                        before[c] = block[0]
    return stream.done()


def coefficient_jpeg(
    components: Sequence[Coefficients],
    height: int,
    width: int,
    tables: Sequence[Sequence[int]],
    *,
    sampling: tuple[int, int] = (1, 1),
    identifiers: Sequence[int] = (1, 2, 3),
    table_numbers: Sequence[int] = (0, 0, 0),
    metadata: bytes = b"",
) -> bytes:
    """A baseline JPEG file, extended where a table has values above 255.

    `components` are quantised, `tables` in zigzag order, `sampling` is of component 0, across and
    down, and `metadata` are whole segments. AC values reach to +-1023, DC differences to +-2047.
    """
    count = len(components)
    samplings = [sampling, (1, 1), (1, 1)][:count]
    wide = any(max(table) > 255 for table in tables)
    data = b"\xff\xd8" + metadata
    for number, table in enumerate(tables):
        layout = ">64H" if wide else ">64B"
        data += _segment(0xDB, bytes([wide << 4 | number]) + struct.pack(layout, *table))
    frame = struct.pack(">BHHB", 8, height, width, count)
    for c in range(count):
        across, down = samplings[c]
        frame += bytes([identifiers[c], across << 4 | down, table_numbers[c]])
    data += _segment(0xC1 if wide else 0xC0, frame)
    data += _segment(0xC4, bytes([0x00, 0, 0, 0, 15] + [0] * 12 + list(range(15))))
    data += _segment(0xC4, bytes([0x10] + [0] * 7 + [255] + [0] * 8 + list(range(255))))
    scan = bytes([count]) + b"".join(bytes([identifiers[c], 0]) for c in range(count))
    data += _segment(0xDA, scan + bytes([0, 63, 0]))
    return data + _scan(components, samplings) + b"\xff\xd9"
