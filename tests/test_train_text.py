"""Documents are classified, language is modelled, and metrics are those of plain arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import fastio
from fastio.train import Options
from fastio.train.fields import Labels
from fastio.train.kinds import text_task
from fastio.train.loop import fit
from fastio.train.models import ENCODER_SIZES, EncoderSize, LanguageModel, TextClassifier
from fastio.train.options import TextSettings
from fastio.train.parallel import Process
from tests.support import import_transformers

PROCESS = Process(torch.device("cpu"))
TINY = TextSettings(model="tiny", length=64)


@pytest.fixture(autouse=True)
def _smaller_than_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODER_SIZES, "tiny", EncoderSize(32, 1, 2))


def write(path: Path, documents: int, seed: int) -> None:
    """Documents of 3 to 30 words, of which those of one class have others than those of the other;
    `sentiment` are words, `stars` the integers 1 and 5."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(documents):
        good = bool(rng.integers(2))
        words = rng.choice(["zz", "xx"] if good else ["qq", "jj"], rng.integers(3, 30))
        label = {"sentiment": "good" if good else "bad", "stars": 5 if good else 1}
        lines.append(json.dumps({"text": " ".join(words), **label}))
    path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    for name, documents, seed in (("train", 300, 0), ("val", 61, 1)):
        write(folder / f"{name}.jsonl", documents, seed)
        fastio.pack(
            folder / f"{name}.jsonl",
            folder / name,
            tokenizer="bytes",
            columns=["sentiment", "stars"],
        )
    return folder


def options(folder: Path, **changes: Any) -> Options:
    made = Options(
        data=str(folder / "train"),
        val=str(folder / "val"),
        epochs=2,
        batch_size=16,
        lr=0.01,
        threads=1,
        device="cpu",
    )
    return replace(made, **changes)


@pytest.mark.parametrize("label", ["sentiment", "stars"])
def test_documents_are_classified(folder: Path, label: str) -> None:
    run = options(folder)
    task = text_task(run, replace(TINY, label=label))
    assert isinstance(task.model(), TextClassifier)
    result = fit(task, run)
    assert result.best == result.history[-1]["val"]["accuracy"] == 1.0


def test_a_language_is_modelled(folder: Path) -> None:
    """Of the 257 tokens ten come at all, and of two of them one decides the next."""
    run = options(folder)
    task = text_task(run, replace(TINY, length=32))
    assert isinstance(task.model(), LanguageModel)
    result = fit(task, run)
    assert result.best is not None
    assert result.best < 4


def test_label_is_what_decides_the_objective(folder: Path, tmp_path: Path) -> None:
    assert text_task(options(folder), TINY).metric == "perplexity"
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}')
    fastio.pack(tmp_path / "a.jsonl", tmp_path / "a", tokenizer="bytes", columns=["label"])
    labelled = Options(data=str(tmp_path / "a"))
    assert text_task(labelled, TINY).metric == "accuracy"
    assert text_task(labelled, replace(TINY, objective="lm")).metric == "perplexity"
    with pytest.raises(fastio.OptionError, match=r"label_smoothing .* not for a language model"):
        text_task(replace(labelled, label_smoothing=0.1), replace(TINY, objective="lm"))


def evaluated(task: Any, model: torch.nn.Module, batch_size: int, world_size: int) -> Any:
    """The sums of `val` over all ranks, and the number of units."""
    sums = {"loss": torch.zeros((), dtype=torch.float64), "count": 0}
    for rank in range(world_size):
        place = Process(torch.device("cpu"), "ddp", rank, world_size)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(world_size))
            with task.val_loader(place) as loader:
                for batch in loader:
                    valid = loader.batch.valid
                    outcome = task.step(model, batch, valid)
                    found = {"loss": outcome.loss, **outcome.sums}
                    for name, value in found.items():
                        sums[name] = sums.get(name, 0) + value.detach().double()
                    sums["count"] += task.count(batch, valid)
    return {name: torch.as_tensor(value) for name, value in sums.items()}


