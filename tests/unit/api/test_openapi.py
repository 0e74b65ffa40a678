"""The OpenAPI document has every path, docs/http.md has it too, and its examples are accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from api.action_table import ACTIONS
from replset.errors import ErrorCode
from tests.unit.api.kit import Api, routes

DOCS = (Path(__file__).parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
SCHEMA: dict[str, Any] = routes().openapi()
OPERATIONS = [(path, method) for path, methods in SCHEMA["paths"].items() for method in methods]


def refs(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def test_the_page_is_served_with_all_that_it_loads(api: Api) -> None:
    """A member in a closed network serves its own page, and no browser tells another host of it."""
    response = api.get("/docs")
    assert response.status_code == 200
    assert "/openapi.json" in response.text
    assert re.findall(r"(?:https?:)?//[\w.-]+", response.text) == []
    assert "'self'" in response.headers["content-security-policy"]
    parts = re.findall(r'(?:src|href)="([^"]+)"', response.text)
    assert len(parts) == 3
    for part in parts:
        served = api.get(part)
        assert (served.status_code, len(served.content) > 1000) == (200, True), part
    assert api.get("/docs/other.js").status_code == 404
    assert api.get("/docs/..%2fconsts.py").status_code == 404
    assert api.get("/redoc").status_code == 404


def test_a_second_request_gives_the_same_document(api: Api) -> None:
    assert api.get("/openapi.json").json() == api.get("/openapi.json").json() == SCHEMA


def test_every_reference_is_there() -> None:
    found = set(refs(SCHEMA))
    assert found == {"#/components/schemas/Error"}
    assert set(SCHEMA["components"]["schemas"]) == {"Error"}


def test_every_action_is_described() -> None:
    for name in ACTIONS:
        assert set(SCHEMA["paths"][f"/v1/action/{name}"]) == {"post"}
    fields = SCHEMA["paths"]["/v1/action/updateOne"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert fields["required"] == ["collection", "database", "filter", "update"]
    assert fields["additionalProperties"] is False


def test_every_path_is_in_the_docs() -> None:
    for path, method in OPERATIONS:
        operation = SCHEMA["paths"][path][method]
        assert operation["summary"], path
        has_key = any(row["name"] == "Idempotency-Key" for row in operation.get("parameters", ()))
        assert ("422" in operation["responses"]) == has_key, f"{path}: the framework's own 422 is not used"
        shown = path.rpartition("/")[2] if path.startswith("/v1/action/") else path
        assert f"`{shown}`" in DOCS or f"{method.upper()} {path}" in DOCS, f"docs/http.md lacks {method} {path}"


@pytest.mark.parametrize("name", ACTIONS)
def test_the_example_of_an_action_is_accepted(api: Api, name: str) -> None:
    operation = SCHEMA["paths"][f"/v1/action/{name}"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    body = {field: part["example"] for field, part in schema["properties"].items() if "example" in part}
    assert set(schema["required"]) <= set(body)
    cursor = {"cursor": {"id": 0, "ns": "shop.orders", "firstBatch": []}}
    api.answers = {
        "find": {"ok": 1.0, **cursor},
        "aggregate": {"ok": 1.0, **cursor},
        "distinct": {"ok": 1.0, "values": []},
    }
    response = api.post(f"/v1/action/{name}", body)
    answer = operation["responses"][str(response.status_code)]["content"]["application/json"]["schema"]
    assert set(answer["required"]) <= set(response.json())


def test_every_status_is_in_the_docs() -> None:
    for status in {code.http_status for code in ErrorCode} - {401}:
        assert f"| {status} |" in DOCS


def schemas_with_default(node: object) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "default" in node:
            yield node
        for value in node.values():
            yield from schemas_with_default(value)
    elif isinstance(node, list):
        for value in node:
            yield from schemas_with_default(value)


def test_defaults_are_values_of_their_schemas() -> None:
    found = list(schemas_with_default(SCHEMA))
    assert found
    for schema in found:
        jsonschema_rs.validate(schema, schema["default"])
