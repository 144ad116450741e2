"""Text packed as tokens: every document its tokens and a separator, whatever it came from."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

import fastio
from fastio import (
    OptionError,
    PackageMissing,
    PackError,
    SampleError,
    SchemaError,
    ShardCorrupt,
    SourceNotFound,
)
from fastio.cli import main
from fastio.pack.tokens.encoders import open_encoder
from tests.children import run_code
from tests.support import contents

WORDS = ["the", "loader", "reads", "shards", "über", "naïve", "日本", "and", "so", "on", "\n", "#"]

# Packs, and kills itself at a call of a function that changes files.
KILLER = """
import sys

source, destination, tokenizer, kill_at = sys.argv[1:]

from fastio.pack import pack
from tests.children import killed_at

killed_at(int(kill_at))

pack(source, destination, tokenizer=tokenizer, columns=["score"], shard_size=9000, workers=2)
"""


def documents(count: int) -> list[str]:
    """Some text; every 50th is empty."""
    rng = np.random.default_rng(count)
    lengths = rng.integers(1, 60, count)
    lengths[::50] = 0
    return [" ".join(rng.choice(WORDS, length)) for length in lengths]


def write_jsonl(path: Path, texts: Sequence[Any], **columns: Sequence[Any]) -> Path:
    records = [
        {"text": text, **{name: values[row] for name, values in columns.items()}}
        for row, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def tokens_of(path: Path) -> list[list[int]]:
    """All documents of a packed dataset."""
    with fastio.open(path) as dataset:
        return [row.tolist() for row in dataset.gather("tokens", np.arange(len(dataset)))]


def as_bytes(texts: Sequence[str]) -> list[list[int]]:
    """What the tokenizer of bytes makes of documents that are not empty."""
    return [[*text.encode(), 256] for text in texts if text]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer, saved with truncation and padding switched on."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<|endoftext|>", "[CLS]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(500), trainer)
    end = ("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))
    start = ("[CLS]", tokenizer.token_to_id("[CLS]"))
    tokenizer.post_processor = processors.BertProcessing(end, start)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_id=0, pad_token="<pad>", length=8)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def own_encode(path: Path, texts: Sequence[str], special: bool = False) -> list[list[int]]:
    """What the package itself makes of documents, one by one, without cutting and padding."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [tokenizer.encode(text, add_special_tokens=special).ids for text in texts if text]


# --- Tokenizers -----------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=20))
def test_bytes_come_back(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("bytes") / "out"
    filled = [text for text in texts if text]
    if not filled:
        with pytest.raises(PackError, match="nothing to pack"):
            fastio.pack(iter(texts), out, tokenizer="bytes")
        return
    report = fastio.pack(iter(texts), out, tokenizer="bytes", shard_size=40, workers=2)
    assert report.tokens is not None
    assert (report.tokens.documents, report.tokens.empty) == (
        len(filled),
        len(texts) - len(filled),
    )
    assert tokens_of(out) == as_bytes(texts)
    encoder = open_encoder("bytes")
    assert [encoder.decode(np.array(row[:-1])) for row in tokens_of(out)] == filled


@pytest.mark.parametrize(
    ("separator", "dtype", "end"),
    [("auto", "uint16", [256]), ("none", "uint8", []), (None, "uint8", []), (0, "uint8", [0])],
)
def test_the_smallest_type_that_holds_the_vocabulary(
    tmp_path: Path, separator: Any, dtype: str, end: list[int]
) -> None:
    fastio.pack(["ab", "c"], tmp_path / "out", tokenizer="bytes", separator=separator)
    with fastio.open(tmp_path / "out") as dataset:
        rows = dataset.gather("tokens", np.array([0]))
    assert rows[0].dtype == dtype
    assert rows[0].tolist() == [97, 98, *end]


def test_a_wider_type_on_request(tmp_path: Path) -> None:
    fastio.pack(["ab"], tmp_path / "out", tokenizer="bytes", dtypes={"tokens": "uint32"})
    with fastio.open(tmp_path / "out") as dataset:
        assert dataset.schema.fields == {"tokens": fastio.Tokens("uint32", 257, 256)}


def test_a_tokenizer_file_gives_its_own_tokens_and_a_separator(
    trained: Path, tmp_path: Path
) -> None:
    texts = documents(600)
    source = write_jsonl(tmp_path / "t.jsonl", texts)
    report = fastio.pack(source, tmp_path / "out", tokenizer=trained, shard_size=5000)
    expected = [[*ids, 1] for ids in own_encode(trained, texts)]
    assert tokens_of(tmp_path / "out") == expected
    assert report.tokens is not None
    assert report.tokens.tokens == sum(map(len, expected))
    with fastio.open(tmp_path / "out") as dataset:
        assert dataset.schema.fields["tokens"] == fastio.Tokens("uint16", 300, 1)
        assert set(dataset.manifest.packing["tokens"]["tokenizer"]) == {"name", "xxh3"}


@pytest.mark.parametrize("separator", ["auto", "<|endoftext|>", 1])
def test_special_tokens_do_not_give_a_second_separator(
    trained: Path, tmp_path: Path, separator: Any
) -> None:
    texts = documents(20)
    options = {"special_tokens": True, "separator": separator}
    fastio.pack(texts, tmp_path / "out", tokenizer=trained, **options)
    assert tokens_of(tmp_path / "out") == own_encode(trained, texts, special=True)


def test_tokenizer_objects_stay_as_they_are(trained: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(trained))
    before = tokenizer.to_str()
    texts = documents(30)
    fastio.pack(texts, tmp_path / "out", tokenizer=tokenizer)
    assert tokenizer.to_str() == before
    assert tokens_of(tmp_path / "out") == [[*ids, 1] for ids in own_encode(trained, texts)]


def test_a_tokenizer_of_transformers_is_known_by_its_backend(trained: Path, tmp_path: Path) -> None:
    class Fast:
        backend_tokenizer = Tokenizer.from_file(str(trained))
        name_or_path = "someone/fast"
        eos_token = "[CLS]"

    fastio.pack(["the loader"], tmp_path / "out", tokenizer=Fast())
    assert tokens_of(tmp_path / "out")[0][-1] == 2


def test_a_folder_with_a_configuration_says_what_ends_a_text(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(trained.read_bytes())
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "[CLS]"}}')
    fastio.pack(["the loader"], tmp_path / "out", tokenizer=str(folder))
    assert tokens_of(tmp_path / "out")[0][-1] == 2


