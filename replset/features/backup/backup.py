"""replSetBackup: a copy of this member's database for a backup. `POST /v1/replset/backup` serves it as a tar file."""

from __future__ import annotations

from datetime import UTC, datetime

from replset.auth.roles import Action
from replset.errors import ErrorCode, NotYetInitializedError, ReplError
from replset.member.peers.snapshot_server import SnapshotServer
from replset.operations.command import Command, CommandContext
from replset.operations.request import Reply

COMMIT_WAIT_MS = 60_000
"""How long a backup waits until a majority has the newest entry in it."""


async def backup(ctx: CommandContext) -> Reply:
    """Copy this member's database, and wait until every entry in the copy is committed.

    Such a copy holds nothing that a rollback takes back later. It is removed when nobody has read it for a minute.
    """
    member = ctx.member
    config = member.node.config
    if config is None:
        raise NotYetInitializedError("this member is in no set: there is nothing to back up")
    copy_id, info = await member[SnapshotServer].copy_for_backup()
    try:
        deadline = member.clock.now() + COMMIT_WAIT_MS
        while member.node.commit_point < info.newest:
            ctx.check_deadline()
            left = min(deadline - member.clock.now(), 1_000)
            if left <= 0:
                raise ReplError(
                    f"a majority did not have the newest entry of the backup, {info.newest}, within"
                    f" {COMMIT_WAIT_MS // 1000} s: a rollback could still remove it; see `replset status`",
                    code=ErrorCode.WRITE_CONCERN_TIMEOUT,
                )
            await member.wait_for_change(left)
            member[SnapshotServer].keep(copy_id)
        member[SnapshotServer].keep(copy_id)
    except BaseException:
        await member[SnapshotServer].end(copy_id)
        raise
    made = datetime.fromtimestamp(member.clock.wall_ms() / 1000, UTC)
    return {
        "id": copy_id,
        "setName": config.set_name,
        "setId": str(config.settings.replica_set_id or ""),
        "member": member.host,
        "newest": str(info.newest),
        "size": info.size,
        "sha256": info.sha256,
        "made": made.isoformat(timespec="seconds"),
        "config": config.document(),
    }


COMMANDS: tuple[Command, ...] = (Command("replSetBackup", backup, admin_only=True, needs=Action.BACKUP),)
