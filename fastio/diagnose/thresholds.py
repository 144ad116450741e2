"""The thresholds of the diagnosis: values from which on something becomes a finding.

Rules, cost model and cases take them from here, so that doctor, bench and the statistics of a
loader agree on what is slow.
"""

from __future__ import annotations

# --- Time -----------------------------------------------------------------------------------------

LEAST_GAIN = 1.05  # two runs of the same epoch may differ by a smaller factor
COLD_IS_SLOWER = 1.1  # times a warm run: a faster cold run does not wait for storage
MOST_OVERHEAD = 1.25  # times the time of the cost model: the model explains a faster epoch
NEAR_THE_BEST = 0.97  # of the best rate: findings advise the fewest threads that reach it
FASTER = 1.2  # times as fast: a GPU setting with a smaller speed-up is no finding
COLD_FIRST_EPOCH = 1.2  # times a later epoch's duration, for data that fits in memory
NOT_IN_MEMORY = 0.2  # the share of the data that is not in the page cache now

# --- Data -----------------------------------------------------------------------------------------

MANY_IMAGES = 0.1  # the share of images of a kind that is slow to decode, or of a step's time
MANY_FILES = 20_000
SMALL_FILE = 1 << 20  # bytes
MANY_SHARDS = 64
SMALL_SHARD = 4 << 20
MANY_ROW_GROUPS = 8
SMALL_ROW_GROUP = 4096  # rows
LARGE_ROW_GROUP = 512 << 20  # bytes
HELD_BYTES = 64 << 20  # bytes that a loader without a cache fetches ahead, also for the next epoch
FITS_IN_MEMORY = 0.9  # of the available memory: a smaller dataset stays in the page cache

# --- Machine --------------------------------------------------------------------------------------

FREE_CORES = 0.75  # of the cores that the loader may use: other processes leave fewer
THREADS_PER_CORE = 2
THROTTLED = 0.05  # of the periods of a CPU quota
SWAPPED = 0.05  # of the memory
SMALL_SHM = 1 << 30
FEW_OPEN_FILES = 1024  # the usual limit
OPEN_SHARDS = 4  # shards may take 1 / 4 of the open files
