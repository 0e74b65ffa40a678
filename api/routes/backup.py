"""`POST /v1/replset/backup`: this member's data as a tar file, which is a backup once it is unpacked."""

from __future__ import annotations

import json
import tarfile
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from api.commands import check_reply, decode_reply, run_command
from api.exchange import HttpRequest, read_options
from api.limits import UnfinishedAnswerError
from api.openapi import answers, body
from replset.ejson import to_ejson
from replset.errors import ReplError
from replset.features.backup.backup_folder import MANIFEST_FILE, BackupManifest
from replset.member.member import RunningMember
from replset.member.peers.snapshot_server import SnapshotServer
from replset.storage import DATABASE_FILE

TAR = "application/x-tar"
CHUNK_BYTES = 1 << 20


def router(member: RunningMember) -> APIRouter:
    routes = APIRouter(prefix="/v1/replset", tags=["replset"])

    @routes.post(
        "/backup",
        summary="This member's data at one optime, as a tar file of backup.json and replset.db.",
        description="The answer begins once the copy is made and a majority has everything in it. backup.json holds the"
        " SHA-256 of replset.db. `replset restore` makes a member of the unpacked folder.",
        responses={**answers(400, 403, 405, 415, 503), 200: {"description": "the backup", "content": {TAR: {}}}},
        openapi_extra=body({"type": "object", "properties": {}}, required=False),
    )
    async def backup(request: Request) -> Response:
        http = HttpRequest(request.scope)
        await read_options(http, request.receive, ())
        found = decode_reply(check_reply(await run_command(member, {"replSetBackup": 1}, "admin", http.sender)))
        copy_id, size = str(found["id"]), int(found["size"])
        manifest = BackupManifest(
            set_name=found["setName"],
            set_id=found["setId"],
            member=found["member"],
            newest=found["newest"],
            size=size,
            sha256=found["sha256"],
            made=found["made"],
            config=json.loads(to_ejson(found["config"])),
        ).encode()
        head = _tar_head(MANIFEST_FILE, len(manifest)) + manifest + _padding(len(manifest))
        head += _tar_head(DATABASE_FILE, size)
        end = _padding(size) + bytes(2 * tarfile.BLOCKSIZE)
        headers = {
            "content-length": str(len(head) + size + len(end)),
            "content-disposition": f'attachment; filename="backup-{found["newest"].replace(":", "-")}.tar"',
        }
        return StreamingResponse(_stream(member, copy_id, head, size, end), headers=headers, media_type=TAR)

    return routes


def _tar_head(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


async def _stream(member: RunningMember, copy_id: str, head: bytes, size: int, end: bytes) -> AsyncIterator[bytes]:
    """Send the parts one after the other; the copy is removed at the end, or when the client goes away."""
    try:
        yield head
        offset = 0
        while offset < size:
            data = (await member[SnapshotServer].chunk(copy_id, offset, min(CHUNK_BYTES, size - offset))).data
            offset += len(data)
            yield data
        yield end
    except ReplError as error:
        raise UnfinishedAnswerError(error.message) from error
    finally:
        await member[SnapshotServer].end(copy_id)
