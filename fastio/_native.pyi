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
    Returns the SIMD levels that kernels are written for and this machine supports, slowest first.
    """

def simd_active() -> str:
    """Returns the SIMD level that kernels use now, one of simd_levels()."""

def simd_force(level: str) -> None:
    """
    Makes the kernels of the whole process use `level`, one of simd_levels(). For tests and benchmarks. Raises ValueError if this machine does not support the level.
    """

TRUNCATED: int = 3

CORRUPT: int = 4

FOREIGN: int = 6

MAX_ROWS: int = 281474976710656

def mix_key(a: int, b: int) -> int:
    """Returns a 64-bit key made of two 64-bit words."""

def permute(n: int, key: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Sets rows[i] to the value of the keyed permutation of [0, n) at positions[i]. The arrays are int64 and have the same length. Raises ValueError if a position is not in [0, n).
    """

def permute_range(n: int, key: int, first: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Like permute(), for the positions first, first + 1, ..."""

def permute_inverse(n: int, key: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    The inverse of permute(): sets positions[i] to the position of rows[i].
    """

def permute_window(n: int, block: int, window: int, key: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Like permute(), for the window order: blocks are permuted, and the rows of each window of blocks are shuffled.
    """

def permute_window_range(n: int, block: int, window: int, key: int, first: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Like permute_window(), for the positions first, first + 1, ..."""

def permute_window_inverse(n: int, block: int, window: int, key: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    The inverse of permute_window(): sets positions[i] to the position of rows[i].
    """

def windows_of(n: int, block: int, window: int, key: int, blocks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], begins: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Sets [begins[i], ends[i]) to the positions of the window of permute_window() that contains the block blocks[i]; block b has the rows from b * block on. The arrays are int64 and have the same length.
    """

class Filter(enum.Enum):
    """Resampling filters, as Pillow defines them."""

    nearest = 0

    bilinear = 1

    bicubic = 2

class Chain:
    """
    The chain of transforms of an image field; see chain.h. Methods append steps.
    """

    def __init__(self) -> None: ...

    def random_resized_crop(self, height: int, width: int, scale_low: float, scale_high: float, ratio_low: float, ratio_high: float, filter: Filter, antialias: bool) -> None: ...

    def resize(self, height: int, width: int, max_size: int, filter: Filter, antialias: bool) -> None:
        """Appends a Resize. width 0: the shorter edge gets the length `height`."""

    def center_crop(self, height: int, width: int) -> None: ...

    def random_crop(self, height: int, width: int, padding: int) -> None: ...

    def horizontal_flip(self, p: float) -> None: ...

    def vertical_flip(self, p: float) -> None: ...

    def augment(self, node: Augment) -> None:
        """Appends operations on pixels."""

    def to_gray(self) -> None:
        """Appends the conversion to gray, with one channel."""

    def erase_at_end(self, node: Augment) -> None:
        """Erases boxes of the normalised float32 image, after all other steps."""

    def count_from(self, step: int) -> None:
        """
        Sets the number that keys the random draws of the next step; see chain.h.
        """

    def draws(self, seed: int, epoch: int, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], heights: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], widths: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list:
        """
        Returns what the chain draws for images of these heights and widths (upright): for each image ((height, width) of the result, crop, operations). A crop has 12 numbers: y, x, height and width of the crop; the height and width that it is resampled to; y, x, height and width of the window of the result; whether it is flipped horizontally and vertically. An operation is (name, numbers); the numbers of an operation named "crop" are those of a crop.
        """

class Spread:
    """A random number of an operation; see augment.h."""

    def __init__(self, values: Sequence[float], range: bool = False, sign: bool = False, unit: str = 'one', whole: str = 'no', offset: float = 0.0) -> None: ...

class Augment:
    """A tree of operations on pixels; see augment.h."""

    @staticmethod
    def op(name: str, numbers: Sequence[Spread], fill: Sequence[float] | None = None, bilinear: bool = False, noise: bool = False) -> Augment: ...

    @staticmethod
    def sequence(children: Sequence[Augment]) -> Augment:
        """Applies all children in order. Without children, it does nothing."""

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
    """Returns the CRC-32C (Castagnoli) of the bytes of a uint8 array."""

def crc32c_mismatch(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], expected: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """
    Returns the first of n ranges [starts[i], starts[i + 1]) of a uint8 array whose CRC-32C is not expected[i] (uint32), or that does not lie in the array; -1 if there is none. starts: int64 (n + 1,).
    """

def jpeg_probe(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], max_pixels: int = 9223372036854775807) -> tuple:
    """
    Decodes every coefficient of a JPEG file (uint8 array), and returns (height, width, components, EXIF orientation, kind, index). The index, as bytes, says where parts of the image begin (docs/format.md); it is empty if there is none. Raises ValueError if the file is damaged, or has more than max_pixels.
    """

def transform(chain: Chain, seed: int, epoch: int, row: int, pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(shape=(None, None, None), order='C', device='cpu')], channels_last: bool, normalize: Sequence[Sequence[float]] | None) -> None:
    """
    Applies a chain to an image and writes the result to `out`. pixels: uint8 (H, W, C) with 1, 3 or 4 channels. out: an array of the size that the chain gives, (H, W, C) if channels_last, else (C, H, W), with 1 or 3 channels; float32 if normalize is given, as (scales, biases) of the channels, else uint8.
    """

