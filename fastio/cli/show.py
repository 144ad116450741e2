"""fastio show: draw a contact sheet of images, or print the first tokens of documents."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typer import BadParameter

from fastio.cli.command import Given, Output, Written, command
from fastio.cli.parsing import parse_calls
from fastio.errors import SchemaError, SourceNotFound
from fastio.runtime.files import whole_file
from fastio.runtime.sizes import counted
from fastio.schema import Scalar, Text
from fastio.sources import open as open_data

if TYPE_CHECKING:
    from fastio.packed.rows import Rows


def _transform(name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Returns a transform, given its name and arguments."""
    from fastio import transforms

    known = {
        name: kind
        for name, kind in vars(transforms).items()
        if isinstance(kind, type) and issubclass(kind, transforms.NATIVE)
    }
    if name not in known:
        raise BadParameter(f"{name!r} is not one of {', '.join(sorted(known))}")
    try:
        return known[name](*arguments, **named)
    except TypeError as error:
        raise BadParameter(f"{name}: {error}") from error


_SHOWN_TOKENS = 32  # tokens printed per document
_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_WRITTEN = {
    "epoch": Written(least=0),
    "tokenizer": Written(metavar="bytes|NAME|FILE"),
    "transforms": Written(
        "transform",
        "TRANSFORM",
        "May be repeated.",
        many=True,
        parse=partial(parse_calls, make=_transform),
    ),
}


