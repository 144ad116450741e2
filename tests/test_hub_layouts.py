"""Datasets as people lay them out on the Hub: sounds, tars, text, folders with metadata.

One dataset has a configuration for each layout, and one process reads them all.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tarfile
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pictures

from tests.hub_server import hub_server
from tests.test_hub import NAME, run

soundfile = pytest.importorskip("soundfile", reason="decodes sounds")
pytest.importorskip("datasets", reason="knows the Hub's layouts")

RATE = 8000


def sound(frames: int) -> bytes:
    data = BytesIO()
    soundfile.write(data, np.full(frames, 0.25), RATE, format="WAV")
    return data.getvalue()


def picture(number: int) -> bytes:
    data = BytesIO()
    Pictures.new("RGB", (8, 8), (number, 0, 0)).save(data, "PNG")
    return data.getvalue()


def parquet(table: pa.Table) -> bytes:
    data = BytesIO()
    pq.write_table(table, data)
    return data.getvalue()


def tar(samples: range) -> bytes:
    data = BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        for number in samples:
            for ending, content in (("png", picture(number)), ("cls", str(number).encode())):
                about = tarfile.TarInfo(f"{number:04}.{ending}")
                about.size = len(content)
                file.addfile(about, BytesIO(content))
    return data.getvalue()


CELL = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SOUNDS = pa.table(
    {
        "audio": pa.array([{"bytes": sound(100 + n), "path": f"{n}.wav"} for n in range(4)], CELL),
        "x": list(range(4)),
    }
)
LACKING = pa.table({"audio": pa.array([{"bytes": None, "path": "gone.wav"}], CELL)})
NO_PICTURE = pa.table(
    {"image": pa.array([{"bytes": picture(1), "path": "1.png"}, None], CELL), "x": [0, 1]}
)
METADATA = "file_name,caption,stars\n{}\n"

FILES: dict[str, bytes | str] = {
    "sounds/data/train-00000-of-00001.parquet": parquet(SOUNDS),
    "rated/data/train-00000-of-00001.parquet": parquet(SOUNDS),
    "lacking/train.parquet": parquet(LACKING),
    "pictures/train.parquet": parquet(NO_PICTURE),
    "truncated/train.parquet": parquet(SOUNDS)[:-20],
    "tars/train-0000.tar": tar(range(3)),
    "tars/train-0001.tar": tar(range(3, 5)),
    "lines/train.txt": "one\r\n\nthree",
    "lines/test.txt.gz": gzip.compress(b"zipped\n"),
    "json/train.json": '{"a": 1}\n{"a": 2}\n',
    "array/train.json": '[{"a": 1}, {"a": 2}, {"a": 3}]',
    "numbers/train.json": "[1, 2]",
    "tabs/train.tsv": "a\tb\n1\tx,y\n",
    "semicolons/train.csv": "a;b\n1;x\n",
    "headless/train.csv": "1,2\n",
    "photos/train/metadata.csv": METADATA.format("b.png,second,2\nmore/a.png,first,1"),
    "photos/train/b.png": picture(2),
    "photos/train/more/a.png": picture(1),
    "photos/test/metadata.csv": METADATA.format("c.png,third,3"),
    "photos/test/c.png": picture(3),
    "clips/metadata.jsonl": "".join(
        json.dumps({"file_name": f"{name}.wav", "said": name}) + "\n" for name in "ba"
    ),
    "clips/a.wav": sound(50),
    "clips/b.wav": sound(60),
    "outside/metadata.csv": METADATA.format("../tabs/train.tsv,no,0"),
    "outside/a.png": picture(1),
    "missing/metadata.csv": METADATA.format("a.png,here,1\nz.png,gone,0"),
    "missing/a.png": picture(1),
    "unnamed/metadata.csv": "name,caption\na.png,here\n",
    "unnamed/a.png": picture(1),
    "empty/train.parquet": parquet(SOUNDS.slice(0, 0)),
    "video/train.mp4": b"no film",
}
PATTERNS: dict[str, Any] = {
    name: f"{name}/**"
    for name in dict.fromkeys(path.partition("/")[0] for path in FILES)
    if name not in ("lines", "photos", "semicolons", "headless")
}
PATTERNS["lines"] = [
    {"split": "train", "path": "lines/*.txt"},
    {"split": "test", "path": "lines/*.gz"},
]
PATTERNS["photos"] = [{"split": s, "path": f"photos/{s}/**"} for s in ("train", "test")]
PATTERNS["none"] = "none/*.csv"
PATTERNS["half"] = [
    {"split": "train", "path": "tabs/*.tsv"},
    {"split": "test", "path": "none/*.tsv"},
]
# The datasets package has one builder for a dataset, so that these are another one.
CSV: list[dict[str, Any]] = [
    {"config_name": "semicolons", "data_files": "semicolons/*", "sep": ";"},
    {"config_name": "headless", "data_files": "headless/*", "names": ["a", "b"]},
]
INFO = [
    {
        "config_name": name,
        "features": [
            {"name": "audio", "dtype": {"audio": {"sampling_rate": 2 * RATE}}},
            {"name": "x", "dtype": "int64"},
        ],
        "splits": [{"name": "train", "num_bytes": 1, "num_examples": 4}],
    }
    for name in ("rated", "lacking")
]
SCRIPT = """
import json
import numpy as np

def plain(value):
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "ndim"):
        value = np.asarray(value)
        return value.tolist() if value.ndim < 2 else list(value.shape)
    return value if isinstance(value, (int, float, str)) else repr(value)

