"""Rules as data: a condition, texts with values, a remedy; and the facts that they are asked about.

A rule that asks for a fact that is not known does not apply, and a line of evidence that does is
left out, so that no rule has to check what the probes could find out.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Any

from fastio.diagnose import words
from fastio.diagnose.costs import (
    Costs,
    cached_share,
    cold_rate,
    decode_rate,
    expected,
    network_rate,
    stays_in_memory,
    threads_of,
)
from fastio.diagnose.facts import Facts, Trial
from fastio.diagnose.findings import Culprit, Finding, packing
from fastio.diagnose.measured import Stage
from fastio.diagnose.options import Use

_COUNTED = ("cores", "files", "threads")


class Unknown(Exception):
    """A fact that was asked for is not known."""


class Known:
    """An object whose attributes raise Unknown where they are None."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = known(getattr(self._inner, name))
        return Known(value) if is_dataclass(value) else value

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def known(value: Any) -> Any:
    """Returns a value that is not None, or raises Unknown."""
    if value is None:
        raise Unknown
    return value


@dataclass(frozen=True)
class Rule:
    """A cause of lost time, and its remedy.

    In texts, values stand in braces: attributes of what the rule is asked about, such as
    "{machine.cores}", and those that `when` returned; see `Texts`.

    Attributes:
        culprit: the cause.
        when: returns whether the rule applies, or values for the texts if it does; "gain" among
            them is the predicted speed-up, where it does not follow from `after`.
        waits_for, advice, evidence: texts, as in `Finding`.
        after: returns the costs of a sample with the remedy; None if they are not known.
    """

    culprit: Culprit | Callable[[Any], Culprit]
    when: Callable[[Any], Any]
    waits_for: str
    advice: str
    evidence: tuple[str, ...] = ()
    after: Callable[[Any], Costs] | None = None

    def findings(self, case: Any) -> Iterator[Finding]:
        """Yields the finding about a case, if the rule applies to it."""
        with suppress(Unknown):
            values = self.when(case)
            if values:
                values = values if isinstance(values, Mapping) else {}
                texts = Texts(case, values)
                yield Finding(
                    self.culprit(case) if callable(self.culprit) else self.culprit,
                    texts.filled(self.waits_for),
                    texts.filled(self.advice),
                    values.get("gain") if self.after is None else self._gain(case),
                    texts.of_known(self.evidence),
                )

    def _gain(self, case: Any) -> float | None:
        """Returns the speed-up that follows from `after`; None if the costs are not known."""
        assert self.after is not None
        with suppress(Unknown):
            return case.now.gain_of(self.after(case))  # type: ignore[no-any-return]
        return None


class Texts(string.Formatter):
    """Fills values into texts: attributes of a case, and further ones by name."""

    def __init__(self, case: Any, values: Mapping[str, Any]) -> None:
        self._case, self._values = case, values

    def filled(self, text: str) -> str:
        """Returns a text with its values; Unknown if one is not known."""
        return self.format(text)

    def of_known(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Returns the texts whose values are all known."""
        found = []
        for text in texts:
            with suppress(Unknown):
                found.append(self.filled(text))
        return tuple(found)

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        """Returns the value of the first name in a pair of braces."""
        name = str(key)
        return known(self._values.get(name, getattr(self._case, name, None)))

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Returns a value as text: bytes as "size", counts as the plural of what is counted."""
        if format_spec == "size":
            return words.size(value)
        if format_spec in _COUNTED:
            return words.counted(value, format_spec)
        return super().format_field(value, format_spec)


class Case(Known):
    """The facts that the probes found, what follows from them, and how the data is used.

    Attributes:
        facts, use: as they are, with None for what is not known.
    """

    def __init__(self, facts: Facts, use: Use) -> None:
        super().__init__(facts)
        self.facts, self.use = facts, use

    @cached_property
    def now(self) -> Costs:
        """The costs of a sample as the data is used now."""
        return known(expected(self.facts, self.use))  # type: ignore[no-any-return]

    @property
    def limit(self) -> Stage:
        """The stage that later epochs wait for."""
        return self.now.waits_for(cold=True)

    @property
    def rate(self) -> float:
        """Samples per second of the stage that later epochs wait for."""
        return self.now.samples_per_s(cold=True)

    @property
    def loader_rate(self) -> float:
        """Samples per second that the loader decodes from memory."""
        return self.decodes(self.threads)

    def decodes(self, threads: int) -> float:
        """Returns the samples per second that a loader with some threads decodes from memory."""
        return known(decode_rate(self.facts, self.use, threads) or None)  # type: ignore[no-any-return]

    @property
    def cold_rate(self) -> float:
        """Samples per second from disk."""
        return known(cold_rate(self.facts) or None)  # type: ignore[no-any-return]

    @property
    def network_rate(self) -> float:
        """Samples per second from the store."""
        return known(network_rate(self.facts) or None)  # type: ignore[no-any-return]

    @property
    def cached_share(self) -> float:
        """The share of a remote dataset that the cache or the loader's memory holds."""
        return cached_share(self.facts, self.use)

    @property
    def in_memory(self) -> bool:
        """Whether every epoch but the first reads from memory."""
        return stays_in_memory(self.facts)

    @property
    def threads(self) -> int:
        """The number of threads of the loader."""
        return threads_of(self.facts, self.use)

    @property
    def ranks(self) -> int:
        """The number of processes of the job on this machine."""
        return self.settings.local_ranks  # type: ignore[no-any-return]

    # --- Packing ----------------------------------------------------------------------------------

    @property
    def trial(self) -> Trial:
        """The trial pack of images as they are, or of rows."""
        return self._trial(shrunk=False)

    @property
    def shrunk(self) -> Trial:
        """The trial pack of smaller images."""
        return self._trial(shrunk=True)

    def _trial(self, shrunk: bool) -> Trial:
        images, tables = self.facts.images, self.facts.tables
        trials = images.trials if images else (tables.trial,) if tables else ()
        found = (t for t in trials if t and t.rate and (t.max_side is not None) == shrunk)
        trial: Trial = known(next(found, None))
        before = trial.before_rate or (images.rate if images else 1 / self.now.prep_s)
        return replace(trial, before_rate=known(before or None))

    def packed(self, trial: Trial) -> Costs:
        """Returns the costs of a sample of the packed data.

        The trial used all threads and a part of the data: the rest is faster by the same factor.
        """
        assert trial.before_rate is not None
        nbytes = round(self.data.nbytes * trial.bytes_share)
        data = replace(known(self.facts.data), nbytes=nbytes)
        stays = stays_in_memory(self.facts.replaced(data=data))
        return replace(
            self.now,
            prep_s=self.now.prep_s * trial.before_rate / trial.rate,
            fetch_s=0.0 if stays else self.now.fetch_s * trial.bytes_share,
        )

    def how_to_pack(self, options: str = "") -> str:
        """Returns the commands that pack the data, which is exported first if it is packed."""
        data = known(self.facts.data)
        if data.packed:
            return f"`fastio export {data.path} FOLDER`; {packing('FOLDER', options)}"
        return packing(data.path, options)