@command(written=_WRITTEN)
def show(
    source: str,
    out: Path | None = None,
    count: int = 24,
    seed: int = 0,
    transforms: Sequence[Any] = (),
    epoch: int = 0,
    tokenizer: str | None = None,
    version: int | None = None,
    split: str | None = None,
    config: str | None = None,
    roots: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Output:
    """Draw samples and their labels on a contact sheet, as stored or as a Loader delivers them.

    For a dataset of tokens, print the beginnings of documents.

    Args:
        source: A packed dataset, an image folder, or WebDataset tars, or the URL of one of these.
        out: Image file to write, for example sheet.png. Tokens are printed instead.
        count: Number of samples to show.
        seed: Seed for the choice of samples and for random crops.
        transforms: Transform to apply, for example 'RandomResizedCrop(224)'; several are applied
            in order.
        epoch: Epoch whose random crops are drawn, with --transform.
        tokenizer: Tokenizer that made the tokens, to print the text too.
        version: Version of a packed dataset, as listed by `fastio info`. By default, the newest.
        split: Name of the split of data with the layout of the Hugging Face Hub, if it has several.
        config: Name of its configuration, if it has several.
        roots: For a save_to_disk directory: another folder, besides its own, in which the files
            that it names may lie.
    """
    if out is not None:
        _check_out(out, tokenizer)
    options: Given = {
        "storage_options": storage_options,
        "split": split,
        "config": config,
        "roots": roots or None,
    }
    with open_data(source, version=version, **options) as dataset:
        rows = random.Random(seed).sample(range(len(dataset)), min(count, len(dataset)))
        if out is None:
            return _tokens(dataset, rows, tokenizer)
        field = _image_field(dataset)
        captions = _captions(dataset, rows)
        images = _images(dataset, field, rows, transforms or (), seed, epoch)
        if field in dataset.schema.list_fields:
            images, captions = _each(images, captions)
        _draw(out, images, captions)
        text = f"{out}: {len(rows)} of {counted(len(dataset), 'samples')}"
        return Output({"out": str(out), "rows": rows, "samples": len(dataset)}, [text])


def _check_out(out: Path, tokenizer: str | None) -> None:
    """Raises an error if no contact sheet can be written to a path."""
    if tokenizer is not None:
        raise BadParameter(
            "it prints tokens as text, and cannot be combined with --out", param_hint="--tokenizer"
        )
    if out.suffix.lower() not in _FORMATS:
        raise BadParameter(f"it must end in {', '.join(_FORMATS)}, got {out}", param_hint="--out")
    if not out.parent.is_dir():
        raise SourceNotFound(f"cannot write {out}: there is no folder {out.parent}")


def _image_field(dataset: Rows) -> str:
    fields = dataset.schema.pictured
    if not fields:
        raise SchemaError(f"{dataset.path} has no images to show: leave out --out to print tokens")
    return fields[0]


def _each(lists: Iterable[Any], captions: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Returns the images of lists one after the other, with a caption for each.

    Raises:
        SchemaError: All lists are empty.
    """
    found = [
        (image, f"{caption} [{index}]")
        for images, caption in zip(lists, captions, strict=True)
        for index, image in enumerate(images)
    ]
    if not found:
        raise SchemaError("the lists of images that were chosen are empty: show more with --count")
    return [image for image, _ in found], [caption for _, caption in found]


def _draw(out: Path, images: Iterable[Any], captions: Sequence[str]) -> None:
    from fastio.cli.contact_sheet import contact_sheet

    sheet = contact_sheet(images, captions)
    with whole_file(out) as file:
        sheet.save(file, format=_FORMATS[out.suffix.lower()])


def _images(
    dataset: Rows,
    field: str,
    rows: list[int],
    transforms: Sequence[Any],
    seed: int,
    epoch: int,
) -> Iterable[Any]:
    """Returns the rows' images, or what a Loader with transforms, seed and epoch delivers.

    Each is a list of images if the field holds lists.
    """
    from fastio.cli.contact_sheet import TILE

    is_list = field in dataset.schema.list_fields
    if not transforms:
        read = dataset.images if is_list else dataset.image
        return (read(field, row, at_least=TILE) for row in rows)
    from fastio.loader import Loader  # which imports torch

    with Loader(
        dataset,
        batch_sampler=[rows],
        transforms={field: [*transforms]},
        fields=[field],
        seed=seed,
        distributed=False,
        # Images may have any size, and lists of images any length.
        ragged="list",
    ) as loader:
        loader.set_epoch(epoch)
        batch = next(iter(loader))
    images = batch[field] if isinstance(batch, dict) else batch
    (images,) = images if isinstance(images, tuple) else (images,)
    if is_list:
        return [[image.permute(1, 2, 0).numpy() for image in each] for each in images]
    return [image.permute(1, 2, 0).numpy() for image in images]


def _tokens(dataset: Rows, rows: list[int], tokenizer: str | None) -> Output:
    """Returns the first tokens of documents and, with a tokenizer, their text.

    Raises:
        BadParameter: The dataset has images, which need --out.
        SchemaError: The dataset has no tokens.
        FastioError: There is no such tokenizer.
    """
    from fastio.pack.tokens.encoders import open_encoder

    if dataset.schema.pictured:
        raise BadParameter(
            "it is needed to show images: give the file to write, for example --out sheet.png",
            param_hint="--out",
        )
    if not dataset.schema.token_fields:
        raise SchemaError(
            f"{dataset.path} has neither images nor tokens to show; `fastio info` describes it"
        )
    encoder = None if tokenizer is None else open_encoder(tokenizer, "none")
    documents = dataset.gather(dataset.schema.token_fields[0], np.array(rows, np.int64))
    lines, values = [], []
    for row, caption, tokens in zip(rows, _captions(dataset, rows), documents, strict=True):
        first = tokens[:_SHOWN_TOKENS]
        more = " ..." if len(first) < len(tokens) else ""
        words = " ".join(map(str, first))
        lines.append(f"{caption} ({counted(len(tokens), 'tokens')}) {words}{more}")
        values.append({"row": row, "length": len(tokens), "tokens": first.tolist()})
        if encoder is not None:
            values[-1]["text"] = encoder.decode(first)
            lines.append(f"    {json.dumps(values[-1]['text'], ensure_ascii=False)}{more}")
    return Output({"documents": values, "samples": len(dataset)}, lines)


def _captions(dataset: Rows, rows: list[int]) -> list[str]:
    """Returns a caption per row: the row number and the values of its Scalar and Text fields."""
    captions = [str(row) for row in rows]
    separator = ": "
    for name, kind in dataset.schema.fields.items():
        if not isinstance(kind, (Scalar, Text)):
            continue
        words = [str(value) for value in dataset.gather(name, np.array(rows))]
        if dataset.classes and name == dataset.schema.class_field:
            classes = dict(enumerate(dataset.classes))
            words = [classes.get(int(word), word) for word in words]
        pairs = zip(captions, words, strict=True)
        captions = [f"{caption}{separator}{word}" for caption, word in pairs]
        separator = ", "
    return captions
