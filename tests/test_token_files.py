"""Token files of Megatron, llm.c and nanoGPT are read as a corpus, without packing."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastio
from fastio import (
    DatasetNotFound,
    FastioError,
    FormatUnsupported,
    Loader,
    OptionError,
    PackError,
    SchemaError,
    ShardCorrupt,
    SourceNotFound,
    StateMismatch,
    TokenPad,
    TokenWindows,
    pack,
)
from fastio.errors import SourceChanged
from fastio.sources.registry import check, describe

U16 = {"tokens": "uint16"}


def documents(count: int = 20, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 50_000, rng.integers(1, 200)) for _ in range(count)]


def megatron(
    path: Path,
    texts: Sequence[np.ndarray[Any, Any]],
    dtype: str = "uint16",
    code: int = 8,
    ends: Sequence[int] | None = None,
) -> Path:
    """Writes the pair of files as Megatron's IndexedDatasetBuilder does."""
    sizes = np.array([len(text) for text in texts], np.int32)
    item = np.dtype(dtype).itemsize
    pointers = (np.cumsum(sizes, dtype=np.int64) - sizes) * item
    begins = np.array(range(len(texts) + 1) if ends is None else ends, np.int64)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(begins))
    path.with_suffix(".idx").write_bytes(
        head + sizes.tobytes() + pointers.tobytes() + begins.tobytes()
    )
    path.with_suffix(".bin").write_bytes(b"".join(text.astype(dtype).tobytes() for text in texts))
    return path.with_suffix(".bin")


def llm_c(
    path: Path, tokens: np.ndarray[Any, Any], magic: int = 20240520, version: int = 1
) -> Path:
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    kind = "<u2" if magic == 20240520 else "<u4"
    path.write_bytes(header.tobytes() + tokens.astype(kind).tobytes())
    return path


def raw(path: Path, tokens: np.ndarray[Any, Any]) -> Path:
    tokens.astype("<u2").tofile(path)
    return path


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
@pytest.mark.parametrize(("dtype", "code"), [("uint16", 8), ("int32", 4), ("uint8", 1)])
def test_documents_of_megatron_are_samples(
    tmp_path: Path, suffix: str, dtype: str, code: int
) -> None:
    texts = [text % 200 for text in documents()]
    path = megatron(tmp_path / "text_document", texts, dtype, code)
    with fastio.open(path.with_suffix(suffix)) as dataset:
        assert len(dataset) == 20
        for text, sample in zip(texts, dataset, strict=True):
            np.testing.assert_array_equal(sample["tokens"], text)


def test_sequences_of_one_document_are_joined(tmp_path: Path) -> None:
    texts = documents(6)
    path = megatron(tmp_path / "a", texts, ends=[0, 2, 2, 6])
    found = [sample["tokens"] for sample in fastio.open(path)]
    assert [len(text) for text in found] == [
        len(texts[0]) + len(texts[1]), 0, sum(map(len, texts[2:])),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"positions": True, "documents": True},
        {"packing": "best-fit", "pad": 7},
        {"stride": 5, "cu_seqlens": True},
    ],
)
def test_windows_are_those_of_the_packed_corpus(tmp_path: Path, options: dict[str, Any]) -> None:
    texts = documents(50)
    path = megatron(tmp_path / "text", texts)
    schema = fastio.Schema({"tokens": fastio.Tokens("uint16")}, "dict")
    pack([{"tokens": text} for text in texts], tmp_path / "packed", schema=schema)
    there = TokenWindows(str(path), 64, **options)
    expected = TokenWindows(tmp_path / "packed", 64, **options)
    assert len(there) == len(expected) > 10
    with (
        Loader(there, batch_size=4, shuffle=True, seed=3) as ours,
        Loader(expected, batch_size=4, shuffle=True, seed=3) as theirs,
    ):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert one.keys() == other.keys()
            for key in one:
                np.testing.assert_array_equal(one[key], other[key])


def test_padded_documents_are_read_from_token_files(tmp_path: Path) -> None:
    texts = documents(10)
    view = TokenPad(str(megatron(tmp_path / "a", texts)), 100)
    with Loader(view, batch_size=10) as loader:
        (batch,) = loader
    assert batch["attention_mask"].sum(1).tolist() == [min(100, len(text)) for text in texts]