def tell(config, split=None, transforms=None):
    commit = CSV if config in ("semicolons", "headless") else MAIN
    try:
        with fastio.open(f"{URL}@{commit}", config=config, split=split) as data:
            with fastio.Loader(data, 8, transforms=transforms) as loader:
                batches = list(loader)
            return plain(batches[0]) if batches else "no batches"
    except Exception as error:
        return f"{type(error).__name__}: {error}"

decode, resampled = fastio.AudioDecode(mono=True), fastio.AudioDecode(mono=True, resample=True)
four = fastio.Resize((4, 4))
print(json.dumps({
    "sounds": tell("sounds", transforms={"audio": decode}),
    "rated": tell("rated", transforms={"audio": decode}),
    "resampled": tell("rated", transforms={"audio": resampled}),
    "clips": tell("clips", transforms={"audio": decode}),
    "tars": tell("tars", transforms=[four]),
    "photos": tell("photos", "train", [four]),
    "photos test": tell("photos", "test", [four]),
    "pictures": tell("pictures", transforms=[four]),
    "lines": tell("lines", "train"),
    "zipped": tell("lines", "test"),
    **{name: tell(name) for name in (
        "lacking", "truncated", "json", "array", "numbers", "tabs", "semicolons", "headless",
        "outside", "missing", "unnamed", "empty", "video", "none", "nowhere")},
    "half": tell("half", "test"),
    "no split": tell("photos", "dev"),
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a process says of every configuration: the first batch of a loader, or an error."""
    folder = tmp_path_factory.mktemp("layouts")
    root = folder / "things"
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    configs = [{"config_name": n, "data_files": files} for n, files in PATTERNS.items()]
    about = {"configs": configs, "dataset_info": INFO}  # JSON is YAML
    (root / "README.md").write_text(f"---\n{json.dumps(about, indent=1)}\n---\n")
    shutil.copytree(root, folder / "csv")
    (folder / "csv" / "README.md").write_text(f"---\n{json.dumps({'configs': CSV})}\n---\n")
    with pytest.MonkeyPatch.context() as patch, hub_server(NAME, root) as hub:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        (main,) = hub.commits
        csv = hub.commit(folder / "csv")
        script = f"MAIN, CSV = {main!r}, {csv!r}\n" + SCRIPT
        yield json.loads(run(hub, folder, script).split("\n")[-1])


def test_sounds_in_parquet_are_decoded(told: dict[str, Any]) -> None:
    assert told["sounds"]["audio"] == [4, 1, 103]
    assert told["sounds"]["audio_length"] == [100, 101, 102, 103]


def test_the_sampling_rate_of_the_readme_is_asked_of_files(told: dict[str, Any]) -> None:
    assert "sample rate is 8000 Hz, expected 16000 Hz" in told["rated"]
    assert told["resampled"]["audio"] == [4, 1, 206]


def test_tars_are_read_as_webdataset(told: dict[str, Any]) -> None:
    assert told["tars"]["png"] == [5, 3, 4, 4]
    assert told["tars"]["cls"] == [0, 1, 2, 3, 4]


def test_text_has_a_row_for_each_line(told: dict[str, Any]) -> None:
    assert told["lines"] == {"text": ["one", "", "three"]}
    assert told["zipped"] == {"text": ["zipped"]}


def test_json_is_lines_or_an_array(told: dict[str, Any]) -> None:
    assert told["json"] == {"a": [1, 2]}
    assert told["array"] == {"a": [1, 2, 3]}
    assert "item 0 of its JSON array is not an object" in told["numbers"]


def test_separators_are_those_of_the_ending_and_of_the_readme(told: dict[str, Any]) -> None:
    assert told["tabs"] == {"a": [1], "b": ["x,y"]}
    assert told["semicolons"] == {"a": [1], "b": ["x"]}


def test_settings_of_the_readme_that_are_not_applied_are_errors(told: dict[str, Any]) -> None:
    assert told["headless"].startswith("FormatUnsupported")
    assert "README.md sets names=['a', 'b']" in told["headless"]


def test_images_have_the_columns_of_their_metadata(told: dict[str, Any]) -> None:
    photos = told["photos"]
    assert photos == {"image": [2, 3, 4, 4], "caption": ["second", "first"], "stars": [2, 1]}
    assert told["photos test"]["caption"] == ["third"]


def test_sounds_have_the_columns_of_their_metadata(told: dict[str, Any]) -> None:
    assert told["clips"]["said"] == ["b", "a"]
    assert told["clips"]["audio_length"] == [60, 50]


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        ("lacking", "SchemaError", "row 0: column 'audio' has no bytes, only the path 'gone.wav'"),
        ("pictures", "ImageError", "train.parquet, row 1: there is no image: the row is null"),
        ("truncated", "ShardCorrupt", "truncated/train.parquet cannot be read as Parquet"),
        ("outside", "SchemaError", "'../tabs/train.tsv' is not the relative path of a file in the"),
        ("missing", "SourceNotFound", "missing/z.png does not exist"),
        ("unnamed", "SchemaError", "needs a column 'file_name' of text"),
        ("video", "FormatUnsupported", "reads as 'videofolder'"),
        ("none", "DatasetNotFound", "configuration 'none' has no data files. It has the files"),
        ("half", "DatasetNotFound", "configuration 'half': split 'test' has no files"),
        ("nowhere", "OptionError", "'nowhere' not found. Available: ['sounds', 'rated'"),
        ("no split", "OptionError", "has no split 'dev'. Its splits are train, test"),
    ],
)
def test_what_is_wrong_is_named(told: dict[str, Any], config: str, error: str, says: str) -> None:
    assert told[config].startswith(f"{error}: ")
    assert says in told[config]


def test_a_split_without_rows_has_no_batches(told: dict[str, Any]) -> None:
    assert told["empty"] == "no batches"
