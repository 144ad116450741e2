"""
fastio's native engine. Not a public interface: use the fastio package.
"""

from collections.abc import Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


def simd_levels() -> list[str]:
    """
    The instruction sets of this machine that kernels are written for, the slowest first.
    """

def simd_active() -> str:
    """The instruction sets that kernels use now, as one of simd_levels()."""

def simd_force(level: str) -> None:
    """
    Makes kernels use `level`, one of simd_levels(). For tests and benchmarks: it holds for the whole process.
    """

TRUNCATED: int = 3

CORRUPT: int = 4

FOREIGN: int = 6

MAX_ROWS: int = 281474976710656

def mix_key(a: int, b: int) -> int:
    """Mixes two 64-bit words into a key."""

def permute(n: int, key: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    rows[i] = the keyed permutation of [0, n) at positions[i]. int64 arrays of one length.
    """

def permute_range(n: int, key: int, first: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """As permute(), at positions first, first + 1, ..."""

def permute_inverse_range(n: int, key: int, first: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """As permute_inverse(), of rows first, first + 1, ..."""

def permute_inverse(n: int, key: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """The inverse of permute(): positions[i] is where rows[i] stands."""

def permute_window(n: int, block: int, window: int, key: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    As permute(), for the window order: blocks of rows, shuffled within windows of blocks.
    """

def permute_window_range(n: int, block: int, window: int, key: int, first: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """As permute_window(), at positions first, first + 1, ..."""

def permute_window_inverse(n: int, block: int, window: int, key: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """The inverse of permute_window()."""

def windows_of(n: int, block: int, window: int, key: int, blocks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], begins: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    The positions [begins[i], ends[i]) of the window of permute_window() that holds the block blocks[i], of rows [blocks[i] * block, ...). int64 arrays of one length.
    """

class Filter(enum.Enum):
    """Resampling filters, as Pillow defines them."""

    nearest = 0

    bilinear = 1

    bicubic = 2

class Chain:
    """What becomes of each image of a field; see chain.h."""

    def __init__(self) -> None: ...

    def random_resized_crop(self, height: int, width: int, scale_low: float, scale_high: float, ratio_low: float, ratio_high: float, filter: Filter, antialias: bool) -> None: ...

    def resize(self, height: int, width: int, max_size: int, filter: Filter, antialias: bool) -> None:
        """width 0: the shorter edge becomes height."""

    def center_crop(self, height: int, width: int) -> None: ...

    def random_crop(self, height: int, width: int, padding: int) -> None: ...

    def horizontal_flip(self, p: float) -> None: ...

    def vertical_flip(self, p: float) -> None: ...

    def augment(self, node: Augment) -> None:
        """Operations on pixels, which come next."""

    def to_gray(self) -> None:
        """Gray in the place of colours comes next, one channel of it."""

    def erase_at_end(self, node: Augment) -> None:
        """What is erased of the normalised float32 image."""

    def count_from(self, step: int) -> None:
        """The number that keys the draws of the next step; see chain.h."""

    def draws(self, seed: int, epoch: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], heights: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], widths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list:
        """
        What the chain does to images of heights x widths (upright): of each ((height, width) of the result, crop, operations). A crop is y, x, height, width; resampled height, width; window y, x, height, width; flips horizontal, vertical. An operation is its name and numbers; those of one named crop are as above.
        """

class Spread:
    """A number that is drawn; see augment.h."""

    def __init__(self, values: Sequence[float], range: bool = False, sign: bool = False, unit: str = 'one', whole: str = 'no', offset: float = 0.0) -> None: ...

class Augment:
    """A tree of operations on pixels; see augment.h."""

    @staticmethod
    def op(name: str, numbers: Sequence[Spread], fill: Sequence[float] | None = None, bilinear: bool = False, noise: bool = False) -> Augment: ...

    @staticmethod
    def sequence(children: Sequence[Augment]) -> Augment:
        """All of them; none: nothing happens."""

    @staticmethod
    def apply(probability: float, children: Sequence[Augment]) -> Augment: ...

    @staticmethod
    def choice(weights: Sequence[float], children: Sequence[Augment]) -> Augment: ...

    @staticmethod
    def order(children: Sequence[Augment]) -> Augment: ...

    @staticmethod
    def repeat(count: int, children: Sequence[Augment]) -> Augment: ...

    @staticmethod
    def mix(width: int, depth: int, alpha: float, child: Augment) -> Augment: ...

CODEC_JPEG: int = 0

CODEC_RAW: int = 1

CODEC_ENCODED: int = 2

CODEC_BLOCKS: int = 3

def crc32c(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """CRC-32C (Castagnoli) of the bytes of a uint8 array."""

def crc32c_mismatch(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], expected: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """
    The first of n ranges [starts[i], starts[i + 1]) of a uint8 array whose CRC-32C is not expected[i] (uint32), or that leaves the array; -1 if there is none. starts: int64 (n + 1,).
    """

def jpeg_probe(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], max_pixels: int = 9223372036854775807) -> tuple:
    """
    (height, width, components, EXIF orientation, kind, index) of a whole JPEG file's bytes (uint8 array), every coefficient of which is read. The index, as bytes, says where parts of the image begin (docs/format.md); it is empty if there is none. Raises ValueError if the file is damaged, or has more pixels.
    """

def transform(chain: Chain, seed: int, epoch: int, row: int, pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(shape=(None, None, None), order='C', device='cpu')], channels_last: bool, normalize: Sequence[Sequence[float]] | None) -> None:
    """
    Applies a chain to uint8 pixels (H, W, C), C 1, 3 or 4, giving out of the size that the chain gives: (H, W, C), or (C, H, W) unless channels_last, C 1 or 3; uint8, or where normalize has scales and biases float32.
    """

class SharedCodebook:
    """What Codebook is to the engine."""

class Codebook(SharedCodebook):
    """The classes of a dataset's blocks; see codebook.h."""

    def __init__(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        From the 16,640 bytes of a manifest (uint8 array). ValueError where they are none.
        """

    @property
    def data(self) -> bytes: ...

def blocks_encode(jpeg: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: Codebook, max_pixels: int = 9223372036854775807) -> tuple | None:
    """
    (block record, height, width, EXIF orientation) of a JPEG file's bytes (uint8 array), every coefficient of which is read; None where a record cannot hold it (CMYK, arithmetic coding, ...). Raises ValueError if the file is damaged, or has more pixels.
    """

def blocks_export(record: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: Codebook) -> bytes:
    """
    The JPEG file of a record: the same coefficients, quantisers and metadata. Raises ValueError if the record is damaged.
    """

def blocks_check(record: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: Codebook, max_pixels: int = 9223372036854775807) -> tuple:
    """
    (height, width) of a record, every byte of which is checked. Raises ValueError if it is damaged, or has more pixels.
    """

def blocks_pixels(record: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: Codebook, orientation: int = 1, denominator: int = 1, channels: int = 3, record_size: int = 0, max_pixels: int = 9223372036854775807) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None))]:
    """
    The image of a record, upright, at 1/denominator of its size (1, 2, 4 or 8), as uint8 (H, W, C). At 1/8 the first blocks_header_bytes() of a record of record_size do. Raises ValueError if the stored image has more than max_pixels.
    """

def blocks_header_bytes(height: int, width: int) -> int:
    """
    The most bytes that the header and the DC section of a record of this size take.
    """

def train_codebook(jpegs: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], seed: int = 0, iterations: int = 40, most_blocks: int = 500000) -> bytes:
    """
    The 16,640 bytes of a codebook for JPEG files (uint8 arrays). Damaged ones are left out; ValueError where none is left. Ctrl-C ends it.
    """

class FieldKind(enum.IntEnum):
    """What a batch has of a field of a Table; see table.h."""

    BYTES = 0

    NUMBERS = 1

    INPUTS = 2

    TARGETS = 3

    POSITIONS = 4

    DOCUMENTS = 5

    MASK = 6

class Mapping:
    """A file in memory; see mapping.h."""

    def __init__(self, path: str) -> None: ...

    @property
    def data(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """Its bytes: uint8 (n,), read-only."""

    def ahead(self, offset: int, bytes: int) -> None:
        """Has the system read the pages of a range that are not in memory."""

    def release(self, offset: int, bytes: int) -> None:
        """
        Lets go of the pages of a range: they are read again when they are used again.
        """

    def expect_scattered(self) -> None:
        """Says that pages are used in no order, and what is wanted is asked for."""

    @property
    def damaged(self) -> bool: ...

class NodeMemory:
    """Copies and marks of shards that processes share; see node_memory.h."""

    def __init__(self, fd: int, shards: int) -> None: ...

    @staticmethod
    def bytes_for(shards: int, data: int) -> int:
        """The size of a file for so many shards and bytes of copies."""

    def published(self, shard: int) -> int:
        """What was published of a shard; 0: nothing."""

    def claim(self, shard: int) -> bool:
        """Locks the entry of a shard; False: another process has it."""

    def release(self, shard: int) -> None: ...

    def publish(self, shard: int, what: int) -> None: ...

class Table:
    """Fixed-width columns of shards; see table.h."""

    def __init__(self, first_row: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], strides: Sequence[int], fields: Sequence[tuple[int, int, int, int, int, int, int]]) -> None:
        """
        first_row: int64 (shards + 1,). strides: bytes from row to row of each column. fields: (column, offset, width, kind, bytes of a number there, in the batch, fill) of each.
        """

    def set(self, shard: int, mapping: Mapping, columns: Sequence[tuple[int, int]], segments: tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None, what: int = 0) -> None:
        """
        columns: (offset in the file, bytes) of each. segments: (begin of each row's and the end, start, length). what: identifies these columns of this file in a NodeMemory; 0: they are not shared.
        """

    def set_memory(self, shard: int, arrays: Sequence[Annotated[NDArray, dict(device='cpu', writable=False)]]) -> None:
        """
        arrays: the rows of each column, of any type. The table keeps the arrays alive and reads from them without a copy.
        """

    def unset(self, shard: int) -> None: ...

    def missing(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """The shards of rows that are not set."""

    @property
    def complete(self) -> bool: ...

    def make_resident(self, node: NodeMemory | None = None) -> None:
        """node: where the copies go; None: memory of its own."""

    @property
    def resident(self) -> int: ...

    def close(self) -> None: ...

def best_fit(sizes: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], room: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """The bin of each piece, int64; see best_fit.h."""

def count_buckets(positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, shift: int, first: int, counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    counts: positions in each bucket of the chunks from `first` on, int64 (chunks * buckets of one,); chunks have `rows` positions, buckets 2**shift. Those below 0 are left out.
    """

def interleave(columns: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], int]], stride: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, shift: int, first: int, memory: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """
    Appends rows to buckets; see interleave.h. columns: (uint8 of all rows, offset in a record). memory: of chunk first + c, rows * (stride + 4) bytes. counts: what count_buckets found. starts: records that are there.
    """

def deal(memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], count: int, rows: int, shift: int, stride: int, fields: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], int]]) -> None:
    """
    Puts a full chunk's records in their places. fields: (uint8 of `count` rows, offset).
    """

