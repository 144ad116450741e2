"""Models of text: transformers of DistilBERT's form, and those of the transformers package.

DistilBERT (Sanh et al., arXiv:1910.01108, section 2) is BERT (Devlin et al., arXiv:1810.04805,
section 3) without token types and pooler, with half of its layers. The tiny and the small one have
the widths of Turc et al., arXiv:1908.08962, table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

import fastio
from fastio.train.models.parts import Layer

Head = Literal["AutoModelForSequenceClassification", "AutoModelForCausalLM"]


@dataclass(frozen=True)
class EncoderSize:
    """Width of a token, number of layers and attention heads, longest document."""

    width: int
    depth: int
    heads: int
    max_length: int = 512


ENCODER_SIZES = {
    "tiny": EncoderSize(128, 2, 2),
    "small": EncoderSize(512, 4, 8),
    "distilbert": EncoderSize(768, 6, 12),
}


class Encoder(nn.Module):
    """Tokens (N, L) -> vectors (N, L, width), L at most the size's max_length.

    Args:
        vocabulary_size: Every token is below it.
        size: One of `ENCODER_SIZES`, or another.
        dropout: The dropout of embeddings, attention and layers.
        causal: Whether tokens attend only to those before them, as a language model needs it.
    """

    def __init__(
        self, vocabulary_size: int, size: EncoderSize, dropout: float = 0.1, causal: bool = False
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, size.width)
        self.positions = nn.Embedding(size.max_length, size.width)
        self.norm = nn.LayerNorm(size.width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            Layer(size.width, size.heads, True, dropout, causal) for _ in range(size.depth)
        )
        for module in self.modules():
            # The weights are drawn as in BERT.
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Returns vectors (N, L, width); `mask` (N, L) is 0 at padding, None if there is none."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.words(tokens) + self.positions(places)
        vectors: torch.Tensor = self.dropout(self.norm(embedded))
        keys = None if mask is None else mask.bool()[:, None, None, :]
        for layer in self.layers:
            vectors = layer(vectors, keys)
        return vectors


class TextClassifier(nn.Module):
    """Logits of a document: (N, L) tokens and their mask -> (N, num_classes).

    The head of DistilBERT, applied to the mean vector of the document instead of the vector of the
    first token, because packed tokens need not begin with [CLS].
    """

    def __init__(
        self, num_classes: int, vocabulary_size: int, size: EncoderSize, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary_size, size, dropout)
        self.hidden = nn.Linear(size.width, size.width)
        # DistilBERT has 0.2 before its classifier, and 0.1 elsewhere.
        self.dropout = nn.Dropout(2 * dropout)
        self.classifier = nn.Linear(size.width, num_classes)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        vectors = self.encoder(tokens, mask)
        weights = mask.to(vectors.dtype).unsqueeze(2)
        mean = (vectors * weights).sum(1) / weights.sum(1).clamp(min=1)
        logits: torch.Tensor = self.classifier(self.dropout(torch.relu(self.hidden(mean))))
        return logits


class LanguageModel(nn.Module):
    """Logits of the next token: (N, L) tokens -> (N, L, vocabulary_size).

    The encoder's layers with causal attention; the output's matrix is that of the words (Press and
    Wolf, arXiv:1608.05859).
    """

    def __init__(self, vocabulary_size: int, size: EncoderSize, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = Encoder(vocabulary_size, size, dropout, causal=True)
        self.output = nn.Linear(size.width, vocabulary_size, bias=False)
        self.output.weight = self.encoder.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(self.encoder(tokens))
        return logits


class Pretrained(nn.Module):
    """A model of transformers with the interface of `TextClassifier` or `LanguageModel`.

    Args:
        name: The name of a downloaded model (distilbert-base-uncased), or a folder with one.
        head: The automatic class of transformers that makes it.
        vocabulary_size: The vocabulary size of the data, at most that of the model.
        length: The maximum number of tokens of a document.
        options: Arguments of `from_pretrained`, such as num_labels.

    Raises:
        PackageMissing: transformers is not installed.
        TrainError: the weights are not here or do not fit.
    """

    def __init__(
        self, name: str, head: Head, vocabulary_size: int, length: int, **options: Any
    ) -> None:
        super().__init__()
        try:
            import transformers

            factory = getattr(transformers, head)
        except ImportError as error:
            raise fastio.PackageMissing(
                "transformers", f"make the model {name!r}", "transformers", error
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
