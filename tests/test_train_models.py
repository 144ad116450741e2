"""The models have the published sizes, take the shapes they promise, and agree with others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fastio.train.models import (
    DLRM,
    ENCODER_SIZES,
    IMAGE_MODELS,
    TABULAR_MODELS,
    EncoderSize,
    HashedEmbeddings,
    LanguageModel,
    TabularMLP,
    TextClassifier,
    VisionTransformer,
)
from tests.support import import_transformers

SMALL = EncoderSize(32, 2, 4, max_length=16)


def parameter_count(model: nn.Module) -> int:
    """The number of trainable parameters; one that layers share counts once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


# torchvision's models of these names have as many, DeiT's tiny and small ViT too.
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("alexnet", 61_100_840),
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("vit-tiny", 5_717_416),
        ("vit-small", 22_050_664),
    ],
)
def test_image_model_has_the_published_number_of_parameters(name: str, count: int) -> None:
    with torch.device("meta"):
        assert parameter_count(IMAGE_MODELS[name](1000, 224)) == count


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("size", [32, 96, 224])
def test_image_model_takes_any_size(name: str, size: int) -> None:
    with torch.device("meta"):
        model = IMAGE_MODELS[name](7, size)
        images = torch.empty(2, 3, size, size).to(memory_format=torch.channels_last)
        assert model(images).shape == (2, 7)


def test_alexnet_says_what_is_too_small() -> None:
    with pytest.raises(ValueError, match="16 pixels"), torch.device("meta"):
        IMAGE_MODELS["alexnet"](10, 8)


def test_vit_says_which_size_its_patches_fit() -> None:
    with pytest.raises(ValueError, match=r"patches of 16.*224"), torch.device("meta"):
        VisionTransformer(10, 230)


def test_resnet_50_has_its_stride_in_the_3x3_and_blocks_begin_as_identity() -> None:
    with torch.device("meta"):
        blocks = IMAGE_MODELS["resnet50"](10, 224).get_submodule("blocks")
        strided = [
            m.kernel_size
            for name, m in blocks.named_modules()
            if isinstance(m, nn.Conv2d) and m.stride == (2, 2) and "residual" in name
        ]
    assert strided == [(3, 3)] * 3
    small = IMAGE_MODELS["resnet18"](10, 32).get_submodule("blocks")
    images = torch.rand(2, 64, 8, 8)
    assert torch.equal(small[0](images), images)  # type: ignore[index]


def test_image_model_is_the_same_in_channels_last() -> None:
    torch.manual_seed(0)
    model = IMAGE_MODELS["resnet18"](5, 32).eval()
    images = torch.rand(2, 3, 32, 32)
    expected = model(images)
    model = model.to(memory_format=torch.channels_last)
    got = model(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_encoder_has_distilberts_number_of_parameters() -> None:
    with torch.device("meta"):
        model = TextClassifier(2, 30_522, ENCODER_SIZES["distilbert"])
    assert parameter_count(model.encoder) == 66_362_880
    assert parameter_count(model) == 66_955_010


def test_language_model_shares_its_words_with_its_output() -> None:
    with torch.device("meta"):
        model = LanguageModel(30_522, ENCODER_SIZES["distilbert"])
    assert parameter_count(model) == 66_362_880


def test_encoder_is_distilbert() -> None:
    """transformers' DistilBERT with the same weights gives the same vectors, padding too."""
    transformers = import_transformers()
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=16
    )
    theirs = transformers.DistilBertModel(config).eval()
    ours = TextClassifier(2, 100, SMALL).encoder.eval()
    weights = theirs.state_dict()
    embeddings = {"words": "word_embeddings", "positions": "position_embeddings"}
    renamed = {
        f"{new}.weight": weights[f"embeddings.{old}.weight"] for new, old in embeddings.items()
    }
    parts = {
        "attention.out": "attention.out_lin",
        "norm_attention": "sa_layer_norm",
        "mlp.0": "ffn.lin1",
        "mlp.2": "ffn.lin2",
        "norm_mlp": "output_layer_norm",
    }
    for kind in ("weight", "bias"):
        renamed[f"norm.{kind}"] = weights[f"embeddings.LayerNorm.{kind}"]
        for layer in range(2):
            old = f"transformer.layer.{layer}"
            for new, name in parts.items():
                renamed[f"layers.{layer}.{new}.{kind}"] = weights[f"{old}.{name}.{kind}"]
            qkv = [weights[f"{old}.attention.{x}_lin.{kind}"] for x in "qkv"]
            renamed[f"layers.{layer}.attention.qkv.{kind}"] = torch.cat(qkv)
    ours.load_state_dict(renamed)
    tokens = torch.randint(0, 100, (3, 16))
    mask = torch.arange(16) < torch.tensor([[16], [7], [1]])
    expected = theirs(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(ours(tokens, mask.long())[mask], expected[mask])


def test_padding_does_not_change_a_documents_logits() -> None:
    torch.manual_seed(0)
    model = TextClassifier(3, 50, SMALL).eval()
    tokens = torch.randint(0, 50, (1, 5))
    alone = model(tokens, torch.ones(1, 5, dtype=torch.int64))
    padded = torch.cat([tokens, torch.full((1, 7), 49)], dim=1)
    mask = torch.cat([torch.ones(1, 5), torch.zeros(1, 7)], dim=1).long()
    torch.testing.assert_close(model(padded, mask), alone)


def test_language_model_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = LanguageModel(50, SMALL).eval()
    tokens = torch.randint(0, 50, (2, 10))
    changed = tokens.clone()
    changed[:, 6:] = torch.randint(0, 50, (2, 4))
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 10, 50)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_hashed_embeddings_take_any_integer(dtype: torch.dtype) -> None:
    model = HashedEmbeddings(2, 10, 4)
    limits = torch.iinfo(torch.int32)
    ids = torch.tensor([[3, 3], [13, -7], [limits.max, limits.min]], dtype=dtype)
    vectors = model(ids)
    table = model.table.weight.view(2, 10, 4)
    assert vectors.shape == (3, 2, 4)
    assert torch.equal(vectors[0], table[[0, 1], [3, 3]])
    assert torch.equal(vectors[1], vectors[0])
    assert torch.equal(vectors[2, 0], table[0, limits.max % 10])
    assert torch.equal(vectors[2, 1], table[1, limits.min % 10])


