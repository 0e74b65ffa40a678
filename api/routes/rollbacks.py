"""`/v1/replset/rollbacks`: what this member's rollbacks took away, and the files that hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from api.content import BSON
from api.errors import NOT_FOUND, failure
from api.exchange import Answer, Asked, respond
from api.openapi import answers
from api.ports import ApiMember
from replset.errors import ReplError
from replset.replication.rollback_files import Manifest, is_manifest_name, read_manifest


def router(member: ApiMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset/rollbacks", tags=["rollbacks"])

    @routes.get("", summary="The manifests of this member's rollbacks, oldest first.", responses=answers(200, 405, 503))
    async def rollbacks(request: Request) -> Response:
        found = await member.workers.run(lambda: listed(Path(member.rollback_folder)))
        return await respond(member, Asked(request.scope), Answer({"rollbacks": found}))

    @routes.get("/{rollback}", summary="One manifest.", responses=answers(200, 404, 405, 503))
    async def rollback(rollback: str, request: Request) -> Response:
        manifest = await member.workers.run(lambda: find(Path(member.rollback_folder), rollback))
        return await respond(member, Asked(request.scope), Answer(manifest.document()))

    @routes.get(
        "/{rollback}/{file}",
        summary="One of its BSON files, as it is.",
        responses={
            **answers(404, 405, 503),
            200: {"description": "documents, one after the other", "content": {BSON: {}}},
        },
    )
    async def rollback_file(rollback: str, file: str) -> Response:
        folder = Path(member.rollback_folder)
        manifest = await member.workers.run(lambda: find(folder, rollback))
        if file not in {row.name for row in manifest.files} or not await member.workers.run((folder / file).is_file):
            raise failure(NOT_FOUND, f"rollback {rollback} has no file {file[:255]!r}", status=404)
        return FileResponse(folder / file, media_type=BSON)

    return routes


def listed(folder: Path) -> list[dict[str, Any]]:
    """Every manifest; one that cannot be read shows its error instead. Runs in a worker."""
    if not folder.is_dir():
        return []
    found: list[dict[str, Any]] = []
    for file in sorted(folder.iterdir()):
        if is_manifest_name(file.name):
            try:
                found.append(read_manifest(file).document())
            except (ReplError, OSError) as error:
                found.append({"id": file.stem, "error": str(error)})
    return sorted(found, key=_age)


def _age(manifest: dict[str, Any]) -> tuple[str, int]:
    """By time, and within one second by number."""
    head, _, number = str(manifest["id"]).rpartition(".")
    return head, int(number) if number.isascii() and number.isdigit() else 0


def find(folder: Path, rollback: str) -> Manifest:
    """The manifest of one rollback. Only names that the folder itself lists are opened. Runs in a worker."""
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    name = f"{rollback}.json"
    if not is_manifest_name(name) or name not in names:
        raise failure(NOT_FOUND, f"no rollback {rollback[:255]!r} on this member", status=404)
    try:
        return read_manifest(folder / name)
    except OSError as error:
        raise failure(NOT_FOUND, f"rollback {rollback[:255]!r} cannot be read: {error.strerror}", status=404) from error
