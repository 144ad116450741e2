"""Text: documents that are classified, as DistilBERT is fine-tuned on IMDB, or language models.

The data is text that `fastio pack` made tokens of. Documents are padded to the longest of a batch
of similar lengths; language models are given windows of one length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

import fastio
from fastio.train.labels import Labels
from fastio.train.models import ENCODER_SIZES, EncoderSize, LanguageModel, TextClassifier
from fastio.train.models.pretrained import Pretrained
from fastio.train.options import Options, TextSettings
from fastio.train.parallel import Place
from fastio.train.task import Outcome, Task, accuracy

_POOL = 50  # batches whose documents are sorted by length together


def text_task(options: Options, settings: TextSettings | None = None) -> TextTask:
    """Returns the task for a dataset of tokens.

    Raises:
        TrainError: the data has no tokens, or not the label.
    """
    settings = settings or TextSettings()
    with fastio.Loader(options.data) as loader:
        schema = getattr(loader.dataset, "schema", None)
    if schema is None or not schema.token_fields:
        raise fastio.TrainError(
            f"{options.data} has no tokens: create them from text with `fastio pack TEXT "
            "DESTINATION --tokenizer bytes` (or another tokenizer), and --columns label for "
            "the target; to pack arrays of integers as tokens, use a schema with "
            "fastio.Tokens('uint32')"
        )
    field = schema.token_fields[0]
    label = settings.label or next((n for n in ("label", "class") if n in schema.fields), None)
    if (settings.objective or ("lm" if label is None else "classify")) == "lm":
        return LanguageModelling(options, settings, field, schema.fields[field])
    labels = Labels.of(options.data, label or "label")
    kind = TextClassification if settings.model in ENCODER_SIZES else FineTuning
    return kind(options, settings, field, schema.fields[field], labels)


class TextTask(Task):
    """The common part of classification and language modelling.

    Args:
        options: how to train.
        settings: what is learned.
        field: the data's field of tokens.
        tokens: what they are.

    Raises:
        TrainError: the data does not tell how large its vocabulary is.
    """

    name = "text"
    unit = "tokens"
    lr = 5e-4

    def __init__(
        self, options: Options, settings: TextSettings, field: str, tokens: fastio.Tokens
    ) -> None:
        super().__init__(options)
        self.settings, self.field = settings, field
        most = {"uint8": 1 << 8, "uint16": 1 << 16}.get(tokens.dtype)
        vocabulary_size = tokens.vocabulary_size or most
        if vocabulary_size is None:
            raise fastio.TrainError(
                f"{options.data} does not have a vocabulary size: pack it with a tokenizer"
            )
        self.vocabulary_size = vocabulary_size

    @property
    def encoder_size(self) -> EncoderSize:
        """Returns the size of a new encoder, with positions for `length` tokens, at least 512."""
        size = ENCODER_SIZES[self.settings.model]
        return replace(size, max_length=max(size.max_length, self.settings.length))

    def identity(self) -> dict[str, Any]:
        return {**asdict(self.settings), "vocabulary_size": self.vocabulary_size}


class TextClassification(TextTask):
    """Classification of documents: cross-entropy and accuracy. Throughput includes padding tokens.

    With `val_split` documents are not put into batches by their lengths.
    """

    metric = "accuracy"
    greater_is_better = True

    def __init__(
        self,
        options: Options,
        settings: TextSettings,
        field: str,
        tokens: fastio.Tokens,
        labels: Labels,
    ) -> None:
        super().__init__(options, settings, field, tokens)
        self.labels = labels

    def model(self) -> nn.Module:
        return TextClassifier(len(self.labels.words), self.vocabulary_size, self.encoder_size)

    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        logits = model(batch["input_ids"], batch["attention_mask"])[:valid].float()
        labels = batch[self.labels.field][:valid].long()
        smoothing = self.options.label_smoothing if model.training else 0.0
        loss = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        return Outcome(loss, {"correct": (logits.argmax(1) == labels).sum()})

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        return accuracy(sums)

    def size(self, batch: Any, valid: int) -> int:
        return valid * int(batch["input_ids"].shape[1])

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "classes": len(self.labels.words)}

    def reading(self, data: str, place: Place, *, train: bool = False) -> dict[str, Any]:
        numbering = self.labels.numbering(data, place.device)
        opener = partial(
            fastio.TokenPad, max_length=self.settings.length, field=self.field, pool=_POOL
        )
        if numbering is None:
            return {"opener": opener}
        return {"opener": opener, "transforms": {self.labels.field: fastio.OnBatch(numbering)}}


class FineTuning(TextClassification):
    """Classification of documents with a pretrained model of transformers."""

    lr = 5e-5

    def model(self) -> nn.Module:
        return Pretrained(
            self.settings.model,
            "AutoModelForSequenceClassification",
            self.vocabulary_size,
            self.settings.length,
            num_labels=len(self.labels.words),
        )


class LanguageModelling(TextTask):
    """Prediction of each token of a window from those before it: cross-entropy and perplexity."""

    metric = "perplexity"
    greater_is_better = False

    def model(self) -> nn.Module:
        name, length = self.settings.model, self.settings.length
        if name not in ENCODER_SIZES:
            return Pretrained(name, "AutoModelForCausalLM", self.vocabulary_size, length)
        return LanguageModel(self.vocabulary_size, self.encoder_size)

    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        logits = model(batch["inputs"])[:valid].float()
        targets = batch["targets"][:valid]
        return Outcome(
            functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        )

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        return {"perplexity": math.exp(min(float(sums["loss"] / sums["count"].clamp(min=1)), 700))}

    def count(self, batch: Any, valid: int) -> int:
        return valid * self.settings.length

    def size(self, batch: Any, valid: int) -> int:
        return valid * self.settings.length

    def reading(self, data: str, place: Place, *, train: bool = False) -> dict[str, Any]:
        length = self.settings.length
        return {"opener": partial(fastio.TokenWindows, length=length, field=self.field)}