def test_a_function_gives_tokens(tmp_path: Path) -> None:
    texts = ["one two", "", "three"]
    fastio.pack(
        texts,
        tmp_path / "out",
        tokenizer=lambda text: [len(word) for word in text.split()],
        vocabulary_size=10,
        separator=9,
    )
    assert tokens_of(tmp_path / "out") == [[3, 3, 9], [5, 9]]


def test_dropout_is_off(tmp_path: Path, trained: Path) -> None:
    state = json.loads(trained.read_text())
    state["model"]["dropout"] = 0.9
    random = tmp_path / "random.json"
    random.write_text(json.dumps(state))
    texts = documents(30)
    fastio.pack(texts, tmp_path / "out", tokenizer=random)
    assert tokens_of(tmp_path / "out") == [[*ids, 1] for ids in own_encode(trained, texts)]


# --- Sources --------------------------------------------------------------------------------------


def test_files_of_several_kinds_are_read_one_after_the_other(tmp_path: Path) -> None:
    texts = documents(12)
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    write_jsonl(folder / "a.jsonl", texts[:4], meta=[1, "x", None, {"deep": []}])
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress(write_jsonl(tmp_path / "b.jsonl", texts[4:6]).read_bytes())
    )
    pa_parquet.write_table(pa.table({"n": [1, 2], "text": texts[6:8]}), folder / "c.parquet")
    (folder / "d.txt").write_text(texts[8])
    with pa.OSFile(str(folder / "e.arrow"), "wb") as file:
        table = pa.table({"text": texts[9:11]})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    (folder / "empty.jsonl").write_text("")
    (folder / "sub" / "f.csv").write_text(f'id,text\n1,"{texts[11]}"\n')
    (folder / "readme.md").write_text("not a text of the corpus")
    report = fastio.pack(folder, tmp_path / "out", tokenizer="bytes")
    assert tokens_of(tmp_path / "out") == as_bytes(texts)
    assert report.tokens is not None
    assert report.tokens.empty == texts.count("")
    names = sorted(str(path) for path in folder.rglob("*.*"))
    fastio.pack([name for name in names if "readme" not in name], tmp_path / "2", tokenizer="bytes")
    assert tokens_of(tmp_path / "2") == as_bytes(texts)