class ColumnDecoder:
    """Column chunks of Parquet; see parquet_column.h."""

    def __init__(self) -> None: ...

    def decode(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, width: int, nullable: bool, snappy: bool, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], validity: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], checked: bool = False) -> int:
        """
        The pages in `data` to `rows` numbers of `width` bytes, and Arrow's bitmap where they are nullable. Returns how many are null; -1: not decoded, as pages are of a kind that this does not know. Raises ValueError: they are damaged, which with `checked` their checksums tell too.
        """

WHOLE_FILE: int = -1

PATIENCE_S: float = 2.0

class FileSet:
    """Local files by number; see read.h."""

    def __init__(self, keep_open: bool, max_open: int = 256, direct: bool = False) -> None: ...

    def add(self, paths: Sequence[str]) -> int:
        """Returns the first new file's number."""

    def __len__(self) -> int: ...

    def close(self) -> None: ...

def file_stamps(paths: Sequence[str]) -> Annotated[NDArray[numpy.int64], dict(shape=(None, None))]:
    """
    Inode, size, and times of modification and change in ns of files, int64 (n, 4); -1 where there is none.
    """

class ImageReads:
    """Where the images of one or more batches lie."""

    def __init__(self, file: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], codec: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], orientation: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], height: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], width: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], crc32c: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, index: tuple[Sequence[Mapping], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None) -> None:
        """
        index: (mappings, number, offset, length), where the index of each row's JPEG lies; length 0: it has none.
        """