@pytest.mark.parametrize(("magic", "version"), [(20240520, 1), (20240801, 7)])
def test_a_header_of_llm_c_tells_the_type(tmp_path: Path, magic: int, version: int) -> None:
    tokens = np.concatenate(documents())
    path = llm_c(tmp_path / "fineweb_train_000001.bin", tokens, magic, version)
    windows = TokenWindows(str(path), 32)
    np.testing.assert_array_equal(windows[3]["inputs"], tokens[96:128])
    np.testing.assert_array_equal(windows[3]["targets"], tokens[97:129])


def test_a_pattern_or_a_list_gives_files_one_after_the_other(tmp_path: Path) -> None:
    parts = documents(3)
    for number, part in enumerate(parts):
        llm_c(tmp_path / f"train_{number}.bin", part)
    found = fastio.open(str(tmp_path / "train_*.bin"))
    for sample, part in zip(found, parts, strict=True):
        np.testing.assert_array_equal(sample["tokens"], part)
    two = fastio.open([tmp_path / "train_2.bin", tmp_path / "train_0.bin"])
    assert [len(sample["tokens"]) for sample in two] == [len(parts[2]), len(parts[0])]


def test_a_raw_file_needs_the_type_of_its_tokens(tmp_path: Path) -> None:
    tokens = np.concatenate(documents())
    path = raw(tmp_path / "train.bin", tokens)
    with pytest.raises(OptionError, match=r"dtypes=\{.tokens.: .uint16.\}"):
        fastio.open(path)
    windows = TokenWindows(fastio.open(path, dtypes=U16), 16)
    np.testing.assert_array_equal(windows[5]["inputs"], tokens[80:96])


def test_a_separator_divides_a_file_into_documents(tmp_path: Path) -> None:
    path = raw(tmp_path / "train.bin", np.array([5, 6, 0, 0, 7, 8, 9]))
    found = [s["tokens"].tolist() for s in fastio.open(path, dtypes=U16, separator=0)]
    assert found == [[5, 6, 0], [0], [7, 8, 9]]
    assert [len(s["tokens"]) for s in fastio.open(path, dtypes=U16)] == [7]


def test_token_files_can_be_packed_when_they_have_documents(tmp_path: Path) -> None:
    texts = documents()
    pack(megatron(tmp_path / "a", texts), tmp_path / "packed")
    for text, sample in zip(texts, fastio.open(tmp_path / "packed"), strict=True):
        np.testing.assert_array_equal(sample["tokens"], text)
    path = llm_c(tmp_path / "b.bin", texts[0])
    with pytest.raises(PackError, match="one document"):
        pack(path, tmp_path / "other")
    pack(fastio.open(path, separator=int(texts[0][-1])), tmp_path / "other")


def test_info_and_verify_describe_token_files(tmp_path: Path) -> None:
    texts = documents()
    path = megatron(tmp_path / "a", texts)
    about = describe(path)
    assert (about["dataset"], about["format"], about["rows"]) == ("tokens", "megatron", 20)
    assert about["tokens"] == sum(map(len, texts))

    from fastio.pack.progress import progress_bar

    def progress(title: str, counted: str, total: int) -> Any:
        return progress_bar(title, counted, total, False)

    assert check(path, progress=progress).all_well
    texts[3] = texts[3].copy()
    texts[3][0] = -5
    bad = check(megatron(tmp_path / "b", texts, "int32", 4), progress=progress)
    place = sum(map(len, texts[:3]))
    assert f"token {place} is negative" in str(bad.damaged[0].problem)


def test_a_dataset_of_token_files_can_be_sent_to_another_process(tmp_path: Path) -> None:
    path = raw(tmp_path / "train.bin", np.array([5, 6, 0, 7]))
    dataset = fastio.open(path, dtypes=U16, separator=0)
    again = pickle.loads(pickle.dumps(dataset))
    assert (again.fingerprint, len(again)) == (dataset.fingerprint, 2)