@pytest.mark.parametrize("world_size", [1, 3])
def test_evaluation_of_documents_is_one_at_a_time(folder: Path, world_size: int) -> None:
    """61 documents in batches of 10: padding, ranks with rows that repeat others, cut documents."""
    torch.manual_seed(0)
    task = text_task(options(folder, val_batch_size=10), replace(TINY, label="sentiment"))
    model = task.model().eval()
    losses, correct = [], []
    with fastio.open(folder / "val") as dataset:
        for sample in dataset:
            tokens = torch.from_numpy(sample["tokens"].astype(np.int64))[None, :64]
            logits = model(tokens, torch.ones_like(tokens))[0].detach().double().numpy()
            label = ["bad", "good"].index(sample["sentiment"])
            losses.append(np.logaddexp.reduce(logits) - logits[label])
            correct.append(logits.argmax() == label)
    sums = evaluated(task, model, 10, world_size)
    assert sums["count"] == 61
    assert float(sums["loss"]) == pytest.approx(sum(losses), rel=1e-5)
    assert task.metrics(sums) == {"accuracy": pytest.approx(np.mean(correct))}


@pytest.mark.parametrize("world_size", [1, 2])
def test_evaluation_of_a_language_model_is_one_token_at_a_time(
    folder: Path, world_size: int
) -> None:
    torch.manual_seed(0)
    task = text_task(options(folder, val_batch_size=7), replace(TINY, length=16))
    model = task.model().eval()
    with fastio.open(folder / "val") as dataset:
        text = np.concatenate([sample["tokens"] for sample in dataset]).astype(np.int64)
    windows = (len(text) - 1) // 16
    losses = []
    for window in range(windows):
        tokens = text[16 * window : 16 * window + 17]
        logits = model(torch.from_numpy(tokens[None, :-1]))[0].detach().double().numpy()
        for place, target in enumerate(tokens[1:]):
            losses.append(np.logaddexp.reduce(logits[place]) - logits[place, target])
    sums = evaluated(task, model, 7, world_size)
    assert windows % (7 * world_size)
    assert sums["count"] == len(losses)
    assert float(sums["loss"]) == pytest.approx(sum(losses), rel=1e-5)
    assert task.metrics(sums) == {"perplexity": pytest.approx(np.exp(np.mean(losses)), rel=1e-5)}


def test_rates_are_of_tokens(folder: Path) -> None:
    documents = text_task(options(folder), replace(TINY, label="stars"))
    assert documents.size({"input_ids": torch.zeros(5, 24)}, 4) == 4 * 24
    language = text_task(options(folder), TINY)
    assert language.size({"inputs": torch.zeros(5, 64)}, 4) == 4 * 64


def test_labels_count_by_their_words(tmp_path: Path) -> None:
    """Vocabularies that number words otherwise, strings, and integers that are no class numbers."""
    schema = fastio.Schema(
        {"label": fastio.Scalar("int32"), "word": fastio.Text(), "stars": fastio.Scalar("int8")},
        vocabularies={"label": ("no", "yes", "maybe")},
    )
    other = replace(schema, vocabularies={"label": ("maybe", "no")})
    for name, kind, rows in (
        ("a", schema, [(0, "no", 1), (1, "yes", 3), (2, "maybe", 5)]),
        ("b", other, [(0, "maybe", 5), (1, "no", 1)]),
    ):
        with fastio.Writer(tmp_path / name, kind) as writer:
            for row in rows:
                writer.write(dict(zip(kind.fields, row, strict=True)))
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    label = Labels.of(first, "label")
    assert label.words == ("no", "yes", "maybe")
    assert label.numbering(first, PROCESS.device) is None
    to_first = label.numbering(second, PROCESS.device)
    assert to_first is not None
    assert to_first(torch.tensor([0, 1, 0], dtype=torch.int32)).tolist() == [2, 0, 2]
    word = Labels.of(first, "word")
    assert word.words == ("maybe", "no", "yes")
    numbers = word.numbering(second, PROCESS.device)
    assert numbers is not None
    assert numbers(["no", "maybe"]).tolist() == [1, 0]
    stars = Labels.of(first, "stars")
    numbers = stars.numbering(second, PROCESS.device)
    assert numbers is not None
    assert numbers(torch.tensor([5, 1], dtype=torch.int8)).tolist() == [2, 0]
    with pytest.raises(fastio.TrainError, match="'yes', which is not a class of the training"):
        Labels.of(second, "label").numbering(first, PROCESS.device)