class SharedCodebook:
    """The base class of Codebook, which the engine takes."""

class Codebook(SharedCodebook):
    """The classes of the blocks of a dataset; see codebook.h."""

    def __init__(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Parses the 16,640 bytes of a codebook in a manifest (uint8 array). Raises ValueError if they are not a valid codebook.
        """

    @property
    def data(self) -> bytes: ...

def blocks_encode(jpeg: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: Codebook, max_pixels: int = 9223372036854775807) -> tuple | None:
    """
    Encodes a JPEG file (uint8 array) and returns (block record, height, width, EXIF orientation). Returns None if a record cannot hold the image (CMYK, arithmetic coding, ...). Raises ValueError if the file is damaged, or has more than max_pixels.
    """

def blocks_export(record: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: Codebook) -> bytes:
    """
    Returns a JPEG file with the coefficients, quantisation tables and metadata of a record. Raises ValueError if the record is damaged.
    """

def blocks_check(record: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: Codebook, max_pixels: int = 9223372036854775807) -> tuple:
    """
    Checks every byte of a record and returns its (height, width). Raises ValueError if it is damaged, or has more than max_pixels.
    """

def blocks_pixels(record: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: Codebook, orientation: int = 1, denominator: int = 1, channels: int = 3, record_size: int = 0, max_pixels: int = 9223372036854775807) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None))]:
    """
    Decodes a record and returns the upright image at 1/denominator of its size (1, 2, 4 or 8), as uint8 (H, W, C). For 1/8, the first blocks_header_bytes() of the record suffice; record_size is then the size of the whole record. Raises ValueError if the record is damaged, or the stored image has more than max_pixels.
    """

def blocks_header_bytes(height: int, width: int) -> int:
    """
    Returns an upper bound, in bytes, of the header and DC section of a record of an image of this size.
    """

def train_codebook(jpegs: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], seed: int = 0, iterations: int = 40, most_blocks: int = 500000) -> bytes:
    """
    Trains a codebook on JPEG files (uint8 arrays) and returns its 16,640 bytes. Skips damaged files; raises ValueError if no file is left. Ctrl-C ends the training.
    """

class FieldKind(enum.IntEnum):
    """What a batch contains of a field of a Table; see table.h."""

    BYTES = 0

    NUMBERS = 1

    INPUTS = 2

    TARGETS = 3

    POSITIONS = 4

    DOCUMENTS = 5

    MASK = 6

class Mapping:
    """A file mapped into memory; see mapping.h."""

    def __init__(self, path: str) -> None: ...

    @property
    def data(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """The bytes of the file: uint8 (n,), read-only."""

    def ahead(self, offset: int, bytes: int) -> None:
        """Asks the system to read the pages of a range that are not in memory."""

    def release(self, offset: int, bytes: int) -> None:
        """
        Unmaps the pages of a range. They are read again when they are used again.
        """

    def expect_scattered(self) -> None:
        """
        Tells the system that pages are read in random order, so that it does not read ahead.
        """

    @property
    def damaged(self) -> bool: ...

class NodeMemory:
    """
    Copies of shards that the processes of a machine share; see node_memory.h.
    """

    def __init__(self, fd: int, shards: int) -> None: ...

    @staticmethod
    def bytes_for(shards: int, data: int) -> int:
        """
        Returns the size of a file for `shards` shards whose copies have `data` bytes in total.
        """

    def published(self, shard: int) -> int:
        """Returns the number that was published for a shard, or 0 if none was."""

    def claim(self, shard: int) -> bool:
        """
        Locks the entry of a shard. Returns False if another process has locked it.
        """

    def release(self, shard: int) -> None: ...

    def publish(self, shard: int, what: int) -> None: ...

class Table:
    """Fixed-width columns of shards; see table.h."""

    def __init__(self, first_row: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], strides: Sequence[int], fields: Sequence[tuple[int, int, int, int, int, int, int]]) -> None:
        """
        first_row: the first row of each shard, and then the number of rows, int64 (shards + 1,). strides: the bytes from row to row of each column. fields: for each field (column, offset, width, kind, bytes of a number in the column, bytes of a number in the batch, fill).
        """

    def set(self, shard: int, mapping: Mapping, columns: Sequence[tuple[int, int]], segments: tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None, what: int = 0) -> None:
        """
        Makes a shard readable. columns: (offset in the file, bytes) of each column. segments: (begin, start, length), where row i has the segments [begin[i], begin[i + 1]). what: identifies these columns of this file in a NodeMemory; 0: they are not shared. Raises ValueError if a column does not lie in the file, or a row or segment does not lie in its column.
        """

    def set_memory(self, shard: int, arrays: Sequence[Annotated[NDArray, dict(device='cpu', writable=False)]]) -> None:
        """
        Makes a shard readable whose columns are arrays of any dtype. The table keeps the arrays alive and reads from them without a copy.
        """

    def unset(self, shard: int) -> None: ...

    def missing(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        Returns the shards of these rows that are not set, int64, in ascending order.
        """

    @property
    def complete(self) -> bool: ...

    def make_resident(self, node: NodeMemory | None = None) -> None:
        """
        Starts a thread that copies the shards that are set from now on. node: memory for the copies that processes share; None: memory of this process.
        """

    @property
    def resident(self) -> int: ...

    def close(self) -> None: ...

def best_fit(sizes: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], room: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """Returns the bin of each piece, int64; see best_fit.h."""

def interleave(columns: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], int]], rows: int, memory: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], stride: int, shift: int, first: int) -> None:
    """
    Writes rows as records `first`, `first` + 1, ...; see interleave.h. columns: for each column (uint8 array of all rows, offset in a record). rows: the number of rows. memory: blocks of 2**shift records of `stride` bytes. Raises IndexError if the blocks have no room for the rows.
    """

