"""`/` is the page that shows the set as a live picture. Its files hold no data: what it shows comes from `/v1`."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

PACKAGE = __name__.removesuffix(".routes.page")
FOLDER = "page"
INDEX = "index.html"
TYPES = {
    INDEX: "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "member.js": "text/javascript; charset=utf-8",
    "draw.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "rollbacks.js": "text/javascript; charset=utf-8",
    "what-if.js": "text/javascript; charset=utf-8",
    "elements.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "vendor/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "vendor/uPlot.min.css": "text/css; charset=utf-8",
    "vendor/uPlot.LICENSE": "text/plain; charset=utf-8",
}
"""The files of the page, and nothing else in its folder, with their content types."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""With these the browser loads nothing from another host, runs no script in the page, and shows it in no frame."""


def router() -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def index(request: Request) -> Response:
        return _answer(request, INDEX)

    @routes.get("/page/{name:path}")
    async def part(name: str, request: Request) -> Response:
        if name not in TYPES:
            raise HTTPException(404, "there is no such file")
        return _answer(request, name)

    return routes


def _answer(request: Request, name: str) -> Response:
    """Return the file; 304 if the browser has it already."""
    data = (files(PACKAGE) / FOLDER / name).read_bytes()
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, headers={**headers, "content-type": TYPES[name]})
