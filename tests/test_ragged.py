"""Rows that differ in size: where they go in each form, and what tensors are made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio import Array, Scalar, Schema, SchemaError, Tokens
from fastio.engine.ragged import Forms, RaggedBatch, Scatter, of_rows, scatter
from fastio.feed.row_groups.ragged import RaggedRuns
from fastio.packed.layout import same_axes
from fastio.sources.table.values import Ragged
from fastio.tensors.ragged import dense, is_jagged, map_jagged, ragged_parts

SIDE = st.integers(0, 4)


def numbered(shapes: list[tuple[int, ...]]) -> list[np.ndarray[Any, Any]]:
    """Rows of the shapes, no number twice, none of them zero."""
    ends = np.cumsum([0, *map(math.prod, shapes)]) + 1
    return [
        np.arange(ends[i], ends[i + 1], dtype=np.int32).reshape(shape)
        for i, shape in enumerate(shapes)
    ]


def put(at: Scatter, rows: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Memory with the rows in their places; what no piece says stays -1."""
    memory = np.full(math.prod(at.shape), -1, np.int32)
    for row, begin, count, target, room in zip(
        at.row, at.begin, at.count, at.target, at.room, strict=True
    ):
        memory[target : target + room] = 0
        memory[target : target + count] = rows[row].reshape(-1)[begin : begin + count]
    return memory.reshape(at.shape)


@st.composite
def shapes_of_axes(draw: st.DrawFn) -> list[tuple[int, ...]]:
    axes = draw(st.integers(0, 4))
    return draw(st.lists(st.tuples(*[SIDE] * axes), min_size=1, max_size=5))


@given(shapes_of_axes())
@settings(deadline=None)
def test_padded_rows_stand_in_the_corner_of_zeros(shapes: list[tuple[int, ...]]) -> None:
    rows = numbered(shapes)
    longest = tuple(np.max(list(shapes), axis=0).astype(int).tolist())
    expected = np.zeros((len(rows), *longest), np.int32)
    for index, row in enumerate(rows):
        expected[(index, *(slice(length) for length in row.shape))] = row
    np.testing.assert_array_equal(put(scatter("padded", same_axes(shapes)), rows), expected)
    found = of_rows(rows, "padded", np.int32)
    np.testing.assert_array_equal(found.values, expected)
    for row, again in zip(rows, found.rows(), strict=True):
        np.testing.assert_array_equal(row, again)


@given(st.data(), st.integers(0, 2), st.lists(SIDE, min_size=2, max_size=2), st.integers(1, 5))
@settings(deadline=None)
def test_rows_lie_beside_each_other_along_their_variable_axis(
    data: st.DataObject, axis: int, others: list[int], count: int
) -> None:
    lengths = data.draw(st.lists(SIDE, min_size=count, max_size=count))
    shapes = [(*others[:axis], length, *others[axis:]) for length in lengths]
    rows = numbered(shapes)
    expected = np.concatenate(rows, axis=axis)
    for form in ("flat", "nested"):
        at = scatter(form, same_axes(shapes), axis)
        assert at.shape == expected.shape
        np.testing.assert_array_equal(put(at, rows), expected)
        found = of_rows(rows, form, np.int32, axis)
        np.testing.assert_array_equal(found.values.reshape(expected.shape), expected)
        for row, again in zip(rows, found.rows(), strict=True):
            np.testing.assert_array_equal(row, again)


@given(st.lists(st.lists(SIDE, max_size=3).map(tuple), min_size=1, max_size=5))
@settings(deadline=None)
def test_lists_have_rows_of_any_shapes(shapes: list[tuple[int, ...]]) -> None:
    rows = numbered(shapes)
    given_shapes = same_axes(shapes)
    memory = put(scatter("list", given_shapes), rows)
    found = RaggedBatch("list", memory, given_shapes).rows()
    for row, again in zip(rows, found, strict=True):
        assert row.shape == again.shape
        np.testing.assert_array_equal(row, again)


@pytest.mark.parametrize("form", ["list", "padded", "nested", "flat"])
def test_rows_can_be_left_out_and_repeated(form: Any) -> None:
    rows = numbered([(2,), (0,), (4,)])
    taken = of_rows(rows, form, np.int32).take(np.array([2, 0, 0]))
    assert [row.tolist() for row in taken.rows()] == [[3, 4, 5, 6], [1, 2], [1, 2]]