def test_dlrm_is_the_paper_computed_one_pair_at_a_time() -> None:
    torch.manual_seed(0)
    model = DLRM(4, 3, rows=11, width=5, bottom=(8,), top=(6,))
    dense, sparse = torch.rand(2, 4), torch.randint(0, 1000, (2, 3))
    expected = []
    for row in range(2):
        vectors = [model.bottom(dense[row])]
        for column in range(3):
            place = column * 11 + int(sparse[row, column]) % 11
            vectors.append(model.embeddings.table.weight[place])
        pairs = [vectors[i] @ vectors[j] for i in range(4) for j in range(i)]
        expected.append(model.top(torch.cat([vectors[0], torch.stack(pairs)]))[0])
    torch.testing.assert_close(model(dense, sparse), torch.stack(expected))


@pytest.mark.parametrize(("dense", "sparse"), [(4, 0), (0, 3), (4, 3)])
def test_mlp_takes_numbers_ids_or_both(dense: int, sparse: int) -> None:
    model = TabularMLP(dense, sparse, 11)
    ids = torch.randint(0, 1000, (2, sparse))
    assert model(torch.rand(2, dense), ids).shape == (2,)


@pytest.mark.parametrize("name", TABULAR_MODELS)
def test_tabular_model_says_what_columns_it_lacks(name: str) -> None:
    with pytest.raises(ValueError, match=r"numbers (and of|nor) ids"):
        TABULAR_MODELS[name](0, 0, 10)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: IMAGE_MODELS["alexnet"](5, 32), lambda: (torch.rand(2, 3, 32, 32),)),
        (lambda: IMAGE_MODELS["resnet18"](5, 32), lambda: (torch.rand(2, 3, 32, 32),)),
        (
            lambda: VisionTransformer(5, 32, width=32, depth=2, heads=2),
            lambda: (torch.rand(2, 3, 32, 32),),
        ),
        (
            lambda: TextClassifier(2, 50, SMALL),
            lambda: (torch.randint(0, 50, (2, 8)), torch.ones(2, 8)),
        ),
        (lambda: LanguageModel(50, SMALL), lambda: (torch.randint(0, 50, (2, 8)),)),
        (lambda: DLRM(4, 3, 10), lambda: (torch.rand(2, 4), torch.randint(0, 99, (2, 3)))),
        (lambda: TabularMLP(4, 3, 10), lambda: (torch.rand(2, 4), torch.randint(0, 99, (2, 3)))),
    ],
    ids=["alexnet", "resnet18", "vit", "classifier", "language", "dlrm", "mlp"],
)
def test_model_compiles_to_one_graph(
    make: Callable[[], nn.Module], inputs: Callable[[], tuple[torch.Tensor, ...]]
) -> None:
    torch.manual_seed(0)
    model = make().eval()
    given = inputs()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given), model(*given))
