"""The commands of MongoDB 7.0 that are not built, and the fields that it takes, by command and by documents inside.

A `Command` lists the fields that it reads. For every other one this table tells "not built" (238) from a typo (40415).
Generic fields (command.py) are not repeated here.
"""

from __future__ import annotations

from typing import Final

from replset.errors import CommandNotFoundError, ErrorCode, NotBuiltError, ReplError

_WRITE = (
    "ordered bypassDocumentValidation stmtId stmtIds isTimeseriesNamespace collectionUUID encryptionInformation"
    " originalQuery originalCollation bypassEmptyTsReplacement"
)
_OPTIONS = "validator validationLevel validationAction viewOn pipeline changeStreamPreAndPostImages expireAfterSeconds"

_BY_PLACE: Final = {
    "_mergeAuthzCollections": "tempUsersCollection tempRolesCollection drop db",
    "abortTransaction": "recoveryToken",
    "aggregate": "pipeline explain allowDiskUse cursor bypassDocumentValidation collation hint let needsMerge"
    " fromMongos $queryOptions $_requestReshardingResumeToken exchange runtimeConstants isMapReduceCommand"
    " collectionUUID $_passthroughToShard encryptionInformation $_externalDataSources sampleId"
    " $_isClusterQueryWithoutShardKeyCmd $_requestResumeToken $_resumeAfter",
    "aggregate.cursor": "batchSize",
    "appendOplogNote": "data maxClusterTime",
    "applyOps": "bypassDocumentValidation alwaysUpsert oplogApplicationMode preCondition prepare partialTxn count"
    " allowAtomic",
    "buildInfo": "",
    "cloneCollectionAsCapped": "toCollection size temp",
    "collMod": f"index {_OPTIONS} recordPreImages timeseries isTimeseriesNamespace dryRun"
    " performViewChange cappedSize cappedMax",
    "collMod.index": "name keyPattern expireAfterSeconds hidden unique prepareUnique forceNonUnique",
    "collStats": "scale verbose waitForLock numericOnly",
    "commitTransaction": "recoveryToken commitTimestamp durableTimestamp",
    "compact": "force dryRun freeSpaceTargetMB",
    "configureFailPoint": "mode data sync",
    "connectionStatus": "showPrivileges",
    "convertToCapped": "size",
    "count": "query limit skip hint collation fields queryOptions $queryOptions encryptionInformation collectionUUID"
    " mirrored",
    "create": f"capped size max {_OPTIONS} autoIndexId idIndex storageEngine indexOptionDefaults collation"
    " recordPreImages timeseries clusteredIndex temp flags encryptedFields",
    "create.changeStreamPreAndPostImages": "enabled",
    "createUser": "pwd roles customData digestPassword mechanisms authenticationRestrictions",
    "createIndexes": "indexes ignoreUnknownIndexOptions commitQuorum isTimeseriesNamespace v",
    "currentOp": "$all $ownOps $truncateOps",
    "dataSize": "keyPattern min max estimate",
    "dbHash": "collections skipTempCollections $_internalReadAtClusterTime",
    "dbStats": "scale freeStorage",
    "delete": f"deletes let runtimeConstants {_WRITE}",
    "delete.deletes": "q limit hint collation sampleId",
    "distinct": "key query collation hint rawData encryptionInformation",
    "drop": "collectionUUID",
    "dropDatabase": "",
    "dropUser": "",
    "dropIndexes": "index isTimeseriesNamespace collectionUUID",
    "endSessions": "",
    "explain": "verbosity",
    "find": "filter projection sort hint collation skip limit batchSize ntoreturn singleBatch allowDiskUse min max"
    " returnKey showRecordId $queryOptions tailable oplogReplay noCursorTimeout awaitData allowPartialResults let"
    " options term readOnce allowSpeculativeMajorityRead $_requestResumeToken $_resumeAfter"
    " $_requestReshardingResumeToken runtimeConstants collectionUUID encryptionInformation mirrored",
    "findAndModify": "query fields sort hint collation arrayFilters remove update upsert new bypassDocumentValidation"
    " let runtimeConstants encryptionInformation stmtId sampleId isTimeseriesNamespace originalQuery"
    " originalCollation bypassEmptyTsReplacement $_allowShardKeyUpdatesWithoutFullShardKeyInQuery",
    "fsync": "async lock fsyncLockAcquisitionTimeoutMillis allowFsyncFailure",
    "fsyncUnlock": "",
    "getCmdLineOpts": "",
    "getDefaultRWConcern": "inMemory",
    "getLog": "",
    "rotateCertificates": "message",
    "getMore": "collection batchSize term lastKnownCommittedOpTime",
    "grantRolesToUser": "roles",
    "hostInfo": "",
    "insert": f"documents {_WRITE}",
    "killAllSessions": "",
    "killAllSessionsByPattern": "",
    "killCursors": "cursors",
    "killOp": "op",
    "killSessions": "",
    "listCollections": "filter nameOnly cursor authorizedCollections",
    "listCollections.cursor": "batchSize",
    "listCommands": "",
    "listDatabases": "filter nameOnly authorizedDatabases",
    "logout": "",
    "listIndexes": "cursor includeBuildUUIDs includeIndexBuildInfo isTimeseriesNamespace",
    "listIndexes.cursor": "batchSize",
    "ping": "",
    "profile": "slowms sampleRate filter",
    "reIndex": "",
    "refreshSessions": "",
    "planCacheClear": "query projection sort collation",
    "renameCollection": "to dropTarget stayTemp collectionUUID",
    "replSetAbortPrimaryCatchUp": "",
    "replSetFreeze": "",
    "replSetGetConfig": "commitmentStatus $_internalIncludeNewlyAdded",
    "replSetGetStatus": "initialSync",
    "replSetInitiate": "",
    "replSetMaintenance": "",
    "replSetReconfig": "force",
    "replSetResizeOplog": "size minRetentionHours",
    "replSetStepDown": "secondaryCatchUpPeriodSecs force",
    "replSetStepUp": "skipDryRun",
    "replSetSyncFrom": "",
    "revokeRolesFromUser": "roles",
    "rolesInfo": "showPrivileges showBuiltinRoles showAuthenticationRestrictions",
    "saslContinue": "conversationId payload",
    "saslStart": "mechanism payload options autoAuthorize",
    "setDefaultRWConcern": "defaultReadConcern defaultWriteConcern",
    "setFeatureCompatibilityVersion": "confirm downgradeOnDiskChanges fromConfigServer phase changeTimestamp",
    "startSession": "",
    "testDeprecation": "",
    "testVersion2": "",
    "testVersions1And2": "",
    "top": "",
    "update": f"updates let runtimeConstants {_WRITE} $_allowShardKeyUpdatesWithoutFullShardKeyInQuery",
    "update.updates": "q u c arrayFilters hint multi upsert upsertSupplied collation sampleId"
    " $_allowShardKeyUpdatesWithoutFullShardKeyInQuery",
    "updateUser": "pwd roles customData digestPassword mechanisms authenticationRestrictions",
    "usersInfo": "showCredentials showCustomData showPrivileges showAuthenticationRestrictions filter",
    "validate": "full background enforceFastCount checkBSONConformance metadata repair scandata",
    "whatsmyuri": "",
}
KNOWN: Final = {place: frozenset(names.split()) for place, names in _BY_PLACE.items()}