def test_what_a_document_of_a_text_file_is(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\n \n  three\nfour\n")
    for document, expected in {
        None: ["one\r\ntwo\n\n \n  three\nfour\n"],
        "file": ["one\r\ntwo\n\n \n  three\nfour\n"],
        "line": ["one", "two", " ", "  three", "four"],
        "blank-line": ["one\r\ntwo", "  three\nfour"],
    }.items():
        out = tmp_path / f"out-{document}"
        fastio.pack(path, out, tokenizer="bytes", document=document)  # type: ignore[arg-type]
        assert tokens_of(out) == as_bytes(expected)


def test_long_documents_and_many_lines(tmp_path: Path) -> None:
    texts = ["x" * (9 << 20), *documents(3000), "y" * (5 << 20)]
    source = write_jsonl(tmp_path / "t.jsonl", texts)
    fastio.pack(source, tmp_path / "out", tokenizer="bytes", shard_size="1MiB", workers=2)
    assert tokens_of(tmp_path / "out") == as_bytes(texts)
    lines = tmp_path / "t.txt"
    lines.write_text("\n".join(text.replace("\n", " ") for text in texts))
    fastio.pack(lines, tmp_path / "lines", tokenizer="bytes", document="line")
    assert tokens_of(tmp_path / "lines") == as_bytes([t.replace("\n", " ") for t in texts])


@pytest.mark.parametrize(
    ("columns", "wanted", "found"),
    [
        (["content", "text"], None, "text"),
        (["title", "document"], None, "document"),
        (["body"], None, "body"),
        (["text", "body"], "body", "body"),
    ],
)
def test_which_column_is_the_text(
    tmp_path: Path, columns: list[str], wanted: str | None, found: str
) -> None:
    table = pa.table({name: [f"in {name}"] for name in columns} | {"n": [1]})
    fastio.pack(table, tmp_path / "out", tokenizer="bytes", text_column=wanted)
    assert tokens_of(tmp_path / "out") == as_bytes([f"in {found}"])


def test_columns_beside_the_text_are_kept(tmp_path: Path) -> None:
    texts = documents(120)
    labels, names = [n % 2 for n in range(120)], [f"name {n}" for n in range(120)]
    scores = [float(n) for n in range(120)]
    source = write_jsonl(tmp_path / "t.jsonl", texts, label=labels, name=names, score=scores)
    out = tmp_path / "out"
    fastio.pack(
        source, out, tokenizer="bytes", columns=["score", "name", "label"], dtypes={"label": "int8"}
    )
    kept = [row for row, text in enumerate(texts) if text]
    with fastio.open(out) as dataset:
        rows = np.arange(len(dataset))
        assert list(dataset.schema.fields) == ["tokens", "score", "name", "label"]
        assert [row.tolist() for row in dataset.gather("tokens", rows)] == as_bytes(texts)
        assert dataset.gather("label", rows).tolist() == [labels[row] for row in kept]
        assert dataset.gather("score", rows).tolist() == [scores[row] for row in kept]
        assert list(dataset.gather("name", rows)) == [names[row] for row in kept]
        assert dataset[3]["label"] == labels[kept[3]]
        assert [about["column"] for about in dataset.manifest.statistics or []] == [
            "score",
            "name",
            "label",
        ]


def test_the_text_itself_can_be_kept(tmp_path: Path) -> None:
    fastio.pack(pa.table({"text": ["ab"]}), tmp_path / "out", tokenizer="bytes", columns=["text"])
    with fastio.open(tmp_path / "out") as dataset:
        assert dataset[0]["text"] == "ab"


def test_dicts_and_indexed_datasets_are_sources(tmp_path: Path) -> None:
    class Indexed:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, row: int) -> dict[str, Any]:
            return {"text": f"row {row}", "label": row}

    fastio.pack(Indexed(), tmp_path / "out", tokenizer="bytes", columns=["label"])
    with fastio.open(tmp_path / "out") as dataset:
        assert dataset.gather("label", np.arange(3)).tolist() == [0, 1, 2]
    assert tokens_of(tmp_path / "out") == as_bytes(["row 0", "row 1", "row 2"])


