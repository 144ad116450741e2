"""The proxy settings of the environment, with one meaning for all backends.

`http_proxy`, `https_proxy` and `all_proxy`, in lower or upper case, name the proxy. `no_proxy`
lists hosts that are requested directly: domain names including subdomains, addresses, networks
(10.0.0.0/8), or "*".
"""

from __future__ import annotations

import ipaddress
import os
import urllib.request
from urllib.parse import urlsplit


def proxy_of(url: str) -> str | None:
    """Returns the proxy to use for an http(s) URL; None for a direct connection."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    found = proxies.get(parts.scheme.lower()) or proxies.get("all")
    if not found or _bypasses(parts.hostname or "", parts.netloc.rpartition("@")[2]):
        return None
    return found if "://" in found else f"http://{found}"


def _bypasses(host: str, netloc: str) -> bool:
    if urllib.request.proxy_bypass(netloc) or urllib.request.proxy_bypass(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return any(address in network for network in map(_network, listed.split(",")) if network)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return None