def deal(memory: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]], stride: int, shift: int, numbers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], fields: Sequence[tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], int]]) -> None:
    """
    Copies the records with the given numbers to arrays. memory, stride, shift: as in interleave(). numbers: int64 (n,). fields: for each field (uint8 array of n rows, offset in a record). Raises IndexError if a number is out of range.
    """

class ColumnDecoder:
    """Decodes column chunks of Parquet files; see parquet_column.h."""

    def __init__(self) -> None: ...

    def decode(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, width: int, nullable: bool, snappy: bool, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], validity: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], checked: bool = False) -> int:
        """
        Decodes the pages in `data` to `rows` numbers of `width` bytes, and to Arrow's validity bitmap if they are nullable. Returns the number of nulls, or -1 if there are pages that this class does not decode. Raises ValueError if the pages are damaged. checked: also compares the checksums of pages that have one.
        """

WHOLE_FILE: int = -1

PATIENCE_S: float = 2.0

class FileSet:
    """A list of local files, which are used by their numbers; see read.h."""

    def __init__(self, keep_open: bool, max_open: int = 256, direct: bool = False) -> None: ...

    def add(self, paths: Sequence[str]) -> int:
        """Appends files and returns the number of the first one."""

    def __len__(self) -> int: ...

    def close(self) -> None: ...

def file_stamps(paths: Sequence[str]) -> Annotated[NDArray[numpy.int64], dict(shape=(None, None))]:
    """
    Returns the inode, size, and times of the last modification and status change in ns of files, int64 (n, 4). The numbers of a file that does not exist are -1.
    """

class ImageReads:
    """The places of the images of one or more batches."""

    def __init__(self, file: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], codec: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], orientation: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], height: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], width: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], crc32c: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, index: tuple[Sequence[Mapping], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None) -> None:
        """
        The place of row i is `length[i]` bytes from byte offset[i] of file number file[i] on. index: (mappings, number, offset, length), the place of the index of each row's JPEG; length 0: the JPEG has no index.
        """