def test_empty_texts_and_what_nulls_are(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", None, "", "b"], "n": [1, 2, 3, 4]})
    options: dict[str, Any] = {"nulls": {"text": ""}, "columns": ["n"]}
    report = fastio.pack(table, tmp_path / "out", tokenizer="bytes", **options)
    assert report.tokens is not None
    assert report.tokens.empty == 2
    with fastio.open(tmp_path / "out") as dataset:
        assert dataset.gather("n", np.arange(2)).tolist() == [1, 4]
        assert dataset.manifest.packing["tokens"]["empty"] == 2


# --- Bytes, threads and kills ---------------------------------------------------------------------


def test_workers_and_pieces_make_no_difference(trained: Path, tmp_path: Path) -> None:
    texts = documents(2000)
    scores = np.random.default_rng(0).standard_normal(2000).tolist()
    source = write_jsonl(tmp_path / "t.jsonl", texts, score=scores)
    made = []
    for workers in (1, 4):
        out = tmp_path / f"out{workers}"
        options: dict[str, Any] = {"columns": ["score"], "shard_size": 9000, "workers": workers}
        fastio.pack(source, out, tokenizer=trained, **options)
        made.append(contents(out))
    assert made[0] == made[1]
    assert len(made[0]) > 5


def test_a_pack_killed_at_any_point_gives_the_same_bytes(trained: Path, tmp_path: Path) -> None:
    texts = documents(700)
    scores = np.random.default_rng(0).standard_normal(700).tolist()
    source = write_jsonl(tmp_path / "t.jsonl", texts, score=scores)
    options: dict[str, Any] = {"tokenizer": trained, "columns": ["score"], "shard_size": 9000}
    report = fastio.pack(source, tmp_path / "expected", **options)
    assert report.shards >= 3
    for kill_at in (2, 7, 11, 14):
        out = tmp_path / f"out{kill_at}"
        done = run_code(KILLER, source, out, trained, kill_at)
        assert done.returncode == -signal.SIGKILL, done.stderr
        resumed = fastio.pack(source, out, **options, resume=True)
        assert contents(out) == contents(tmp_path / "expected")
        assert resumed.tokens is not None
        assert report.tokens is not None
        assert resumed.tokens.tokens == report.tokens.tokens
        assert resumed.tokens.empty == report.tokens.empty == texts.count("")


def interrupted(source: Path, out: Path, **options: Any) -> None:
    """A pack of which some shards are finished: the last line is damaged."""
    with open(source, "a") as file:
        file.write("{oh\n")
    with pytest.raises(ShardCorrupt, match="line"):
        fastio.pack(source, out, tokenizer="bytes", shard_size=5000, **options)


def test_changed_files_and_other_tokenizers_are_not_resumed(trained: Path, tmp_path: Path) -> None:
    # Many more units than are packed at a time: some are finished before the damage is seen.
    source = write_jsonl(tmp_path / "t.jsonl", ["x" * 1000] * 300)
    out = tmp_path / "out"
    interrupted(source, out)
    assert list(out.glob("shard-*"))
    with pytest.raises(PackError, match="tokens was"):
        fastio.pack(source, out, tokenizer=trained, shard_size=5000, resume=True)
    os.utime(source, ns=(1, 1))
    with pytest.raises(PackError, match="has changed"):
        fastio.pack(source, out, tokenizer="bytes", shard_size=5000, resume=True)


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ('{"text": "a"', ShardCorrupt, r"t.jsonl line 3 is not JSON"),
        ("[1]", ShardCorrupt, r"t.jsonl line 3: expected a JSON object"),
        ('{"text": null}', SchemaError, r"t.jsonl line 3: 'text' is null"),
        ('{"text": 5}', SchemaError, r"t.jsonl line 3: 'text' is 5, expected a string"),
        ('{"other": "a"}', SchemaError, r"t.jsonl line 3 has no 'text'; it has other"),
        ('{"text": "\\ud800"}', SchemaError, r"t.jsonl line 3.*UTF-8"),
    ],
)
def test_bad_lines_are_named(
    tmp_path: Path, line: str, error: type[Exception], message: str
) -> None:
    source = tmp_path / "t.jsonl"
    source.write_text(f'{{"text": "a"}}\n\n{line}\n{{"text": "b"}}\n')
    with pytest.raises(error, match=message):
        fastio.pack(source, tmp_path / "out", tokenizer="bytes")


def test_a_bad_line_far_down_is_named(tmp_path: Path) -> None:
    source = tmp_path / "t.jsonl"
    lines = [json.dumps({"text": "y" * 99})] * 60_000
    lines[54_320] = '{"text": "'
    source.write_text("\n".join(lines))
    with pytest.raises(ShardCorrupt, match=r"t.jsonl line 54321 is not JSON"):
        fastio.pack(source, tmp_path / "out", tokenizer="bytes")