def test_what_cannot_be_nested_says_why() -> None:
    with pytest.raises(SchemaError, match=r"\(2, 3\) and \(2, 4\) \(number 1 .*axis 0 only"):
        scatter("nested", same_axes([(2, 3), (2, 4)]))
    with pytest.raises(SchemaError, match="axes cannot be combined"):
        scatter("padded", same_axes([(2, 3), (2,)]))
    with pytest.raises(SchemaError, match="without axes"):
        scatter("flat", same_axes([(), ()]))


def test_forms_are_checked_against_the_fields() -> None:
    schema = Schema(
        {
            "label": Scalar("int64"),
            "tokens": Tokens(),
            "mel": Array("float32", (80, None)),
            "volume": Array("int16", (None, None, None)),
            "fixed": Array("int16", (2,)),
        }
    )
    Forms.of("padded").check(schema)
    Forms.of({"tokens": "flat", "mel": "nested"}).check(schema)
    with pytest.raises(SchemaError, match=r"'fixed'; the fields of varying size are: tokens, mel"):
        Forms.of({"fixed": "flat"}).check(schema)
    with pytest.raises(
        SchemaError, match=r"'volume' has the shape .* exactly one axis of variable length"
    ):
        Forms.of("nested").check(schema)
    with pytest.raises(ValueError, match="list, padded, nested, flat"):
        Forms.of("jagged")  # type: ignore[arg-type]


def test_sizes_stand_beside_padded_and_flat_rows() -> None:
    rows = numbered([(2, 1), (2, 3)])
    parts = ragged_parts("mel", of_rows(rows, "padded", np.int32, 1))
    assert {name: tuple(part.shape) for name, part in parts.items()} == {
        "mel": (2, 2, 3),
        "mel_length": (2,),
    }
    assert parts["mel_length"].tolist() == [1, 3]
    parts = ragged_parts("mel", of_rows(rows, "padded", np.int32, 0, declared=False))
    assert parts["mel_shape"].tolist() == [[2, 1], [2, 3]]
    parts = ragged_parts("mel", of_rows(rows, "flat", np.int32, 1))
    assert parts["mel"].tolist() == [[1, 3, 4, 5], [2, 6, 7, 8]]
    assert parts["mel_offsets"].tolist() == [0, 1, 4]


@pytest.mark.parametrize("axis", [0, 1])
def test_nested_tensors_have_the_rows_and_are_mapped_part_by_part(axis: int) -> None:
    shapes = [(2, 3), (0, 3), (4, 3)] if axis == 0 else [(3, 2), (3, 0), (3, 4)]
    rows = numbered(shapes)
    (made,) = ragged_parts("x", of_rows(rows, "nested", np.int32, axis)).values()
    assert is_jagged(made)
    seen: list[torch.Tensor] = []

    def note(part: torch.Tensor) -> torch.Tensor:
        seen.append(part)
        return part.clone()

    again = map_jagged(note, made)
    assert [tuple(part.shape) for part in seen] == [tuple(part.shape) for part in dense(made)]
    for row, tensor in zip(rows, again.unbind(), strict=True):
        np.testing.assert_array_equal(row, tensor.numpy())


def test_batches_without_any_number_are_nested_too() -> None:
    rows = [np.empty(0, np.float32)] * 3
    (made,) = ragged_parts("x", of_rows(rows, "nested", np.float32)).values()
    assert [tuple(row.shape) for row in made.unbind()] == [(0,)] * 3


def test_rows_that_are_added_while_a_batch_is_made_change_nothing_in_it() -> None:
    """Threads decode row groups of a window while others make batches of its first chunks."""
    kind = Array("int64", (None,))

    class AddsMeanwhile(dict[str, Any]):
        def items(self) -> Any:
            rows.add(0, {"values": Ragged(np.zeros(4, np.int64), np.arange(5))})
            return super().items()

    rows = RaggedRuns(AddsMeanwhile(values=kind), Forms("list"))
    rows.add(4, {"values": Ragged(np.array([40, 41, 50]), np.array([0, 2, 3]))})
    found = rows.batch(np.array([5, 4]))["values"]
    assert [row.tolist() for row in found.rows()] == [[50], [40, 41]]
