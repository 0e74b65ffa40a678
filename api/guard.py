"""Refuses requests that another site's web page may have sent from a user's browser.

A browser lets any page send simple requests to any address, also to a member on loopback. A page whose host name is
made to resolve to this member (DNS rebinding) can even read the answers. So four rules hold. The Host header must be a
name of this member. The Origin header must not be a page of another site, and a request without one must not be a part
of such a page, such as an image, by what the browser says of it. A POST must have a content type that no form and no
plain `fetch` can send.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import cached_property

from api.bodies import JSON, is_bson
from api.errors import HttpError, failure
from api.exchange import Scope
from replset.errors import ErrorCode
from replset.ids import HostPort
from replset.member.member import RunningMember
from replset.member.net.network import split_host_port

MAX_SEEN = 100
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::([0-9]{1,5})?)?")
"""Whole: what follows the bracket of an IPv6 address is a port, or the address is another site's."""
WEB_SCHEMES = frozenset({"http", "https"})


class Guard:
    """Checks Host and Origin against the names of one member. allowed_hosts: more names, from `--allowed-hosts`."""

    def __init__(self, member: RunningMember, allowed_hosts: Iterable[str]) -> None:
        self._member = member
        self._seen: set[str] = set()  # Host headers that were accepted: parsing one takes 10 µs
        self._allowed = frozenset(host.lower().strip("[]") for host in allowed_hosts)

    @cached_property
    def _names(self) -> frozenset[str]:
        own = (split_host_port(HostPort(address)) for address in (self._member.host, self._member.http_address))
        return self._allowed | {name.lower() for name, _ in own}

    @cached_property
    def _port(self) -> str:
        return str(split_host_port(HostPort(self._member.http_address))[1])

    def refusal(self, scope: Scope) -> HttpError | None:
        """Return why this request is refused, 403 (13), before any part of it runs; None when it may run."""
        hosts = _headers(scope, b"host")
        for host in hosts:
            if host in self._seen:
                continue
            if self._knows(_split(host)[0]):
                if len(self._seen) < MAX_SEEN:
                    self._seen.add(host)
            else:
                text = f"the host {host[:80]!r} is none of this member's; see --allowed-hosts"
                return failure(ErrorCode.UNAUTHORIZED, text)
        origins = _headers(scope, b"origin")
        if not origins and _is_part_of_another_page(scope):
            return failure(ErrorCode.UNAUTHORIZED, "parts of pages of other sites are refused")
        for origin in origins:
            if not self._is_own(origin, hosts):
                return failure(
                    ErrorCode.UNAUTHORIZED, f"requests of pages from {origin[:80]!r} are refused; see --allowed-hosts"
                )
        return None

    def _knows(self, name: str) -> bool:
        return name != "" and (name in self._names or _is_loopback(name))

    def _is_own(self, origin: str, hosts: list[str]) -> bool:
        """Return True for a page of this API itself or of an allowed host."""
        scheme, _, address = origin.partition("://")
        if scheme not in WEB_SCHEMES or not address:
            return False
        name, port = _split(address)
        own_address = address.lower() in {host.lower() for host in hosts}
        return own_address or name in self._allowed or (self._knows(name) and port == self._port)


def check_content_type(scope: Scope) -> None:
    """Refuse a POST (415) without a content type, or with one that a form can send, also when it has no body."""
    if scope["method"] == "POST":
        for content_type in _headers(scope, b"content-type") or [""]:
            if content_type != JSON:
                is_bson(content_type)


def check_no_link(scope: Scope) -> None:
    """Refuse (403) a GET that changes something, if a link of another site's page led to it."""
    if not _headers(scope, b"origin") and _is_of_another_site(scope):
        raise failure(ErrorCode.UNAUTHORIZED, "links from pages of other sites are refused here")


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for header, value in scope["headers"] if header == name]


def _is_part_of_another_page(scope: Scope) -> bool:
    """Return True for an image, a frame or the like in a page of another site. A link may lead here."""
    return _is_of_another_site(scope) and _headers(scope, b"sec-fetch-dest") != ["document"]


def _is_of_another_site(scope: Scope) -> bool:
    return _headers(scope, b"sec-fetch-site") not in ([], ["none"], ["same-origin"])


def _split(address: str) -> tuple[str, str]:
    """Return name and port of `NAME[:PORT]`, both empty when the text is not of this form."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return "", ""
    name, port = found.groups(default="")
    return name.strip("[]").lower().rstrip("."), str(int(port)) if port else ""


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