def test_text_that_is_null_or_no_utf8_is_named(tmp_path: Path) -> None:
    pa_parquet.write_table(pa.table({"text": ["a", None]}), tmp_path / "t.parquet")
    with pytest.raises(SchemaError, match=r"t.parquet: column 'text', row 1: the text is null"):
        fastio.pack(tmp_path / "t.parquet", tmp_path / "out", tokenizer="bytes")
    (tmp_path / "t.txt").write_bytes(b"good\nbad \xff\n")
    with pytest.raises(ShardCorrupt, match=r"t.txt line 2 is not UTF-8"):
        fastio.pack(tmp_path / "t.txt", tmp_path / "out", tokenizer="bytes")


def test_a_missing_or_unclear_column_is_named(tmp_path: Path) -> None:
    table = pa.table({"a": ["x"], "b": ["y"], "n": [1]})
    with pytest.raises(SchemaError, match=r"no column 'body'; it has a, b, n"):
        fastio.pack(table, tmp_path / "out", tokenizer="bytes", text_column="body")
    with pytest.raises(SchemaError, match=r"2 other columns of strings \(a, b, n\)"):
        fastio.pack(table, tmp_path / "out", tokenizer="bytes")
    with pytest.raises(SchemaError, match=r"column 'n' is int64, but text must be strings"):
        fastio.pack(table, tmp_path / "out", tokenizer="bytes", text_column="n")
    one = write_jsonl(tmp_path / "1.jsonl", ["a"], label=[1])
    two = write_jsonl(tmp_path / "2.jsonl", ["a"])
    with pytest.raises(SchemaError, match=r"2.jsonl has no column 'label'"):
        fastio.pack([one, two], tmp_path / "out", tokenizer="bytes", columns=["label"])


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with pytest.raises(PackError, match=r"bad.json is not a tokenizer"):
        fastio.pack(["a"], tmp_path / "out", tokenizer=bad)
    with pytest.raises(SourceNotFound, match=r"none.json"):
        fastio.pack(["a"], tmp_path / "out", tokenizer=str(tmp_path / "none.json"))
    with pytest.raises(SourceNotFound, match=r"has no tokenizer.json"):
        fastio.pack(["a"], tmp_path / "out", tokenizer=tmp_path)
    with pytest.raises(PackError, match="'int' is not a tokenizer"):
        fastio.pack(["a"], tmp_path / "out", tokenizer=5)
    with pytest.raises(OptionError, match="pass tokenizer as well"):
        fastio.pack(["a"], tmp_path / "out", separator="none")


