"""Tables: rows of numbers and ids with a label of two values (as clicks have) or of any.

The data is a packed table, or table files as they are. Numbers and ids are groups of columns
(`dense` and `sparse`), or fields of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

import fastio
from fastio.train.columns import Columns, moments
from fastio.train.labels import Labels
from fastio.train.loaders import opened
from fastio.train.models import TABULAR_MODELS, Scaled
from fastio.train.options import Options, TabularSettings
from fastio.train.parallel import Place
from fastio.train.task import Outcome, Task


def tabular_task(options: Options, settings: TabularSettings | None = None) -> TabularTask:
    """Returns the task for a table.

    Raises:
        TrainError: the table lacks fields, or has ones that cannot be learned from.
    """
    settings = settings or TabularSettings()
    with fastio.Loader(opened(options.data, settings.groups)) as loader:
        schema = loader.dataset.schema
        packed = isinstance(loader.dataset, fastio.Dataset)
    if options.val_split and not packed:
        raise fastio.TrainError(
            "val_split cannot be used with table files in place, whose rows cannot be read in "
            f"any order: use other files as val, or pack them (`fastio pack {options.data} "
            "DESTINATION`)"
        )
    columns = Columns.of(schema.fields, settings.label, settings.dense, settings.sparse)
    if settings.objective == "regression":
        return Regression(options, settings, columns)
    words = isinstance(schema.fields[settings.label], fastio.Text) or schema.vocabularies.get(
        settings.label
    )
    labels = Labels.of(options.data, settings.label) if words else None
    return BinaryClassification(options, settings, columns, labels)


class TabularTask(Task):
    """The common part of both objectives.

    Args:
        options: how to train.
        settings: what is learned.
        columns: the fields that it is learned from.
    """

    name: ClassVar[str] = "tabular"
    unit: ClassVar[str] = "rows"

    def __init__(self, options: Options, settings: TabularSettings, columns: Columns) -> None:
        super().__init__(options)
        self.settings, self.columns = settings, columns

    def reading(self, data: str, place: Place, *, train: bool = False) -> dict[str, Any]:
        fields = [self.settings.label, *self.columns.dense, *self.columns.sparse]
        return {"fields": fields, "opener": partial(opened, groups=self.settings.groups)}

    @cached_property
    def label_scale(self) -> tuple[float, float]:
        """Returns mean and standard deviation of the labels, by which outputs are scaled."""
        return 0.0, 1.0

    def model(self) -> nn.Module:
        dense, sparse = sum(self.columns.dense.values()), sum(self.columns.sparse.values())
        name = self.settings.model or ("dlrm" if dense and sparse else "mlp")
        if name == "dlrm" and not (dense and sparse):
            raise fastio.TrainError(
                f"dlrm needs columns of numbers and of ids, and there are {dense} columns of "
                f"numbers and {sparse} of ids: choose columns with dense and sparse, or use "
                "the model mlp"
            )
        model = TABULAR_MODELS[name](dense, sparse, self.settings.table_rows)
        transform = self.settings.dense_transform
        scale: tuple[Tensor, Tensor] | None = torch.zeros(dense), torch.ones(dense)
        if transform == "log1p":
            scale = None
        elif transform == "standard" and dense:
            data = opened(self.options.data, self.settings.groups)
            scale = moments(data, self.columns.dense, self.columns.numbers)
        return Scaled(model, scale, self.label_scale)

    def outputs(self, model: nn.Module, batch: Any, valid: int) -> Tensor:
        """Returns the model's outputs for a batch: float64 (valid,)."""
        found: Tensor = model(self.columns.numbers(batch), self.columns.ids(batch))
        return found[:valid].double()

    def identity(self) -> dict[str, Any]:
        settings = asdict(self.settings)
        del settings["groups"]
        return settings | {"dense": dict(self.columns.dense), "sparse": dict(self.columns.sparse)}


