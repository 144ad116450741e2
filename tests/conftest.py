"""What every test shares."""

from __future__ import annotations

from hypothesis import settings

# No test depends on a clock, Hypothesis' own deadline included; and a run repeats another exactly.
settings.register_profile("fastio", deadline=None, derandomize=True)
settings.load_profile("fastio")