def test_the_package_and_the_network_are_named_where_they_are_missing(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from fastio.cli import main; main()"
    command = ["pack", "a.txt", tmp_path / "out", "--tokenizer", "nobody/nothing"]
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = run_code(code, *command, env=environment)
    assert done.returncode == 1
    assert "give the path of its tokenizer.json" in done.stderr
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(PackageMissing, match=r"pip install 'fastio\[tokens\]'"):
        fastio.pack(["a"], tmp_path / "out", tokenizer=trained)


def test_tokens_beyond_the_vocabulary_and_the_type_are_named(trained: Path, tmp_path: Path) -> None:
    def pack(**options: Any) -> None:
        fastio.pack(["short", "a longer one"], tmp_path / "out", **options)

    with pytest.raises(SchemaError, match="uint8 is too small for 300 tokens"):
        pack(tokenizer=trained, dtypes={"tokens": "uint8"})
    with pytest.raises(SchemaError, match=r"begins 'a longer one', but the vocabulary has 0 to 9"):
        pack(tokenizer=lambda text: [len(text)], vocabulary_size=10, separator="none")
    with pytest.raises(SchemaError, match=r"failed on the document that begins 'short': ZeroDiv"):
        pack(tokenizer=lambda text: [1 // 0], vocabulary_size=10, separator="none")
    with pytest.raises(OptionError, match="has 300 tokens, more than vocabulary_size=299"):
        pack(tokenizer=trained, vocabulary_size=299)
    with pytest.raises(OptionError, match="pass vocabulary_size="):
        pack(tokenizer=len)
    with pytest.raises(OptionError, match="pass separator="):
        pack(tokenizer=len, vocabulary_size=10)


def test_separators_that_are_none_are_named(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'<eot>' is not a token of tokenizer.json"):
        fastio.pack(["a"], tmp_path / "out", tokenizer=trained, separator="<eot>")
    with pytest.raises(OptionError, match=r"the separator 300 is not a token"):
        fastio.pack(["a"], tmp_path / "out", tokenizer=trained, separator=300)
    plain = Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(OptionError, match=r"set separator \(--separator\)"):
        fastio.pack(["a"], tmp_path / "out", tokenizer=plain)
    with pytest.raises(OptionError, match="the separator for bytes"):
        fastio.pack(["a"], tmp_path / "out", tokenizer="bytes", separator="</s>")


def test_an_empty_corpus_is_named(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text("\n")
    (tmp_path / "e.txt").write_text("")
    (tmp_path / "folder").mkdir()
    for source in (tmp_path / "e.jsonl", tmp_path / "e.txt", [], iter([]), ["", ""]):
        with pytest.raises(PackError, match="nothing to pack"):
            fastio.pack(source, tmp_path / "out", tokenizer="bytes")
    for source, message in ((tmp_path / "folder", "no text files"), ("x*.txt", "matches no")):
        with pytest.raises(SourceNotFound, match=message):
            fastio.pack(source, tmp_path / "out", tokenizer="bytes")


def test_paths_and_documents_are_not_mixed_up(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="is a path, and 'some text'"):
        fastio.pack(["a.jsonl", "some text"], tmp_path / "out", tokenizer="bytes")
    with pytest.raises(SourceNotFound, match=r"a.jsonl does not exist"):
        fastio.pack(["a.jsonl", "b.txt"], tmp_path / "out", tokenizer="bytes")
    with pytest.raises(PackError, match="is inside the source"):
        fastio.pack([tmp_path], tmp_path / "out", tokenizer="bytes")


def test_samples_that_are_no_text_are_named(tmp_path: Path) -> None:
    def failing() -> Iterator[str]:
        yield "a"
        raise RuntimeError("gone")

    with pytest.raises(SampleError, match="sample 1"):
        fastio.pack(failing(), tmp_path / "out", tokenizer="bytes")
    with pytest.raises(SchemaError, match="sample 1 of list is of type int"):
        fastio.pack(["a", 5], tmp_path / "out", tokenizer="bytes")
    with pytest.raises(OptionError, match="codec can only be used with images"):
        fastio.pack(["a"], tmp_path / "out", tokenizer="bytes", codec="jpeg")


# --- The command line -----------------------------------------------------------------------------


def command(*words: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_commands_pack_and_show_tokens(trained: Path, tmp_path: Path) -> None:
    texts = ["the loader reads", "shards", ""]
    files = [write_jsonl(tmp_path / f"{n}.jsonl", texts, label=[1, 2, 3]) for n in range(2)]
    out = tmp_path / "out"
    words = [*files, out, "--tokenizer", trained, "--columns", "label", "--dtype", "tokens=uint32"]
    report = json.loads(command("pack", *words, "--quiet", "--json"))
    assert report["rows"] == report["tokens"]["documents"] == 4
    assert report["tokens"]["tokens"] == sum(map(len, tokens_of(out)))
    assert report["tokens"]["empty"] == 2
    assert report["tokens"]["tokens_per_second"] > 0
    about = command("info", out)
    assert "Tokens uint32" in about
    assert f"({report['tokens']['tokens']:,} in all" in about
    assert "vocabulary 300, separator 1)" in about
    assert "tokenizer.json, xxh3 " in about
    shown = command("show", out, "--tokenizer", trained)
    assert '"the loader reads<|endoftext|>"' in shown
    assert " ".join(map(str, tokens_of(out)[1])) in shown


def test_several_sources_are_for_tables_and_text(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["pack", "a/", "b/", str(tmp_path / "out")])
    assert done.exit_code == 2
    files = [write_jsonl(tmp_path / f"{n}.jsonl", ["a"]) for n in range(2)]
    assert json.loads(command("pack", *files, tmp_path / "out", "-q", "--json"))["rows"] == 2


def test_images_are_not_printed(tmp_path: Path) -> None:
    fastio.pack([(np.zeros((8, 8, 3), np.uint8), 1)], tmp_path / "images")
    fastio.pack([{"n": 1}], tmp_path / "numbers")
    for name, words, code in (
        ("images", [], 2),
        ("images", ["--tokenizer", "bytes", "--out", "sheet.png"], 2),
        ("numbers", [], 1),
    ):
        done = CliRunner().invoke(main, ["show", str(tmp_path / name), *words])
        assert done.exit_code == code


@pytest.mark.parametrize("ending", ["", "/", "/."])
def test_a_folder_of_a_tokenizer_has_one_name_however_it_is_spelled(
    trained: Path, ending: str
) -> None:
    named = open_encoder(f"{trained.parent}{ending}", separator="none")
    assert named.identity["name"] == trained.parent.name