def damaged_index(change: str) -> Any:
    def damage(index: bytearray, tokens: bytearray) -> None:
        count = int.from_bytes(index[18:26], "little")
        at = {"size": 34, "pointer": 34 + 4 * count, "document": 34 + 12 * count + 8}
        if change == "truncated":
            del index[-5:]
        elif change == "head":
            del index[20:]
        elif change == "count":
            index[18:26] = (2**62).to_bytes(8, "little")
        elif change == "type":
            index[17] = 9
        elif change == "version":
            index[9] = 2
        elif change == "magic":
            index[0] = 0
        elif change == "tokens":
            del tokens[-2:]
        elif change == "more tokens":
            tokens += b"\0\0"
        elif change == "size":
            index[at["size"] : at["size"] + 4] = (-3).to_bytes(4, "little", signed=True)
        elif change == "pointer":
            index[at["pointer"] : at["pointer"] + 8] = (2**40).to_bytes(8, "little")
        elif change == "moved":
            index[at["pointer"] : at["pointer"] + 8] = (2).to_bytes(8, "little")
        else:
            index[at["document"] : at["document"] + 8] = (2**40).to_bytes(8, "little")

    return damage


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("truncated", "truncated"),
        ("head", "not an index"),
        ("count", "4611686018427387904 sequences"),
        ("type", "number 9"),
        ("magic", "MMIDIDX"),
        ("tokens", "outside of the"),
        ("more tokens", "belongs to another"),
        ("size", "sequence 0 has -3 tokens"),
        ("pointer", "sequence 0 .* outside"),
        ("document", "do not ascend"),
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, change: str, problem: str) -> None:
    path = megatron(tmp_path / "a", documents())
    index, tokens = (bytearray(path.with_suffix(s).read_bytes()) for s in (".idx", ".bin"))
    damaged_index(change)(index, tokens)
    path.with_suffix(".idx").write_bytes(index)
    path.write_bytes(tokens)
    with pytest.raises(ShardCorrupt, match=problem) as caught:
        fastio.open(path)
    assert "a.idx" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("version", "version 2"),
        ("moved", "follow one another"),
        ("old", "old format"),
        ("multimodal", "multimodal"),
    ],
)
def test_an_index_in_a_format_that_is_not_read_is_not_called_damaged(
    tmp_path: Path, change: str, problem: str
) -> None:
    path = megatron(tmp_path / "a", documents())
    index, tokens = (bytearray(path.with_suffix(s).read_bytes()) for s in (".idx", ".bin"))
    if change == "old":
        index[:8] = b"TNTIDX\0\0"
    elif change == "multimodal":
        sequences = int.from_bytes(index[18:26], "little")
        index += bytes(sequences)  # the mode of each sequence
    else:
        damaged_index(change)(index, tokens)
    path.with_suffix(".idx").write_bytes(index)
    with pytest.raises(FormatUnsupported, match=problem) as caught:
        fastio.open(path)
    assert "a.idx" in str(caught.value)


def test_another_version_of_llm_c_is_not_called_damaged(tmp_path: Path) -> None:
    path = llm_c(tmp_path / "a.bin", np.arange(100))
    content = bytearray(path.read_bytes())
    content[4:8] = (9).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(FormatUnsupported, match=r"a\.bin has the magic number .* the version 9"):
        fastio.open(path)


def test_a_header_that_lies_and_an_odd_size_are_named(tmp_path: Path) -> None:
    path = llm_c(tmp_path / "a.bin", np.arange(100))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ShardCorrupt, match="says 100 tokens of 2 bytes, but 198 bytes"):
        fastio.open(path)
    (tmp_path / "b.bin").write_bytes(b"123")
    with pytest.raises(ShardCorrupt, match="3 bytes, which is not a multiple of 2"):
        fastio.open(tmp_path / "b.bin", dtypes=U16)


@pytest.mark.parametrize(
    ("make", "options", "kind", "problem"),
    [
        (lambda path: raw(path, np.arange(0)), {"dtypes": U16}, SourceNotFound, "no tokens"),
        (lambda path: raw(path, np.arange(4)), {"dtypes": {"x": "uint16"}}, OptionError, "one key"),
        (lambda path: raw(path, np.arange(4)), {"dtypes": {"tokens": "f4"}}, SchemaError, "uint8"),
        (
            lambda path: raw(path, np.arange(4)),
            {"dtypes": U16, "separator": 70_000},
            OptionError,
            "not a valid uint16",
        ),
        (
            lambda path: llm_c(path, np.arange(4)),
            {"dtypes": {"tokens": "uint32"}},
            OptionError,
            "uint16, not uint32",
        ),
        (lambda path: megatron(path, documents()), {"separator": 0}, OptionError, "has documents"),
        (lambda path: megatron(path, documents(), "int64", 5), {}, FormatUnsupported, "int64"),
    ],
)
def test_options_that_contradict_a_file_are_errors(
    tmp_path: Path, make: Any, options: dict[str, Any], kind: type[FastioError], problem: str
) -> None:
    make(tmp_path / "a.bin")
    with pytest.raises(kind, match=problem):
        fastio.open(tmp_path / "a.bin", **options)


