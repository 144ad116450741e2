"""Models of the transformers package, whose weights are on this machine."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

import fastio

Head = Literal["AutoModelForSequenceClassification", "AutoModelForCausalLM"]


class Pretrained(nn.Module):
    """A model of transformers with the interface of `TextClassifier` or `LanguageModel`.

    Args:
        name: of a model that was downloaded before (distilbert-base-uncased), or a folder with one.
        head: which of transformers' automatic classes makes it.
        vocabulary_size: of the tokens that it will be given, at most the model's own.
        length: tokens that it will be given at most.
        options: for `from_pretrained`, such as num_labels.

    Raises:
        TrainError: transformers is not installed, the weights are not here, or do not fit.
    """

    def __init__(
        self, name: str, head: Head, vocabulary_size: int, length: int, **options: Any
    ) -> None:
        super().__init__()
        try:
            import transformers

            factory = getattr(transformers, head)
        except ImportError as error:
            raise fastio.TrainError(
                f"the model {name!r} needs transformers (`pip install transformers`), which "
                f"cannot be imported: {error}"
            ) from error
        try:
            self.model = factory.from_pretrained(name, local_files_only=True, **options)
        except (OSError, ValueError) as error:
            raise fastio.TrainError(
                f"transformers has no model {name!r} for this on this machine. Give a folder that "
                "`save_pretrained` wrote, or download it once with `hf download NAME`; of models "
                f"without transformers there are tiny, small and distilbert. ({error})"
            ) from error
        config = self.model.config
        known, longest = config.vocab_size, getattr(config, "max_position_embeddings", length)
        if vocabulary_size > known:
            raise fastio.TrainError(
                f"the data has a vocabulary of {vocabulary_size:,} tokens, but {name} has "
                f"{known:,}: pack the text with the tokenizer of the model"
            )
        if length > longest:
            raise fastio.TrainError(
                f"{name} supports documents of up to {longest} tokens, got length={length}"
            )

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Tokens (N, L) and their mask -> (N, num_labels), or (N, L, vocabulary)."""
        logits: torch.Tensor = self.model(input_ids=tokens, attention_mask=mask).logits
        return logits
