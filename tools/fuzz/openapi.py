"""What the OpenAPI page allows, and what it does not: sent to a real member, and answered as the page says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlencode

from hypothesis import strategies as st

from tests.unit.api.kit import routes
from tools.fuzz.http import judged
from tools.fuzz.kit import Check, Target
from tools.fuzz.member import OneMember, one_member

LEFT_OUT = ("/v1/replset/stepDown", "/v1/replset/resync", "/v1/replset/events")
"""The first two end the member's being primary, each time; the stream does not end."""


@cache
def page() -> dict[str, Any]:
    document: dict[str, Any] = routes().openapi()
    return document


@cache
def cases() -> st.SearchStrategy[Any]:
    """Requests of every operation, right and wrong."""
    import schemathesis  # takes as long to import as all tests together
    from schemathesis import GenerationMode
    from schemathesis.core.result import Ok

    operations = []
    for found in schemathesis.openapi.from_dict(page()).get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if operation.path not in LEFT_OUT:
            operations.append(operation)
    assert len(operations) > 25
    return st.sampled_from(operations).flatmap(
        lambda operation: st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]).flatmap(
            lambda mode: operation.as_strategy(generation_mode=mode)
        )
    )


def content_of(case: Any) -> bytes:
    body = case.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, dict | list | str | int | float | bool) or body is None:
        return json.dumps(body).encode(errors="replace")
    return b""


def check(one: OneMember, case: Any) -> str:
    """The status is one of the page's; a JSON body is of the form that the page gives it."""
    path = case.formatted_path
    query = urlencode(dict(case.query or {}), doseq=True, errors="replace").encode()
    media = (case.media_type or "application/json").encode()
    headers = [
        (str(name).lower().encode("latin-1", "replace"), str(value).encode("latin-1", "replace"))
        for name, value in (case.headers or {}).items()
    ]
    what = (case.method, path, query, headers, case.body)
    answer = one.http(case.method.upper(), path, query, [*headers, (b"content-type", media)], content_of(case))
    outcome = judged(answer, path, what)
    one.is_well()
    responses = page()["paths"][case.operation.path][case.operation.method.lower()]["responses"]
    if answer.status and case.method.lower() == case.operation.method.lower() and answer.status not in (404, 405):
        assert str(answer.status) in responses, (what, answer.status, answer.body[:500])
        form = responses[str(answer.status)].get("content", {}).get("application/json", {}).get("schema")
        if form and answer.headers.get("content-type", "").startswith("application/json"):
            import jsonschema_rs

            jsonschema_rs.validate({**form, "components": page()["components"]}, json.loads(answer.body))
    return outcome


@contextmanager
def opened() -> Iterator[Check]:
    with one_member() as one:
        yield lambda value: check(one, value)


TARGET = Target("openapi", st.deferred(lambda: cases()), opened, 60)
