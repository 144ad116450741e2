"""The vocabulary of a dictionary-encoded column over all files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fastio.errors import SchemaError


class Words:
    """Maps words to codes, in the order in which the words were first seen.

    Attributes:
        all: The words; the code of a word is its index.
    """

    def __init__(self) -> None:
        self.all: list[str] = []
        self._codes: dict[str, int] = {}
        self._last: tuple[pa.Array, NDArray[np.int32]] | None = None

    def add(self, dictionary: pa.Array) -> None:
        """Adds the words of a dictionary in their order. Not thread-safe; call it before `codes`.

        Args:
            dictionary: An array of strings. Nulls are ignored.
        """
        if self._last is not None and dictionary.equals(self._last[0]):
            return
        for word in dictionary.to_pylist():
            if word is not None:
                self.add_word(word)
        self._last = dictionary, np.zeros(0, np.int32)

    def add_word(self, word: str) -> None:
        """Adds a word, unless it is known."""
        if word not in self._codes:
            self._codes[word] = len(self.all)
            self.all.append(word)

    def seal(self) -> None:
        """Ends the adding of words. From here on `codes` may be called from any thread."""
        self._last = None

    def code(self, word: str) -> int:
        """Returns the code of a word.

        Raises:
            KeyError: If the word is not known.
        """
        return self._codes[word]

    def codes(self, array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.bool_] | None]:
        """Returns the codes of an array of words, and a mask of nulls; None if there are none.

        Args:
            array: Dictionary-encoded strings.

        Raises:
            SchemaError: If a word is not known.
        """
        of_dictionary = self._of(array.dictionary)
        indices = array.indices
        missing = indices.is_null().to_numpy(zero_copy_only=False)
        if not len(of_dictionary):
            return np.zeros(len(array), np.int32), missing if len(array) else None
        positions = indices.fill_null(0).to_numpy(zero_copy_only=False)
        codes = of_dictionary[positions]
        missing |= codes < 0  # a dictionary may have a null among its words
        return codes, missing if missing.any() else None

    def _of(self, dictionary: pa.Array) -> NDArray[np.int32]:
        """Returns the codes of a dictionary's words: int32 (words,), -1 for null."""
        last = self._last  # read the attribute once, because other threads may set it
        if last is not None and dictionary.equals(last[0]):
            return last[1]
        try:
            codes = np.array(
                [-1 if word is None else self._codes[word] for word in dictionary.to_pylist()],
                np.int32,
            )
        except KeyError as error:
            raise SchemaError(
                f"the value {error.args[0]!r} did not occur when the table was first read: the "
                "file was changed"
            ) from error
        self._last = dictionary, codes
        return codes