HARMLESS: Final = {
    "allowPartialResults": "about shards that do not answer",
    "allowSpeculativeMajorityRead": "a majority read is never speculative here",
    "authorizedCollections": "roles are of whole databases",
    "authorizedDatabases": "who may not list all databases is shown those that he may read",
    "create.temp": "what a client makes, or restores, is to stay",
    "count.fields": "a projection says nothing about a count",
    "indexOptionDefaults": "about another storage engine",
    "storageEngine": "about another storage engine",
    "flags": "about a storage engine that MongoDB removed",
    "fromMongos": "there is no router",
    "includeBuildUUIDs": "a build has no id of its own",
    "includeIndexBuildInfo": "a build has no id of its own",
    "isTimeseriesNamespace": "there are no time series",
    "mirrored": "a mirrored read is answered like another",
    "oplogReplay": "MongoDB ignores it too",
    "readOnce": "about the cache of a storage engine",
    "recoveryToken": "only a router reads it",
    "sampleId": "about the choice of a shard key",
    "stayTemp": "there are no temporary collections",
    "term": "MongoDB ignores it too",
    "waitForLock": "there are no locks to wait for",
    "$_allowShardKeyUpdatesWithoutFullShardKeyInQuery": "there are no shard keys",
    "$queryOptions": "only a router sends it",
}
"""Fields that are taken and change nothing here, each with the reason; with its command where others read it."""


def is_harmless(place: str, name: str) -> bool:
    return name in KNOWN.get(place, ()) and (name in HARMLESS or f"{place}.{name}" in HARMLESS)


SEARCH_INDEX_COMMANDS: Final = frozenset(
    {"createSearchIndexes", "dropSearchIndex", "listSearchIndexes", "updateSearchIndex"}
)
_NOT_BUILT = (
    "analyzeShardKey authenticate cloneCollectionAsCapped configureQueryAnalyzer connPoolStats"
    " convertToCapped createRole dataSize dbCheck dropAllRolesFromDatabase dropAllUsersFromDatabase"
    " dropConnections dropRole features filemd5 fsyncUnlock getAuditConfig getClusterParameter"
    " getDiagnosticData grantPrivilegesToRole grantRolesToRole invalidateUserCache lockInfo logRotate mapReduce"
    " planCacheClearFilters planCacheListFilters planCacheSetFilter revokePrivilegesFromRole"
    " revokeRolesFromRole setAuditConfig setClusterParameter setIndexCommitQuorum"
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
