"""Fields that neither native nor other threads read: the dataset returns their values in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastio.engine.batch import SlotPool
from fastio.engine.fields.reader import Reader, Work
from fastio.engine.ragged import is_ragged, of_field
from fastio.engine.settings import EngineSettings
from fastio.errors import FastioError, SampleError
from fastio.packed.rows import Rows
from fastio.packed.sample_errors import NOT_OF_SAMPLES, of_sample

if TYPE_CHECKING:
    from fastio.engine.pending import Pending


class ValueReader(Reader):
    """Reads fields with the dataset's `gather_all`, in the thread that submits; see `Reader`.

    Args:
        dataset: dataset of the fields.
        names: names of the fields.
        settings: settings of the engine.
    """

    def __init__(self, dataset: Rows, names: Sequence[str], settings: EngineSettings) -> None:
        self.fields = tuple(names)
        self.pools: Mapping[str, SlotPool] = {}
        self._dataset = dataset
        self._raises = settings.on_error == "raise"
        kinds = dataset.schema.fields
        forms = {
            name: settings.ragged.get(name, "list") for name in names if is_ragged(kinds[name])
        }
        self._forms = {name: form for name, form in forms.items() if form != "list"}

    def submit(self, batch: Pending, work: Work) -> None:
        """See `Reader`. The values are read at once, while threads read the other fields."""
        kinds = self._dataset.schema.fields
        work.values = dict(self._values(batch))
        for name, form in self._forms.items():
            work.values[name] = of_field(work.values[name], form, kinds[name])

    def finish(self, batch: Pending, work: Work) -> dict[str, Any]:
        """See `Reader`."""
        return {name: work.values[name] for name in self.fields}

    def _values(self, batch: Pending) -> Mapping[str, Any]:
        """Returns the values; bad samples get those of a good one, and become failures."""
        rows, dataset = batch.planned.rows, self._dataset
        try:
            return dataset.gather_all(self.fields, rows)
        except NOT_OF_SAMPLES:
            raise
        except Exception as error:
            if self._raises and isinstance(error, FastioError):
                raise
            # A row of the batch is bad. The rows are read one by one to find out which.
            bad = self._read_singly(batch)
            if not bad:
                raise
        good = np.setdiff1d(np.arange(len(rows)), bad)
        if not good.size:
            return {name: [] for name in self.fields}
        places = np.arange(len(rows))
        # Bad rows get the values of the first good row, and are replaced or left out later.
        places[bad] = good[0]
        return dataset.gather_all(self.fields, rows[places])

    def _read_singly(self, batch: Pending) -> list[int]:
        """Reads rows one by one, records errors in the batch, and returns the bad rows' places."""
        bad = []
        for place, row in enumerate(batch.planned.rows.tolist()):
            try:
                with of_sample(self._dataset, row):
                    self._dataset.gather_all(self.fields, batch.planned.rows[place : place + 1])
            except SampleError as error:
                batch.failures[place] = error
                bad.append(place)
        return bad
