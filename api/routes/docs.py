"""/docs is the interactive page. Its script and style come from an installed package, not from another host."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse
from starlette.exceptions import HTTPException

PACKAGE = "fastapi_offline"
SCRIPT, STYLE, ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"
POLICY = "default-src 'self' 'unsafe-inline' data:"
"""With this policy the browser refuses everything that the page would load from another host."""


def router() -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    def page() -> HTMLResponse:
        """Return the page without the validator, which would send this member's description to a host of Swagger."""
        answer = get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="replset",
            swagger_js_url=f"/docs/{SCRIPT}",
            swagger_css_url=f"/docs/{STYLE}",
            swagger_favicon_url=f"/docs/{ICON}",
            swagger_ui_parameters={"validatorUrl": "none"},
        )
        answer.headers["content-security-policy"] = POLICY
        return answer

    @routes.get("/docs/{name}")
    def part(name: str) -> FileResponse:
        if name not in (SCRIPT, STYLE, ICON):
            raise HTTPException(404, "there is no such file")
        return FileResponse(Path(str(files(PACKAGE))) / "static" / name)

    return routes