class Slot:
    """A part of a batch while threads fill it; see slot.h."""

    def wait(self, timeout_s: float) -> bool:
        """
        Returns True once no thread touches the slot any more, or False after timeout_s seconds.
        """

    def cancel(self) -> None: ...

    @property
    def cancelled(self) -> bool: ...

    def abandon(self) -> None:
        """
        Cancels the slot and gives up waiting for its threads. If a thread hangs, the memory of the slot is kept for it.
        """

    def failures(self) -> list:
        """
        Returns the rows that failed, as (row, code, message). Call it after wait() has returned True.
        """

    def take(self, row: int, view: int = 0) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None))] | None:
        """
        Returns an image that keeps its own size, as uint8 (H, W, C) or (C, H, W), as was submitted; None if the row failed, or the image was taken before. Call it after wait() has returned True.
        """

class Engine:
    """Worker threads that read and decode the rows of batches; see engine.h."""

    def __init__(self, threads: int) -> None: ...

    def set_threads(self, threads: int) -> int:
        """
        Sets how many threads take rows from now on. Returns their number, which is smaller if the system refuses to start more threads.
        """

    def submit(self, source: FileSet | tuple[Sequence[Annotated[NDArray, dict(order='C', device='cpu', writable=False)]], bool], views: Sequence[tuple[Chain, bool, Sequence[Sequence[float]] | None, Annotated[NDArray, dict(order='C', device='cpu')] | None]], seed: int, epoch: int, reads: ImageReads, first: int, key: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: SharedCodebook | None, channels: int, max_pixels: int = 9223372036854775807, raw_channels: int | None = None) -> Slot:
        """
        Queues the images of a batch and returns their slot. source: a FileSet, or (arrays, whether the images in them are (C, H, W)); for arrays, the file numbers of `reads` are indices of arrays. views: a tuple (chain, channels_last, normalize, out) for each view of the images. normalize: (scales, biases) of the channels, for float32; None: uint8. out: the array for the batch, which threads write to until wait() returns True; None: the images keep their own sizes, see take(). If the slot is deleted earlier, it waits for the threads, unless one hangs. key: the key of the random draws of each row. reads, first: row i is read from place first + i of `reads`. An image of more than max_pixels is a failure of its row. channels: what images are decoded to. raw_channels: of raw images as they are stored; None: as many.
        """

    def gather(self, table: Table, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Sequence[Annotated[NDArray, dict(order='C', device='cpu')] | None]) -> Slot:
        """
        Queues rows of a table and returns their slot. out: for each field of the table an array with room for the rows, or None; threads write to it as in submit(). Raises IndexError if a row is not in the table.
        """

    def copy(self, sources: Sequence[Mapping], source: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], begin: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], bytes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], target: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], room: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray, dict(order='C', device='cpu')]) -> Slot:
        """
        Queues copies of pieces of mapped files and returns their slot. Piece i has bytes[i] bytes, from byte begin[i] of sources[source[i]] on. It is copied to byte target[i] of `out`, followed by zeros up to room[i] bytes. The rows of failures() are numbers of pieces.
        """

    def close(self) -> None: ...

    def load_indexes(self, file: Mapping) -> None:
        """
        Adds the indexes of JPEGs in a file that contains what unsaved_indexes() returned. They are used without a copy.
        """

    def unsaved_indexes(self, all: bool = False) -> bytes:
        """
        Returns the indexes of JPEGs that are new or have grown since they were loaded, or since the last call. all: returns all indexes. An index belongs to the CRC-32C of its file, so a file that has changed has another one.
        """

    def counters(self) -> tuple:
        """
        Returns the sums of all threads: (images, bytes, ns of reading, decoding, resampling and augmentation).
        """

class Recoding:
    """Recodes JPEG files to block records; see recoding.h."""

    def __init__(self, files: FileSet, file: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], codebook: SharedCodebook, max_pixels: int) -> None: ...

    def start_idle(self, threads: int) -> None:
        """Starts threads that run only while a processor would be idle."""

    def start_resting(self, threads: int, share: float) -> None:
        """
        Starts threads of normal priority, each of which works for `share` of the time.
        """

    def wait(self, timeout_s: float) -> bool:
        """
        Waits for at most timeout_s seconds. Returns whether all images are done.
        """

    def stop(self) -> None:
        """Tells the threads to end after their present image."""

    @property
    def idle_ns(self) -> int:
        """
        Processor time in ns that idle threads have spent on images that are done.
        """

    def take(self) -> tuple:
        """
        Returns (records, lengths, heights, widths, EXIF orientations, CRC-32Cs) of the images; call it after wait() has returned True. records: uint8, the records of all images, concatenated. Length 0: the image was not recoded.
        """
