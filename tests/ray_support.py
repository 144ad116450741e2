"""Ray clusters of one machine for the tests, and their processes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 600
# Ray's time limits, of its config (ray_config_def.h) and its Python code.
_WAITS_S = (
    "gcs_server_port_wait_time_s",
    "gcs_server_request_timeout_seconds",
    "gcs_rpc_server_reconnect_timeout_s",
    "gcs_rpc_server_connect_timeout_s",
    "worker_register_timeout_seconds",
)
_WAITS_MS = ("health_check_timeout_ms",)


@contextmanager
def ray_settings() -> Iterator[Any]:
    """The module ray, which keeps to this machine and writes nothing into the user's folder."""
    ray = pytest.importorskip("ray", reason="ray has no wheels for this Python")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", "/tmp")  # paths of its sockets may have 107 bytes at most
        patch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as later versions have it
        # Other work on the machine may delay Ray's processes for much longer than its defaults.
        for name in _WAITS_S:
            patch.setenv(f"RAY_{name}", str(PATIENCE_S))
        for name in _WAITS_MS:
            patch.setenv(f"RAY_{name}", str(1000 * PATIENCE_S))
        yield ray


@contextmanager
def local_ray(cores: int = 1) -> Iterator[Any]:
    """A Ray cluster of one machine, to which this process is connected."""
    with ray_settings() as ray:
        ray.init(
            address="local",
            num_cpus=cores,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
            object_store_memory=100 << 20,
        )
        try:
            yield ray
        finally:
            ray.shutdown()


def task_processes() -> list[int]:
    """The processes of this process's clusters that run tasks now."""
    children: dict[int, list[int]] = {}
    titles: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                titles[int(folder.name)] = (folder / "cmdline").read_text()
            except OSError:
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found, left = [], [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        left += below
        found += [pid for pid in below if titles[pid].startswith("ray::fastio")]
    return found


@contextmanager
def cluster_of(nodes: int) -> Iterator[Any]:
    """A Ray cluster of several raylets with one core each, on this machine."""
    with ray_settings():
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20},
        )
        try:
            for _ in range(nodes - 1):
                cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
            cluster.wait_for_nodes(timeout=PATIENCE_S)
            yield cluster
        finally:
            cluster.shutdown()
