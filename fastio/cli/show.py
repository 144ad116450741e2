"""fastio show: draw a contact sheet of images, or print the first tokens of documents."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastio.cli.common import (
    EXIT_FAILED,
    BadParameter,
    StorageOptions,
    clear_errors,
    complain,
    counted,
    parse_storage_options,
    say,
)
from fastio.errors import SchemaError
from fastio.runtime.files import whole_file

if TYPE_CHECKING:
    from fastio.sources import AnyDataset

_SHOWN_TOKENS = 32  # tokens printed per document
_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def show(
    dst: Annotated[
        str,
        typer.Argument(help="A packed dataset or its URL, an image folder, or WebDataset tars."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Image file to write, for example sheet.png. Tokens are printed instead."
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of samples to show.")] = 24,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed for the choice of samples and for random crops.")
    ] = 0,
    transform: Annotated[
        list[str] | None,
        typer.Option(
            help="Transform to apply, for example 'RandomResizedCrop(224)'; may be repeated, "
            "applied in order."
        ),
    ] = None,
    epoch: Annotated[
        int, typer.Option(min=0, help="Epoch whose random crops are drawn, with --transform.")
    ] = 0,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="bytes|NAME|FILE", help="Tokenizer that made the tokens, to print the text too."
        ),
    ] = None,
    storage_options: StorageOptions = None,
) -> None:
    """Draw samples and their labels on a contact sheet, as stored or as a Loader delivers them.

    For a dataset of tokens, print the beginnings of documents.
    """
    options = parse_storage_options(storage_options)
    if out is None:
        with clear_errors():
            _print_tokens(dst, options, count, seed, tokenizer)
        return
    if tokenizer is not None:
        raise BadParameter("--tokenizer prints tokens as text and cannot be combined with --out")
    if out.suffix.lower() not in _FORMATS:
        raise BadParameter(f"--out must end in {', '.join(_FORMATS)}, got {out}")
    if not out.parent.is_dir():
        complain(f"cannot write {out}: there is no folder {out.parent}")
        raise typer.Exit(EXIT_FAILED)
    steps = [_parse(text) for text in transform or []]
    with clear_errors():
        from fastio.cli.contact_sheet import TILE, contact_sheet
        from fastio.sources import open as open_data

        with open_data(dst, storage_options=options) as dataset:
            field = _image_field(dataset)
            rows = _choose(len(dataset), count, seed)
            images: Iterable[Any] = (dataset.image(field, row, at_least=TILE) for row in rows)
            if steps:
                images = _transformed(dataset, field, rows, steps, seed, epoch)
            sheet = contact_sheet(images, _captions(dataset, rows))
            with whole_file(out) as file:
                sheet.save(file, format=_FORMATS[out.suffix.lower()])
            say(f"{out}: {len(rows)} of {counted(len(dataset), 'sample')}")


def _print_tokens(
    dst: str, storage_options: dict[str, Any] | None, count: int, seed: int, tokenizer: str | None
) -> None:
    """Prints the first tokens of some documents and, with a tokenizer, their text.

    Raises:
        FastioError: as `fastio.open`, or there is no such tokenizer.
        typer.BadParameter: the dataset has images, which need --out.
        SchemaError: the dataset has no tokens.
    """
    import numpy as np

    from fastio.pack.tokens import open_encoder
    from fastio.sources import open as open_data

    with open_data(dst, storage_options=storage_options) as dataset:
        if dataset.schema.image_fields:
            raise BadParameter(
                "--out is needed to show images: it names the file to write, for example --out "
                "sheet.png"
            )
        if not dataset.schema.token_fields:
            raise SchemaError(f"{dataset.path} has neither images nor tokens to show")
        encoder = None if tokenizer is None else open_encoder(tokenizer, "none")
        field = dataset.schema.token_fields[0]
        rows = _choose(len(dataset), count, seed)
        captions = _captions(dataset, rows)
        documents = dataset.gather(field, np.array(rows, np.int64))
    for caption, tokens in zip(captions, documents, strict=True):
        shown = tokens[:_SHOWN_TOKENS]
        more = " ..." if len(shown) < len(tokens) else ""
        say(f"{caption} ({counted(len(tokens), 'token')}) {' '.join(map(str, shown))}{more}")
        if encoder is not None:
            say(f"    {json.dumps(encoder.decode(shown), ensure_ascii=False)}{more}")


def _parse(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Returns the name and arguments of a call such as "Resize((8, 9), interpolation='bicubic')".

    Arguments must be literals; nothing else is evaluated.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return call.id, [], {}
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        arguments = [ast.literal_eval(value) for value in call.args]
        named = {str(value.arg): ast.literal_eval(value.value) for value in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise BadParameter(
            f"--transform must have the form 'RandomResizedCrop(224)', got {text!r}"
        ) from None
    return call.func.id, arguments, named


def _transformed(
    dataset: AnyDataset,
    field: str,
    rows: list[int],
    steps: list[tuple[str, list[Any], dict[str, Any]]],
    seed: int,
    epoch: int,
) -> list[Any]:
    """Returns the rows' images as a Loader with these transforms, seed and epoch delivers them."""
    from fastio import transforms
    from fastio.loader import Loader  # which imports torch

    made = []
    for name, arguments, named in steps:
        kind = getattr(transforms, name, None)
        if kind not in transforms.GEOMETRIC:
            known = ", ".join(sorted(each.__name__ for each in transforms.GEOMETRIC))
            raise BadParameter(f"--transform {name!r} is not one of {known}")
        try:
            made.append(kind(*arguments, **named))
        except TypeError as error:
            raise BadParameter(f"--transform {name}: {error}") from error
    loader = Loader(
        dataset,
        batch_sampler=[rows],
        transforms={field: made},
        fields=[field],
        seed=seed,
        distributed=False,
    )
    with loader:
        loader.set_epoch(epoch)
        batch = next(iter(loader))
    images = batch[field] if isinstance(batch, dict) else batch
    (images,) = images if isinstance(images, tuple) else (images,)
    return [image.permute(1, 2, 0).numpy() for image in images]


def _choose(rows: int, count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(rows), min(count, rows))


def _image_field(dataset: AnyDataset) -> str:
    fields = dataset.schema.image_fields
    if not fields:
        raise SchemaError(f"{dataset.path} has no images to show")
    return fields[0]


def _captions(dataset: AnyDataset, rows: list[int]) -> list[str]:
    """Returns a caption per row: the row number and the values of its Scalar and Text fields."""
    import numpy as np

    from fastio.schema import Scalar, Text

    captions = [str(row) for row in rows]
    separator = ": "
    for name, kind in dataset.schema.fields.items():
        if not isinstance(kind, (Scalar, Text)):
            continue
        words = [str(value) for value in dataset.gather(name, np.array(rows))]
        if dataset.classes and name in ("label", "class"):
            classes = dict(enumerate(dataset.classes))
            words = [classes.get(int(word), word) for word in words]
        captions = [
            f"{caption}{separator}{word}" for caption, word in zip(captions, words, strict=True)
        ]
        separator = ", "
    return captions
