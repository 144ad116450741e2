"""Rules as data: a condition, texts with values, a remedy; and the facts that they are asked about.

A rule that asks for a fact that is not known does not apply, and a line of evidence that does is
left out, so that no rule has to check what the probes could find out.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastio.diagnose import words
from fastio.diagnose.cases import Unknown, known
from fastio.diagnose.costs import Costs
from fastio.diagnose.findings import Culprit, Finding
from fastio.diagnose.thresholds import LEAST_GAIN
from fastio.runtime.sizes import counted, size_text

_COUNTED = ("cores", "files", "threads", "workers")


@dataclass(frozen=True)
class Rule:
    """A cause of lost time, and its remedy.

    In texts, values stand in braces: attributes of the case, such as "{machine.cores}", those that
    `when` returned, and "{waits}", the beginning of a sentence; see `Texts`.

    Attributes:
        culprit: the cause.
        when: returns whether the rule applies, or values for the texts if it does; "gain" among
            them is the predicted speed-up, where it does not follow from `after`.
        waits_for, advice, evidence: texts, as in `Finding`.
        after: returns the costs of a sample with the remedy; None if they are not known.
        change: the remedy in a few words, for a prediction of an epoch with it; "" for none.
    """

    culprit: Culprit | Callable[[Any], Culprit]
    when: Callable[[Any], Any]
    waits_for: str
    advice: str
    evidence: tuple[str, ...] = ()
    after: Callable[[Any], Costs] | None = None
    change: str = ""

    def findings(self, case: Any) -> Iterator[Finding]:
        """Yields the finding about a case, if the rule applies to it and gains enough."""
        for values, culprit, gain in self._asked(case):
            texts = Texts(case, values | {"waits": case.waits(culprit)})
            yield Finding(
                culprit,
                texts.format(self.waits_for),
                texts.format(self.advice),
                None if culprit == "compute" else gain,  # what a faster model gains is not known
                texts.of_known(self.evidence),
            )

    def changes(self, case: Any) -> Iterator[tuple[str, Culprit, Costs]]:
        """Yields the change in words, its culprit and the costs after it, if it gains enough."""
        for values, culprit, gain in self._asked(case):
            if self.change and self.after is not None and gain is not None:
                yield Texts(case, values).format(self.change), culprit, self.after(case)

    def _asked(self, case: Any) -> Iterator[tuple[dict[str, Any], Culprit, float | None]]:
        """Yields values for the texts, culprit and gain, if the rule applies and gains enough."""
        with suppress(Unknown):
            values = self.when(case)
            if not values:
                return
            values = dict(values) if isinstance(values, Mapping) else {}
            culprit = self.culprit(case) if callable(self.culprit) else self.culprit
            gain = values.get("gain")
            if self.after is not None and gain is None:
                with suppress(Unknown):
                    # A finding is reported even if its gain is not known.
                    gain = case.gain(self.after(case), culprit)
            if gain is None or gain >= LEAST_GAIN:
                yield values, culprit, gain


class Texts(string.Formatter):
    """Fills values into texts: attributes of a case, and further ones by name.

    `format` raises Unknown if one is not known.
    """

    def __init__(self, case: Any, values: Mapping[str, Any]) -> None:
        self._case, self._values = case, values

    def of_known(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Returns the texts whose values are all known."""
        found = []
        for text in texts:
            with suppress(Unknown):
                found.append(self.format(text))
        return tuple(found)

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        """Returns the value of the first name in a pair of braces."""
        name = str(key)
        return known(self._values[name] if name in self._values else getattr(self._case, name))

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Returns a value as text: "size" of bytes, "seconds", or a count with its noun."""
        if format_spec in ("size", "seconds"):
            return {"size": size_text, "seconds": words.seconds}[format_spec](value)
        if format_spec in _COUNTED:
            return counted(value, format_spec)
        return super().format_field(value, format_spec)
