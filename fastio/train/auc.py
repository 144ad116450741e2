"""The area under the ROC curve from counts that add up over batches and processes.

Logits are counted in bins of 1 / 512 from -16 to 16, the outer bins having what lies beyond. The
area is the share of pairs of a positive and a negative row whose positive one has the higher logit
(Fawcett, "An introduction to ROC analysis", 2006, section 7); pairs within a bin count half. So it
is that of logits rounded to 1 / 512, and wrong by half the share of the pairs within a bin at most.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
