"""Refuses commands that MongoDB 7.0 has and this server has not, so that a client can tell them from a typo."""

from __future__ import annotations

from typing import Final

from replset.errors import CommandNotFoundError, ErrorCode, NotBuiltError, ReplError

SEARCH_INDEX_COMMANDS: Final = frozenset(
    {"createSearchIndexes", "dropSearchIndex", "listSearchIndexes", "updateSearchIndex"}
)
_NOT_BUILT = (
    "analyzeShardKey authenticate cloneCollectionAsCapped configureQueryAnalyzer connPoolStats"
    " convertToCapped createRole dataSize dbCheck dropAllRolesFromDatabase dropAllUsersFromDatabase"
    " dropConnections dropRole features filemd5 fsyncUnlock getAuditConfig getClusterParameter"
    " getDiagnosticData grantPrivilegesToRole grantRolesToRole invalidateUserCache lockInfo logRotate mapReduce"
    " planCacheClearFilters planCacheListFilters planCacheSetFilter revokePrivilegesFromRole"
    " revokeRolesFromRole setAuditConfig setClusterParameter setFeatureCompatibilityVersion setIndexCommitQuorum"
    " setUserWriteBlockMode shardingState shutdown splitVector updateRole validateDBMetadata waitForFailPoint"
    " whatsmysid"
)
NOT_BUILT: Final = frozenset(_NOT_BUILT.split())


def unknown_command(name: str | None) -> ReplError:
    """Return why a command that is not in the table of commands cannot be run."""
    if name in SEARCH_INDEX_COMMANDS:
        return ReplError(
            "Using Atlas Search Database Commands and the $listSearchIndexes aggregation stage requires additional"
            " configuration. Please connect to Atlas or an AtlasCLI local deployment to enable.",
            code=ErrorCode.SEARCH_NOT_ENABLED,
        )
    if name in NOT_BUILT:
        return NotBuiltError(f"the command '{name}' is not built yet")
    return CommandNotFoundError(f"no such command: '{name or ''}'")