class Slot:
    """A part of a batch while it is filled; see slot.h."""

    def wait(self, timeout_s: float) -> bool:
        """True once no thread touches the slot any more."""

    def cancel(self) -> None: ...

    @property
    def cancelled(self) -> bool: ...

    def abandon(self) -> None:
        """
        Cancels it for good: where a thread does not come back, the memory stays the slot's.
        """

    def failures(self) -> list:
        """Rows that failed, as (row, code, message). After wait()."""

    def take(self, row: int, view: int = 0) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None))] | None:
        """
        An image that keeps its own size, as uint8 (H, W, C) or (C, H, W), whichever layout was submitted, once; None where the row failed. After wait().
        """

class Engine:
    """The worker threads; see engine.h."""

    def __init__(self, threads: int) -> None: ...

    def set_threads(self, threads: int) -> int:
        """
        Has so many threads take rows from now on; returns how many do, less where the system has no more.
        """

    def submit(self, source: FileSet | tuple[Sequence[Annotated[NDArray, dict(order='C', device='cpu', writable=False)]], bool], views: Sequence[tuple[Chain, bool, Sequence[Sequence[float]] | None, Annotated[NDArray, dict(order='C', device='cpu')] | None]], seed: int, epoch: int, reads: ImageReads, first: int, key: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: SharedCodebook | None, channels: int, max_pixels: int = 9223372036854775807) -> Slot:
        """
        Queues a batch. source: a FileSet, or (array, whether images in it are (C, H, W)), where offsets count from the array's first byte. views: what becomes of each image, once or several times: (chain, normalize, out). `out` is the slot's until wait() says True; dropping the slot waits for that, unless a thread hangs; where it is None, the images keep their sizes. normalize: (scale, bias) a channel for float32, None for uint8. reads, first, key: the batch has a row for each key of random draws; those reads of `reads` from number `first` on say where they lie. An image of more than max_pixels is a failure of its row.
        """

    def gather(self, table: Table, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Sequence[Annotated[NDArray, dict(order='C', device='cpu')] | None]) -> Slot:
        """
        Queues rows of a table, in [0, rows). `out`: of each of its fields an array with room for them, or None; they are the slot's as in submit().
        """

    def copy(self, sources: Sequence[Mapping], source: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], room: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(order='C', device='cpu')]) -> Slot:
        """
        Queues pieces of mapped files: of sources[source[i]] the bytes from begin[i] on go to target[i] of out, zeros behind them up to room[i]. Failures are of pieces.
        """

    def close(self) -> None: ...

    def load_indexes(self, file: Mapping) -> None:
        """
        Uses indexes of JPEGs that unsaved_indexes() gave from a file, without a copy.
        """

    def unsaved_indexes(self, all: bool = False) -> bytes:
        """
        The indexes of JPEGs that are new or have grown since they were loaded or given; or all. Files that changed have other ones: an index is found by the CRC-32C of a file.
        """

    def counters(self) -> tuple:
        """
        (images, bytes, read ns, decode ns, resample ns, augment ns), all threads.
        """

class Recoding:
    """JPEG files that become block records; see recoding.h."""

    def __init__(self, files: FileSet, file: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: SharedCodebook, max_pixels: int) -> None: ...

    def start_idle(self, threads: int) -> None:
        """Starts threads that run only while a processor would be idle."""

    def start_resting(self, threads: int, share: float) -> None:
        """
        Starts threads of normal priority, each of which works for `share` of the time.
        """

    def wait(self, timeout_s: float) -> bool:
        """Whether all images are done within the timeout."""

    def stop(self) -> None:
        """Tells the threads to end after the image in hand."""

    @property
    def idle_ns(self) -> int:
        """Processor time that idle threads have had."""

    def take(self) -> tuple:
        """
        (records, uint8, one after the other; lengths; heights; widths; EXIF orientations; CRC-32Cs) of the images, once they are done; length 0: it stays as it is.
        """