class BinaryClassification(TabularTask):
    """Labels 0 and 1, or two words in the order of their numbers: cross-entropy, area under the
    ROC curve.

    Args:
        options, settings, columns: as in `TabularTask`.
        labels: the words; None where labels are numbers.

    Raises:
        TrainError: there are not two words.
    """

    metric: ClassVar[str] = "auc"
    greater_is_better: ClassVar[bool] = True

    def __init__(
        self,
        options: Options,
        settings: TabularSettings,
        columns: Columns,
        labels: Labels | None = None,
    ) -> None:
        super().__init__(options, settings, columns)
        if labels is not None and len(labels.words) != 2:
            raise fastio.TrainError(
                f"{options.data}: {labels.field!r} has {len(labels.words)} values, but the "
                "objective binary needs two"
            )
        self.labels = labels

    def reading(self, data: str, place: Place, *, train: bool = False) -> dict[str, Any]:
        numbering = None if self.labels is None else self.labels.numbering(data, place.device)
        reading = super().reading(data, place, train=train)
        if numbering is not None:
            reading["transforms"] = {self.settings.label: fastio.OnBatch(numbering)}
        return reading

    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        logits = self.outputs(model, batch, valid).float()
        labels = batch[self.settings.label][:valid].float()
        loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        wrong = ((labels != 0) & (labels != 1)).sum()
        return Outcome(loss, {"logits": logit_counts(logits.detach(), labels), "wrong": wrong})

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        if sums["wrong"]:
            raise fastio.TrainError(
                f"{self.settings.label!r} is neither 0 nor 1 in {int(sums['wrong']):,} rows: "
                "choose another label, or the objective regression"
            )
        return {"auc": area_under_curve(sums["logits"])}


class Regression(TabularTask):
    """Labels of any size: squared error, in the loss over their variance; its root; R squared."""

    metric: ClassVar[str] = "rmse"
    greater_is_better: ClassVar[bool] = False

    @cached_property
    def label_scale(self) -> tuple[float, float]:
        data = opened(self.options.data, self.settings.groups)
        mean, deviation = moments(data, [self.settings.label], self._labels)
        return float(mean), float(deviation)

    def _labels(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the labels of a batch: float64 (N, 1).

        Raises:
            TrainError: one is no number.
        """
        labels = batch[self.settings.label].double()
        if not labels.isfinite().all():
            raise fastio.TrainError(
                f"{self.options.data}: {self.settings.label!r} is NaN or infinite in "
                f"{int((~labels.isfinite()).sum()):,} of {len(labels):,} rows: leave them out "
                "with `fastio pack --filter`, or predict another field"
            )
        return labels.unsqueeze(1)

    def step(self, model: nn.Module, batch: Any, valid: int) -> Outcome:
        outputs = self.outputs(model, batch, valid)
        labels = batch[self.settings.label][:valid].double()
        squared = (outputs - labels).square().sum()
        sums = {"squared": squared, "label": labels.sum(), "label_squared": labels.square().sum()}
        return Outcome(squared / self.label_scale[1] ** 2, sums)

    def metrics(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        count = sums["count"].clamp(min=1)
        spread = sums["label_squared"] - sums["label"].square() / count
        explained = 1 - float(sums["squared"] / spread) if spread > 0 else 0.0
        return {"rmse": float((sums["squared"] / count).sqrt()), "r2": explained}


# --- Area under the ROC curve ---------------------------------------------------------------------

# Logits are counted in bins of 1 / 512 from -16 to 16; the outer bins have what lies beyond. The
# area is the share of pairs of a positive and a negative row whose positive row has the higher
# logit (Fawcett, "An introduction to ROC analysis", 2006, section 7); pairs within a bin count
# half, so the error is at most half the share of the pairs within a bin.
_LARGEST = 16
_BINS_OF_ONE = 512
BINS = 2 * _LARGEST * _BINS_OF_ONE


def logit_counts(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns float32 (2, BINS): the number of rows of label 0 and 1 with a logit in each bin.

    Args:
        logits: (N,), float; NaN counts in the first bin.
        labels: (N,), 0 or 1.
    """
    bins = ((logits.float() + _LARGEST) * _BINS_OF_ONE).nan_to_num(nan=0.0)
    places = bins.clamp(0, BINS - 1).long() + BINS * (labels > 0.5).long()
    counts = torch.zeros(2 * BINS, device=logits.device)
    return counts.index_add_(0, places, torch.ones_like(counts[:1]).expand(len(places))).view(2, -1)


def area_under_curve(counts: Tensor) -> float:
    """Returns the area, 0.0 to 1.0, from sums of `logit_counts`; 0.5 if all labels are the same."""
    negatives, positives = counts.double()
    pairs = negatives.sum() * positives.sum()
    if not pairs:
        return 0.5
    below = negatives.cumsum(0) - negatives
    return float((positives * (below + negatives / 2)).sum() / pairs)