def test_labels_that_are_no_classes_are_errors(tmp_path: Path) -> None:
    schema = fastio.Schema({"same": fastio.Text(), "weight": fastio.Scalar("float32")})
    with fastio.Writer(tmp_path / "x", schema) as writer:
        for weight in (0.5, 1.5):
            writer.write({"same": "a", "weight": weight})
    for field, message in (
        ("same", "'a' in every row"),
        ("weight", "float32"),
        ("kind", "no field 'kind'; its fields are same, weight"),
    ):
        with pytest.raises(fastio.TrainError, match=message):
            Labels.of(str(tmp_path / "x"), field)


def test_data_without_samples_has_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    pq.write_table(pa.table({"word": pa.array([], pa.string())}), path)
    with pytest.raises(fastio.TrainError, match=r"none\.parquet has no samples"):
        Labels.of(str(path), "word")


def test_the_data_of_the_labels_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = str(folder / "train")
    labels = [Labels.of(data, field) for field in ("sentiment", "stars")]
    monkeypatch.setattr("fastio.train.fields.fastio.Loader", lambda *_, **__: pytest.fail("read"))
    monkeypatch.setattr("fastio.train.fields.fastio.open", lambda *_, **__: pytest.fail("read"))
    for own in labels:
        assert own.numbering(data, PROCESS.device) is not None


def test_text_that_is_not_packed_says_how_to_pack_it(folder: Path) -> None:
    with pytest.raises(fastio.TrainError, match="fastio pack TEXT DESTINATION --tokenizer"):
        text_task(options(folder, data=str(folder / "train.jsonl")))


def save_distilbert(path: Path, vocabulary_size: int) -> None:
    transformers = import_transformers()
    config = transformers.DistilBertConfig(
        vocab_size=vocabulary_size,
        dim=32,
        n_layers=1,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=64,
    )
    transformers.DistilBertForSequenceClassification(config).save_pretrained(path)


def test_model_of_transformers_is_fine_tuned(folder: Path, tmp_path: Path) -> None:
    save_distilbert(tmp_path, 257)
    run = options(folder)
    task = text_task(run, replace(TINY, model=str(tmp_path), label="sentiment"))
    assert task.lr == 5e-5
    result = fit(task, run)
    assert result.best == 1.0


@pytest.mark.parametrize(
    ("vocabulary_size", "length", "message"),
    [(100, 64, "pack the text with the tokenizer of the model"), (257, 65, "up to 64 tokens")],
)
def test_model_of_transformers_must_fit(
    folder: Path, tmp_path: Path, vocabulary_size: int, length: int, message: str
) -> None:
    save_distilbert(tmp_path, vocabulary_size)
    settings = TextSettings(model=str(tmp_path), length=length, label="sentiment")
    with pytest.raises(fastio.TrainError, match=message):
        text_task(options(folder), settings).model()


def test_model_that_is_not_here_says_what_to_do(folder: Path) -> None:
    import_transformers()
    settings = TextSettings(model="no/such-model", label="sentiment")
    with pytest.raises(fastio.TrainError, match=r"save_pretrained.*hf download"):
        text_task(options(folder), settings).model()


def test_model_has_positions_for_the_length(folder: Path) -> None:
    run = options(folder)
    model = text_task(run, TextSettings(model="tiny", length=600, label="stars")).model()
    tokens = torch.zeros(1, 600, dtype=torch.int64)
    assert model(tokens, torch.ones_like(tokens)).shape == (1, 2)
