"""A Writer makes a dataset of the samples handed to it, or leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastio import Dataset as open_dataset
from fastio import Image, ImageError, PackError, Scalar, Schema, SchemaError, Text, Writer, pack
from fastio.packed import MANIFEST_NAME
from tests.pictures import jpeg
from tests.support import contents

SMALL_SHARDS = 2500


def test_a_writer_gives_the_same_shards_as_pack(tmp_path: Path) -> None:
    samples = [{"image": jpeg(seed=seed), "n": seed} for seed in range(10)]
    pack(samples, tmp_path / "packed", shard_size=SMALL_SHARDS)
    schema = open_dataset(tmp_path / "packed").schema
    with Writer(tmp_path / "written", schema, shard_size=SMALL_SHARDS) as writer:
        for sample in samples:
            writer.write(sample)
    assert writer.report.rows == 10
    packed, written = contents(tmp_path / "packed"), contents(tmp_path / "written")
    assert packed.pop(MANIFEST_NAME) != written.pop(MANIFEST_NAME)  # it names the source
    assert packed == written


def test_a_writer_left_by_an_error_leaves_nothing_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    schema = Schema({"x": Scalar("int64")}, "single")

    def write() -> None:
        with Writer(tmp_path / "out", schema, shard_size=16) as writer:
            for number in range(10):
                writer.write(number)
            raise RuntimeError("never mind")

    with pytest.raises(RuntimeError, match="never mind"):
        write()
    assert list(contents(tmp_path / "out")) == ["notes.txt"]


def test_a_bad_sample_is_named_by_the_writer(tmp_path: Path) -> None:
    schema = Schema({"image": Image()}, "single")

    def write() -> None:
        with Writer(tmp_path / "out", schema) as writer:
            for data in (jpeg(), jpeg(), jpeg()[:-100], jpeg()):
                writer.write(data)

    with pytest.raises(ImageError, match="sample 2"):
        write()
    assert contents(tmp_path / "out") == {}


def test_a_writer_skips_if_it_is_told_to(tmp_path: Path) -> None:
    schema = Schema({"image": Image()}, "single")
    with Writer(tmp_path / "out", schema, on_error="skip") as writer:
        for data in (jpeg(), b"", jpeg(), None, 5):
            writer.write(data)
    assert [name for name, _ in writer.report.skipped] == ["sample 1", "sample 3", "sample 4"]
    assert len(open_dataset(tmp_path / "out")) == 2


def test_a_writer_without_samples_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(PackError, match="nothing to pack"),
        Writer(tmp_path / "out", Schema({"x": Text()})),
    ):
        pass
    assert contents(tmp_path / "out") == {}


def test_a_dict_is_not_a_schema(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"schema must be a fastio.Schema\(\{name: field\}\)"):
        Writer(tmp_path / "out", {"x": Text()})  # type: ignore[arg-type]
    assert contents(tmp_path) == {}


def test_a_finished_writer_takes_no_more(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "out", Schema({"x": Text()}, "single"))
    with pytest.raises(PackError, match="not finished"):
        _ = writer.report
    writer.write("a")
    assert writer.finish() == writer.report
    with pytest.raises(PackError, match="closed"):
        writer.write("b")
    writer.discard()
    assert len(open_dataset(tmp_path / "out")) == 1
