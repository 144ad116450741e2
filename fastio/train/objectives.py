"""What a model learns: the loss of a batch and the metrics of an epoch, both made from sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

import fastio


@dataclass(frozen=True)
class Outcome:
    """The result of a batch as sums, so that batches of different sizes are added up correctly.

    Attributes:
        loss: Scalar, the SUM of the losses of what counts in the batch; `Task.count` is how many
            these are. The loop divides by that of all batches and processes of a step.
        sums: Tensors (of any shape) that add up over batches to what the metrics are made of; not
            differentiated.
    """

    loss: Tensor
    sums: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Objective:
    """A loss with its metrics.

    Attributes:
        metric: The key of the metrics that decides what is best and when to stop early.
        greater_is_better: Whether a higher metric is the better one.
        outcome: (outputs, targets, whether in training) -> the outcome of the samples that count.
        metrics: The float64 CPU sums of `Outcome.sums`, and "loss" and "count" -> metrics by name.
    """

    metric: str
    greater_is_better: bool
    outcome: Callable[[Tensor, Tensor, bool], Outcome]
    metrics: Callable[[Mapping[str, Tensor]], dict[str, float]]


def classification(smoothing: float = 0.0) -> Objective:
    """Returns cross-entropy and accuracy; labels are smoothed in training only."""
    return Objective(
        "accuracy",
        True,
        lambda scores, labels, training: classified(
            scores, labels, len(labels), smoothing if training else 0.0
        ),
        accuracy,
    )


def classified(scores: Tensor, labels: Tensor, valid: int, smoothing: float = 0.0) -> Outcome:
    """Returns the summed cross-entropy and the correct answers of the first `valid` samples.

    The scores are (N, classes). An answer is correct if the label has the highest score. Labels are
    int64 (N,), or probabilities, float32 (N, classes); the most probable class is then the label.
    """
    scores, labels = scores[:valid].float(), labels[:valid]
    loss = functional.cross_entropy(scores, labels, reduction="sum", label_smoothing=smoothing)
    numbers = labels.argmax(1) if labels.ndim == 2 else labels
    return Outcome(loss, {"correct": (scores.argmax(1) == numbers).sum()})


def accuracy(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Returns the metric of the sums of `classified`, 0.0 to 1.0."""
    return {"accuracy": float(sums["correct"] / sums["count"].clamp(min=1))}


def next_token() -> Objective:
    """Returns cross-entropy of logits (N, L, vocabulary) and tokens (N, L), and perplexity."""

    def outcome(logits: Tensor, targets: Tensor, training: bool) -> Outcome:
        flat = logits.float().flatten(0, 1)
        return Outcome(functional.cross_entropy(flat, targets.flatten(), reduction="sum"))

    def metrics(sums: Mapping[str, Tensor]) -> dict[str, float]:
        mean = float(sums["loss"] / sums["count"].clamp(min=1))
        return {"perplexity": math.exp(min(mean, 700))}

    return Objective("perplexity", False, outcome, metrics)


def binary(label: str) -> Objective:
    """Returns cross-entropy of logits and labels 0 and 1 (N,), and the area under the ROC curve.

    The metrics raise TrainError if there are other labels in the field `label`.
    """

    def outcome(outputs: Tensor, labels: Tensor, training: bool) -> Outcome:
        logits, labels = outputs.float(), labels.float()
        loss = functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        wrong = ((labels != 0) & (labels != 1)).sum()
        return Outcome(loss, {"logits": logit_counts(logits.detach(), labels), "wrong": wrong})

    def metrics(sums: Mapping[str, Tensor]) -> dict[str, float]:
        if sums["wrong"]:
            raise fastio.TrainError(
                f"{label!r} is neither 0 nor 1 in {int(sums['wrong']):,} rows: choose another "
                "label, or the objective regression"
            )
        return {"auc": area_under_curve(sums["logits"])}

    return Objective("auc", True, outcome, metrics)


def regression(deviation: float) -> Objective:
    """Returns the squared error of outputs and labels (N,), its root, and R squared.

    Args:
        deviation: Standard deviation of the labels, whose square the loss is divided by.
    """

    def outcome(outputs: Tensor, labels: Tensor, training: bool) -> Outcome:
        labels = labels.double()
        squared = (outputs.double() - labels).square().sum()
        sums = {"squared": squared, "label": labels.sum(), "label_squared": labels.square().sum()}
        return Outcome(squared / deviation**2, sums)

    def metrics(sums: Mapping[str, Tensor]) -> dict[str, float]:
        count = sums["count"].clamp(min=1)
        spread = sums["label_squared"] - sums["label"].square() / count
        explained = 1 - float(sums["squared"] / spread) if spread > 0 else 0.0
        return {"rmse": float((sums["squared"] / count).sqrt()), "r2": explained}

    return Objective("rmse", False, outcome, metrics)


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
