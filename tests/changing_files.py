"""Epochs over a file that is truncated or written to meanwhile; see test_hostile_arrow.

    python -m tests.changing_files {arrow,saved,parquet} {cut,write} FOLDER

Each ends as usual or with an error of fastio. Which moment is hit differs from run to run.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pa_parquet

import fastio

EPOCHS = 30
ROWS = 30_000


def make(kind: str, folder: Path) -> Path:
    """Writes a table of numbers, strings, lists and words, and returns its file."""
    folder.mkdir()
    rows = range(1, ROWS + 1)
    words = pa.array([f"word {row % 7}" for row in rows])
    table = pa.table(
        {
            "number": list(rows),
            "text": [f"row number {row} " * (row % 9) for row in rows],
            "list": [list(range(row % 50)) for row in rows],
            "word": words if kind == "saved" else words.dictionary_encode(),
        }
    )
    if kind == "parquet":
        pa_parquet.write_table(table, folder / "data.parquet", row_group_size=2000)
        return folder / "data.parquet"
    new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
    with new(folder / "data.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (folder / "dataset_info.json").write_text("{}")
    return folder / "data.arrow"


def spoil(path: Path, harm: str, choice: random.Random, stop: threading.Event) -> None:
    """Truncates a file after a random time, or writes to it until `stop` is set."""
    time.sleep(choice.random() * 0.15)
    size = path.stat().st_size
    if harm == "cut":
        os.truncate(path, choice.choice([0, 4096, size // 2, size - 12288]))
        return
    with open(path, "r+b", buffering=0) as file:
        while not stop.wait(0.0005):
            file.seek(choice.randrange(size))
            file.write(choice.randbytes(choice.choice([1, 8, 200])))


def main(kind: str, harm: str, root: Path) -> None:
    sound = make(kind, root / "sound")
    copy = root / "copy"
    ends: Counter[str] = Counter()
    for trial in range(EPOCHS):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sound.parent, copy)
        path, stop = copy / sound.name, threading.Event()
        harms = path, harm, random.Random(trial), stop
        thread = threading.Thread(target=spoil, args=harms)
        thread.start()
        try:
            data = copy if kind == "saved" else path
            with fastio.Loader(data, batch_size=64, shuffle=True, num_workers=2) as loader:
                for _ in loader:
                    pass
            ends["no error"] += 1
        except fastio.FastioError as error:
            ends[type(error).__name__] += 1
        finally:
            stop.set()
            thread.join()
    print(f"{ends.total()} epochs: {dict(ends)}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
