"""fastio doctor before a store that is slow, or does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fastio
from fastio.diagnose import Use
from fastio.diagnose.probes import examine
from fastio.diagnose.probes.data import Context, look_at
from fastio.diagnose.probes.rates import Attempts
from fastio.diagnose.probes.remote import loader_bytes_s, remote_facts, request_bytes
from fastio.store import open_store
from tests.servers import FaultProxy, http_folder
from tests.support import numbered_folder

USE = Use(batch_size=4, crop=16)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FaultProxy]:
    """Before a packed dataset, `packed`."""
    fastio.pack(numbered_folder(tmp_path / "folder"), tmp_path / "packed")
    with http_folder(tmp_path) as url, FaultProxy(url) as found:
        yield found


def test_a_store_that_does_not_answer_is_an_error_in_time(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.diagnose.probes.data._STORE_S", 0.2)
    proxy.fail("stall", p=1.0)
    with pytest.raises(TimeoutError, match="did not answer"):
        examine(f"{proxy.url}/packed", USE)


def test_a_store_that_stops_answering_is_noted_and_nothing_waits_for_it(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{proxy.url}/packed"
    data = look_at(url)
    monkeypatch.setattr("fastio.diagnose.probes.remote._DEADLINE_S", 0.2)
    proxy.fail("stall", p=1.0)
    attempts = Attempts(600.0)
    facts = remote_facts(Context(data, USE, attempts))
    assert facts.parallel_bytes_s is None
    assert attempts.notes == ["an object to read: the store did not answer within 0 s"]


def test_a_loader_that_waits_for_the_network_alone_tells_its_rate(
    tmp_path: Path, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.diagnose.probes.remote._LEAST_FETCHED", 1)
    noise = np.random.default_rng(0).integers(0, 256, (40, 128, 128, 3), np.uint8)
    fastio.pack(list(noise), tmp_path / "noise", codec="raw")
    context = Context(look_at(f"{proxy.url}/noise"), USE, Attempts(600.0))
    proxy.set(bandwidth=4e6)  # of the dataset's 2 MB
    rate = loader_bytes_s(context)
    assert rate is not None
    assert 0 < rate < 8e6
    monkeypatch.setattr("fastio.diagnose.probes.remote._LEAST_FETCHED", 1 << 40)
    assert loader_bytes_s(context) is None


def test_requests_are_no_longer_than_an_object_and_shorter_where_it_is_slow(
    tmp_path: Path, proxy: FaultProxy
) -> None:
    (tmp_path / "object").write_bytes(bytes(1 << 20))
    store = open_store(proxy.url)
    assert request_bytes(store, "object", 1000) == 1000
    proxy.set(latency_s=0.3)
    assert request_bytes(store, "object", 1 << 20) == 64 << 10
