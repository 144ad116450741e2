"""The transforms of a loader, by the field to which they apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastio.errors import TransformError
from fastio.schema import Bytes, Image, Schema
from fastio.transforms import (
    AudioDecode,
    Compiled,
    ToDtype,
    compile,
    from_pipeline,
    from_torchvision,
    on_whole_batch,
)


@dataclass(frozen=True)
class FieldTransforms:
    """The transforms of a loader, by field.

    Attributes:
        fields: transforms of each field that has any.
        whole: callables that take and return the whole batch.
        audio: decoding settings of fields of sound files.
    """

    fields: Mapping[str, Compiled]
    whole: tuple[Callable[..., Any], ...] = ()
    audio: Mapping[str, AudioDecode] = field(default_factory=dict)

    @classmethod
    def parse(
        cls, transforms: Any, schema: Schema, known: Mapping[str, Sequence[Any]] | None = None
    ) -> FieldTransforms:
        """Parses `Loader(transforms=)`.

        Args:
            transforms: a mapping from field (or None for the whole batch) to a transform or a list
                of transforms; or a transform or list alone, for the only image field; or None.
            schema: schema of the dataset.
            known: transforms that fields already have.

        Raises:
            TransformError: the transforms do not fit the fields or each other.
        """
        if not isinstance(transforms, Mapping):
            given = as_list(transforms)
            transforms = {_only_field(schema, given): given} if given else {}
        for name, steps in (known or {}).items():
            transforms = {**transforms, name: [*steps, *as_list(transforms.get(name))]}
        whole = on_whole_batch(as_list(transforms.get(None)))
        fields, audio = {}, {}
        for name, given in transforms.items():
            if name is None:
                continue
            if name not in schema.fields:
                raise TransformError(
                    f"transforms name the field {name!r}; the fields are {', '.join(schema.fields)}"
                )
            first, *rest = as_list(given) or [None]
            if isinstance(first, AudioDecode):
                audio[name] = first
            fields[name] = compile(rest if isinstance(first, AudioDecode) else as_list(given), name)
            for step in (*fields[name].steps, *fields[name].tail):
                if not isinstance(schema.fields[name], Image) and not isinstance(step, ToDtype):
                    raise TransformError(f"{step} needs an image field, and {name!r} is not one")
        return cls(fields, whole, audio)


def as_list(transforms: Any) -> list[Any]:
    """Returns None, one transform, a list or a torchvision Compose as a list of transforms.

    The steps of a Compose from the first one on that fastio does not know become one `PerSample`.
    """
    if transforms is None:
        return []
    kind = type(transforms)
    if kind.__name__ == "Compose" and kind.__module__.startswith("torchvision.transforms"):
        if from_torchvision(transforms) is None:
            return from_pipeline(transforms)
        transforms = transforms.transforms
    if not isinstance(transforms, (list, tuple)):
        return [transforms]
    return [step for given in transforms for step in as_list(given)]


def _only_field(schema: Schema, given: Sequence[Any]) -> str:
    """Returns the name of the field to which a list of transforms applies."""
    if not given or not isinstance(given[0], AudioDecode):
        return only_image(schema)
    names = [name for name, kind in schema.fields.items() if isinstance(kind, Bytes)]
    if len(names) != 1:
        raise TransformError(
            "AudioDecode without a field name needs exactly one field of bytes, and there are "
            f"{len(names)}: use transforms={{field: AudioDecode(...)}}"
        )
    return names[0]


def only_image(schema: Schema) -> str:
    """Returns the name of the only image field.

    Raises:
        TransformError: there are none or several.
    """
    if len(schema.image_fields) != 1:
        raise TransformError(
            "a list of transforms needs exactly one image field, and there are "
            f"{len(schema.image_fields)}: use transforms={{field: [...]}} with one of the "
            f"fields {', '.join(schema.fields)}"
        )
    return schema.image_fields[0]
