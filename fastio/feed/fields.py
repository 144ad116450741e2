"""The transforms of a loader, by the field to which they apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastio.errors import TransformError
from fastio.schema import Bytes, Schema
from fastio.transforms import (
    MOST_VIEWS,
    AudioDecode,
    Compiled,
    SameDraws,
    ToDtype,
    Views,
    compile,
    from_pipeline,
    from_torchvision,
    on_whole_batch,
    spoken,
)


@dataclass(frozen=True)
class FieldTransforms:
    """The transforms of a loader, by field.

    Attributes:
        fields: transforms of each field that has any; of each view, by its name in `parts`, of a
            field that has several.
        whole: callables that take and return the whole batch.
        audio: decoding settings of fields of sound files.
        views: the views of fields that have several.
        parts: for those fields, the names of the views.
    """

    fields: dict[str, Compiled] = field(default_factory=dict)
    whole: tuple[Callable[..., Any], ...] = ()
    audio: dict[str, AudioDecode] = field(default_factory=dict)
    views: dict[str, Views] = field(default_factory=dict)
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Returns the names in `fields` of a field: its own, or those of its views."""
        return self.parts.get(name, (name,))

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
        found = cls(whole=on_whole_batch(as_list(transforms.get(None)), schema.classes))
        for name, given in transforms.items():
            if name is not None:
                found._add(schema, name, given)
        return found

    def _add(self, schema: Schema, name: str, given: Any) -> None:
        """Adds the transforms of a field."""
        stream = _stream(schema, name)
        if isinstance(given, SameDraws):
            stream, given = _stream(schema, given.field), given.transforms
        steps = as_list(given)
        if any(isinstance(step, Views) for step in steps):
            self._add_views(schema, name, steps, stream)
            return
        if steps and isinstance(steps[0], AudioDecode):
            self.audio[name] = steps.pop(0)
        self._compile(schema, name, name, steps, stream)
        if name in self.audio and self.audio[name].lengths and self.fields[name].per_sample:
            raise TransformError(
                f"{name!r}: AudioDecode(lengths=True) cannot be followed by a function that is "
                "called per sample, because its results have no lengths: leave out lengths=True"
            )

    def _add_views(self, schema: Schema, name: str, steps: Sequence[Any], stream: int) -> None:
        views, *after = steps
        if not isinstance(views, Views):
            raise TransformError(
                f"{name!r}: put Views first, and what it follows into the lists of the views"
            )
        if name in schema.list_fields:
            raise TransformError(f"{name!r} holds lists of images, which cannot have {views}")
        if name not in schema.image_fields:
            raise TransformError(f"{views} needs an image field, and {name!r} is not one")
        self.views[name] = views
        self.parts[name] = tuple(name + place for place in views.names())
        for number, (part, each) in enumerate(zip(self.parts[name], views.lists(), strict=True)):
            self._compile(schema, name, part, [*as_list(each), *after], stream + number)

    def _compile(
        self, schema: Schema, name: str, part: str, steps: Sequence[Any], stream: int
    ) -> None:
        for step in steps:
            if isinstance(step, (SameDraws, Views)):
                raise TransformError(f"{name!r}: {spoken(step)} cannot stand inside of a list")
        compiled = self.fields[part] = replace(compile(steps, name), stream=stream)
        for step in (*compiled.steps, *compiled.tail):
            if name not in schema.pictured and not isinstance(step, ToDtype):
                raise TransformError(f"{step} needs an image field, and {name!r} is not one")
        if compiled.per_sample and name in schema.list_fields:
            raise TransformError(
                f"{name!r} holds lists of images, for which no function can be called per sample: "
                "use OnBatch, or fastio's transforms"
            )


def _stream(schema: Schema, name: str) -> int:
    """Returns the number of a field's first stream of random numbers."""
    if name not in schema.fields:
        raise TransformError(
            f"transforms name the field {name!r}; the fields are {', '.join(schema.fields)}"
        )
    images = [*schema.image_fields, *schema.list_fields]
    others = [each for each in schema.fields if each not in images]
    return [*images, *others].index(name) * MOST_VIEWS


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
    """Returns the name of the only field of images, or of lists of images.

    Raises:
        TransformError: there are none or several.
    """
    if len(schema.pictured) != 1:
        raise TransformError(
            "a list of transforms needs exactly one image field, and there are "
            f"{len(schema.pictured)}: use transforms={{field: [...]}} with one of the "
            f"fields {', '.join(schema.fields)}"
        )
    return schema.pictured[0]