def test_files_that_are_missing_or_of_two_types_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound, match=r"none\.bin"):
        fastio.open(tmp_path / "none.bin")
    megatron(tmp_path / "a", documents()).unlink()
    with pytest.raises(SourceNotFound, match=r"a\.bin does not exist"):
        fastio.open(tmp_path / "a.idx")
    llm_c(tmp_path / "b.bin", np.arange(9))
    llm_c(tmp_path / "c.bin", np.arange(9), 20240801, 7)
    with pytest.raises(SchemaError, match="one type"):
        fastio.open([tmp_path / "b.bin", tmp_path / "c.bin"])


def test_a_file_that_changes_is_an_error_at_the_next_epoch(tmp_path: Path) -> None:
    path = llm_c(tmp_path / "a.bin", np.arange(2000))
    with Loader(TokenWindows(str(path), 16), batch_size=4) as loader:
        list(loader)
        llm_c(path, np.arange(2000)[::-1])
        with pytest.raises(SourceChanged):
            list(loader)


def test_a_state_of_other_tokens_is_refused(tmp_path: Path) -> None:
    tokens = np.arange(200_000) % 60_000
    path = llm_c(tmp_path / "a.bin", tokens)
    with Loader(TokenWindows(str(path), 64), batch_size=4) as loader:
        state = loader.state_dict()
    tokens[5_000:190_000] += 1  # the beginning, the end and the size stay as they are
    llm_c(path, tokens)
    with (
        Loader(TokenWindows(str(path), 64), batch_size=4) as loader,
        pytest.raises(StateMismatch, match="another dataset"),
    ):
        loader.load_state_dict(state)


def test_a_copy_of_the_files_is_the_same_dataset(tmp_path: Path) -> None:
    path = llm_c(tmp_path / "a.bin", np.arange(9000))
    copy = tmp_path / "b.bin"
    copy.write_bytes(path.read_bytes())
    assert fastio.open(path).fingerprint == fastio.open(copy).fingerprint


def test_another_process_does_not_open_files_that_were_replaced(tmp_path: Path) -> None:
    path = llm_c(tmp_path / "a.bin", np.arange(2000))
    sent = pickle.dumps(fastio.open(path))
    llm_c(path, np.arange(2000)[::-1])
    with pytest.raises(SourceChanged, match="replaced by another dataset"):
        pickle.loads(sent)


def test_a_file_that_is_cut_off_after_it_was_opened_is_named(tmp_path: Path) -> None:
    path = llm_c(tmp_path / "a.bin", np.arange(2000))
    dataset = fastio.open(path)
    llm_c(path, np.arange(50))
    with pytest.raises(SourceChanged, match=r"a\.bin was replaced"):
        dataset[0]


def test_negative_tokens_are_not_packed(tmp_path: Path) -> None:
    path = megatron(tmp_path / "a", [np.array([5, -1, 7])], "int32", 4)
    with pytest.raises(PackError, match=r"a\.bin: token 1 is negative"):
        pack(path, tmp_path / "packed")


@pytest.mark.parametrize("separator", [True, 1.5, "auto"])
def test_a_separator_is_a_number(tmp_path: Path, separator: Any) -> None:
    path = raw(tmp_path / "a.bin", np.arange(4))
    with pytest.raises(OptionError, match="separator"):
        fastio.open(path, dtypes=U16, separator=separator)


def test_the_type_of_tokens_may_be_a_type_of_numpy(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.bin", np.arange(4))
    with fastio.open(path, dtypes={"tokens": np.uint16}) as dataset:
        assert dataset.schema.fields["tokens"] == fastio.Tokens("uint16")
