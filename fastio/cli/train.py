"""fastio train: complete training loops to run, read and copy."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fastio.cli.common import parse_names, parse_pairs
from fastio.cli.train_options import training

if TYPE_CHECKING:
    from fastio.train import Options, Task

train = typer.Typer(
    help="Train a model. Under torchrun (torchrun --nproc-per-node 8 -m fastio train ...) every "
    "process trains on its part of each batch.",
    no_args_is_help=True,
)


class Objective(str, Enum):
    """The objective of training on text."""

    classify = "classify"
    lm = "lm"


class TabularObjective(str, Enum):
    """The objective of training on tables."""

    binary = "binary"
    regression = "regression"


class DenseTransform(str, Enum):
    """The transform of numeric fields before the model."""

    standard = "standard"
    log1p = "log1p"
    none = "none"


Label = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Field to predict (default: label or class).")
]


@train.command()
@training(batch_size=64)
def image(
    options: Options,
    model: Annotated[
        str,
        typer.Option(
            help="Model: resnet18, resnet50, alexnet, convnet, vit-tiny, vit-small, or a "
            "torchvision model."
        ),
    ] = "resnet18",
    size: Annotated[
        int, typer.Option(min=1, help="Height and width of cropped images, in pixels.")
    ] = 224,
    label: Label = None,
) -> Task:
    """Classify images."""
    from fastio.train.image import ImageSettings, image_task

    return image_task(options, ImageSettings(model, size, label))


@train.command()
@training(batch_size=32)
def text(
    options: Options,
    objective: Annotated[
        Objective | None,
        typer.Option(
            help="Classify documents, or predict the next token (lm). Default: classify if "
            "DATA has a label."
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="Model: tiny, small or distilbert, with random weights; or a transformers "
            "model that is on this machine."
        ),
    ] = "small",
    length: Annotated[
        int, typer.Option(min=1, help="Maximum tokens per document, or tokens per window.")
    ] = 512,
    label: Label = None,
) -> Task:
    """Classify text, or train a language model, on tokens that `fastio pack --tokenizer` made."""
    from fastio.train.text import TextSettings, text_task

    chosen: Literal["classify", "lm"] | None = None
    if objective is not None:
        chosen = "lm" if objective.value == "lm" else "classify"
    return text_task(options, TextSettings(chosen, model, length, label))


@train.command()
@training(batch_size=16_384)
def tabular(
    options: Options,
    objective: Annotated[
        TabularObjective,
        typer.Option(help="Kind of label: two values (binary) or any number (regression)."),
    ] = TabularObjective.binary,
    model: Annotated[
        str | None,
        typer.Option(help="Model: dlrm or mlp (default: dlrm if there are both numbers and ids)."),
    ] = None,
    label: Annotated[str, typer.Option(metavar="FIELD", help="Field to predict.")] = "label",
    dense: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Fields of numbers (default: floats).")
    ] = None,
    sparse: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Fields of ids (default: integers).")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B,...",
            help="Table files: columns that become one array, for example dense=I1..I13; may "
            "be repeated.",
        ),
    ] = None,
    dense_transform: Annotated[
        DenseTransform, typer.Option(help="Transform of the numeric fields before the model.")
    ] = DenseTransform.standard,
    table_rows: Annotated[
        int,
        typer.Option(min=1, help="Rows of each embedding table; ids are taken modulo this number."),
    ] = 100_000,
) -> Task:
    """Train on rows of numbers and ids from a packed table or from table files."""
    from fastio.train.tabular import TabularSettings, tabular_task

    groups = {name: parse_names(given) for name, given in parse_pairs("--group", group).items()}
    settings = TabularSettings(
        objective.value,
        model,
        label,
        None if dense is None else parse_names(dense),
        None if sparse is None else parse_names(sparse),
        dense_transform.value,
        table_rows,
        groups or None,
    )
    return tabular_task(options, settings)
