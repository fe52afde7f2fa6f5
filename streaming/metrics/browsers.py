"""Which HTTP requests an address of this machine answers when nobody needs a password: none that a page of another site can make.

A browser lets every page send requests to any address. It says where the page is from, and it does not let the page set these headers.
"""

import ipaddress
from collections.abc import Mapping
from contextlib import suppress

_OF_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""The types of a body that a page may send anywhere without asking before."""

READING = ("GET", "HEAD", "OPTIONS")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def refusal(method: str, headers: Mapping[str, str], own: str | None = None) -> str | None:
    """Why a request may come from a page of another site; None: it does not. `headers`: by names in lower case. `own`: another name
    of this machine.

    A page whose name an attacker points at this machine has that name in Host. Every other page has its own in Origin, or
    Sec-Fetch-Site tells. A browser too old for both sends only forms.
    """
    host = headers.get("host", "")
    if (name := name_of(host)) != (own and own.lower()) and not is_loopback(name):
        return f"Host {host}: without tokens, this is only for localhost. A proxy has to send the Host of the address that it asks"
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    if origin is not None and origin.partition("://")[2] != host:
        return f"Origin {origin}: without tokens, pages of other sites may not use this"
    is_visit = method in READING and headers.get("sec-fetch-mode") == "navigate"
    if site not in ("none", "same-origin") and not is_visit:
        return f"Sec-Fetch-Site {site}: without tokens, pages of other sites may not use this"
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method not in READING and kind in _OF_FORMS:
        return f"Content-Type {kind}: without tokens, send application/json"
    return None


def name_of(host: str) -> str:
    """The name or the address in a Host header, in lower case."""
    host = host.lower()
    return host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
