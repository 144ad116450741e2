"""What the datasets package says of a dataset's columns, of which an Arrow schema says less.

Features stand as JSON in `dataset_info.json`, and in the metadata of Arrow schemas. Those of old
versions ("Sequence", a list of one feature) are understood as of new ones ("List", "LargeList").
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from fastio.schema import CLASS_FIELDS, Image, Images, Schema, is_integer
from fastio.sources.table.leaves import field_name

METADATA_KEY = b"huggingface"

# Stored as struct<bytes, path>, and nothing that fastio decodes.
_FILES = frozenset(["Audio", "Video", "Pdf", "Nifti", "Mesh", "BioSequence", "BioStructure"])
_ARRAYS = frozenset(["Array2D", "Array3D", "Array4D", "Array5D"])
_LISTS = frozenset(["List", "LargeList", "Sequence"])
_PLAIN = frozenset(["Value", "Translation", "TranslationVariableLanguages", "Json"])


@dataclass(frozen=True)
class Plain:
    """A column whose Arrow type says all."""


@dataclass(frozen=True)
class ClassLabel:
    """Class numbers with the names of the classes; -1 stands for no class."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """An image file, struct<bytes, path>, which is delivered in a mode."""

    mode: Literal["RGB", "L"] = "RGB"


@dataclass(frozen=True)
class File:
    """Another file, struct<bytes, path>, whose bytes are kept.

    Attributes:
        sampling_rate: Of sound, the rate in Hz at which it is wanted; None if that of each file is.
    """

    sampling_rate: int | None = None


@dataclass(frozen=True)
class FixedArray:
    """Arrays of one shape, stored as lists of lists. None is an axis whose length differs."""

    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Several:
    """Lists of a feature."""

    of: Feature


@dataclass(frozen=True)
class Group:
    """A struct of features by name."""

    children: Mapping[str, Feature]


@dataclass(frozen=True)
class Unknown:
    """A feature of a type that fastio does not know."""

    type: str


Feature = Plain | ClassLabel | Picture | File | FixedArray | Several | Group | Unknown


def parse_features(value: Any) -> dict[str, Feature]:
    """Returns the features of columns from JSON, as `datasets.Features.to_dict` gives it.

    Raises:
        ValueError: If it is something else.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"features must be an object, got {json.dumps(value, default=repr)[:80]}")
    return {str(name): _feature(item) for name, item in value.items()}


def features_of(schema: pa.Schema) -> dict[str, Feature]:
    """Returns the features in the metadata of an Arrow schema; none if there are none."""
    # Metadata that cannot be parsed is ignored: the columns can still be read as those of a table.
    try:
        about = json.loads((schema.metadata or {}).get(METADATA_KEY, b"null"))
        return parse_features(about["info"]["features"])
    except (ValueError, TypeError, KeyError):
        return {}


def leaf_features(
    features: Mapping[str, Feature], path: tuple[str, ...] = (), listed: bool = False
) -> Iterator[tuple[tuple[str, ...], Feature, bool]]:
    """Yields the path of each feature in columns, structs and lists; it; and whether in a list."""
    for name, feature in features.items():
        below, in_list = feature, listed
        while isinstance(below, Several):
            below, in_list = below.of, True
        if isinstance(below, Group):
            yield from leaf_features(below.children, (*path, name), in_list)
        else:
            yield (*path, name), below, in_list


def class_names(features: Mapping[str, Feature]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Returns the class names of each ClassLabel, by its path of columns and struct fields."""
    return {
        path: feature.names
        for path, feature, listed in leaf_features(features)
        if isinstance(feature, ClassLabel) and not listed
    }


def has_pictures(feature: Feature) -> bool:
    """Returns whether a feature is of images or of lists of images."""
    return isinstance(feature.of if isinstance(feature, Several) else feature, Picture)


def pictures(
    features: Mapping[str, Feature], path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], Image | Images]:
    """Returns the fields of images and of lists of images, by their path of columns and structs.

    Images in lists of structs, and in lists of lists, are not among them.
    """
    found: dict[tuple[str, ...], Image | Images] = {}
    for name, feature in features.items():
        if isinstance(feature, Picture):
            found[(*path, name)] = Image(feature.mode)
        elif isinstance(feature, Several) and isinstance(feature.of, Picture):
            found[(*path, name)] = Images(feature.of.mode)
        elif isinstance(feature, Group):
            found |= pictures(feature.children, (*path, name))
    return found


def sampling_rates(features: Mapping[str, Feature]) -> dict[str, int]:
    """Returns the sampling rates in Hz of the columns of sound that have one, by their fields."""
    return {
        field_name(path): feature.sampling_rate
        for path, feature, listed in leaf_features(features)
        if isinstance(feature, File) and feature.sampling_rate and not listed
    }


def with_classes(schema: Schema, names: Mapping[tuple[str, ...], tuple[str, ...]]) -> Schema:
    """Returns a schema with the names of classes that `class_names` returned."""
    words = dict(schema.vocabularies)
    for path, classes in names.items():
        name = field_name(path)
        kind = schema.fields.get(name)
        if classes and is_integer(kind):
            words[name] = classes
    classes = next((words[name] for name in CLASS_FIELDS if (name,) in names and name in words), ())
    return replace(schema, classes=classes or None, vocabularies=words) if words else schema


def _feature(value: Any) -> Feature:
    if isinstance(value, list) and len(value) == 1:
        return Several(_feature(value[0]))
    if not isinstance(value, Mapping):
        raise ValueError(f"a feature must be an object, got {json.dumps(value, default=repr)[:80]}")
    kind = value.get("_type")
    if not isinstance(kind, str):  # a struct, which may have a field of that name
        return Group(parse_features(value))
    if kind in _PLAIN:
        return Plain()
    if kind == "ClassLabel":
        return ClassLabel(_names(value))
    if kind == "Image":
        return Picture("L" if value.get("mode") in ("L", "1") else "RGB")
    if kind in _FILES:
        rate = value.get("sampling_rate")
        return File(rate if type(rate) is int and rate > 0 else None)
    if kind in _ARRAYS:
        return FixedArray(tuple(None if n is None else int(n) for n in value["shape"]))
    if kind in _LISTS:
        return _list(kind, value)
    return Unknown(kind)


def _list(kind: str, value: Mapping[str, Any]) -> Feature:
    of = _feature(value["feature"])
    if kind == "Sequence" and isinstance(of, Group):
        # Of structs, what was called a sequence is stored as a struct of lists.
        return Group({name: Several(child) for name, child in of.children.items()})
    return Several(of)


def _names(value: Mapping[str, Any]) -> tuple[str, ...]:
    names = value.get("names")
    if names is None:
        return tuple(map(str, range(int(value.get("num_classes") or 0))))
    return tuple(map(str, names))
