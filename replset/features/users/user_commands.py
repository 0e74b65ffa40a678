"""The commands on users and roles. They write admin.system.users, which no other command reads or writes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from replset.auth.roles import ADMIN_ROLES, DATABASE_ROLES, Action, Role
from replset.auth.scram import MECHANISM, SALT_BYTES, Credentials
from replset.auth.users import USERS_NS, User, user_id
from replset.bson import Binary, RawDocument, decode, encode, encode_key
from replset.errors import BadValueError, ErrorCode, NotBuiltError, NotPrimaryOrSecondaryError, ReplError
from replset.operations import fields
from replset.operations.authorization import authorize, is_allowed
from replset.operations.command import Command, CommandContext, Handler, Where
from replset.operations.namespaces import check_database, writable_namespace
from replset.operations.request import Reply
from replset.operations.user_directory import UserDirectory, users_of
from replset.operations.write_concern import write_and_wait
from replset.replication.write_ops import ReplicatedDocument, WriteGroup, do_create, do_insert

LONGEST_NAME = 256
MERGED_AT_ONCE = 200
_SETTINGS = frozenset({"pwd", "roles", "customData", "digestPassword", "mechanisms", "authenticationRestrictions"})
Change = Callable[[dict[str, object]], None]


# --- changing users ------------------------------------------------------------------------------------------------


async def create_user(ctx: CommandContext) -> Reply:
    """Add a user of this database."""
    name = _name(ctx)
    database = check_database(ctx.database)
    if database in ("local", "$external"):
        raise BadValueError(f"cannot create users in the {database} database")
    settings = await _settings(ctx, needs_all=True)
    document: dict[str, object] = {"_id": user_id(name, database), "userId": _new_uuid(ctx)}
    document |= {"user": name, "db": database, **settings}
    key, doc = encode_key(document["_id"]), encode(document)

    def operation(group: WriteGroup) -> None:
        coll = group.txn.catalog.by_ns.get(USERS_NS) or do_create(group, USERS_NS)
        if ctx.connection.login is None and ctx.member[UserDirectory].required and any(group.txn.scan(coll)):
            raise ReplError("the first user was made meanwhile: log in", code=ErrorCode.UNAUTHORIZED)
        if do_insert(group, coll, key, doc) is None:
            raise ReplError(f'User "{name}@{database}" already exists', code=ErrorCode.USER_EXISTS)

    return await _write(ctx, operation)


async def update_user(ctx: CommandContext) -> Reply:
    """Replace what is given of a user: the password, all roles, the custom data.

    Users may change the first and the last of their own.
    """
    login = ctx.sender.login
    is_own = login is not None and (login.name, login.database) == (_name(ctx), ctx.database)
    if not is_own or not fields.is_absent(ctx.body, "roles"):
        authorize(ctx.member, ctx.sender, Action.CHANGE_USER, ctx.database, ctx.name)
    settings = await _settings(ctx, needs_all=False)
    if not settings:
        raise BadValueError("Must specify at least one field to update in updateUser")
    if "roles" in settings:
        authorize(ctx.member, ctx.sender, Action.REVOKE_ROLE, ctx.database, ctx.name)
    return await _change(ctx, lambda document: document.update(settings))


async def drop_user(ctx: CommandContext) -> Reply:
    """Remove a user. Its logins end."""
    key = _key(ctx)

    def operation(group: WriteGroup) -> None:
        if ReplicatedDocument(USERS_NS, key).remove(group) is None:
            raise _unknown(ctx)

    return await _write(ctx, operation)


async def grant_roles(ctx: CommandContext) -> Reply:
    """Give a user more roles."""
    roles = _roles(ctx, Action.GRANT_ROLE)

    def change(document: dict[str, object]) -> None:
        document["roles"] = _documents({*_roles_of(document), *roles})

    return await _change(ctx, change)


async def revoke_roles(ctx: CommandContext) -> Reply:
    """Take roles from a user."""
    roles = _roles(ctx, Action.REVOKE_ROLE)

    def change(document: dict[str, object]) -> None:
        document["roles"] = _documents(role for role in _roles_of(document) if role not in roles)

    return await _change(ctx, change)


async def _change(ctx: CommandContext, change: Change) -> Reply:
    user = ReplicatedDocument(USERS_NS, _key(ctx))

    def operation(group: WriteGroup) -> None:
        before = user.read_in(group.txn)
        if before is None:
            raise _unknown(ctx)
        document = decode(before)
        change(document)
        user.revise(group, before, document)

    return await _write(ctx, operation)


async def _write(ctx: CommandContext, operation: Callable[[WriteGroup], None]) -> Reply:
    try:
        _, reply = await write_and_wait(ctx, operation)
        return reply
    finally:
        ctx.member[UserDirectory].forget()


def _unknown(ctx: CommandContext) -> ReplError:
    return ReplError(f"Could not find user {_name(ctx)!r} for db {ctx.database!r}", code=ErrorCode.USER_NOT_FOUND)


# --- restoring users -----------------------------------------------------------------------------------------------


async def merge_users(ctx: CommandContext) -> Reply:
    """Take over the users of a dump, which mongorestore has put into a collection of `admin`.

    One that is there already is replaced. drop: those that the dump has not are removed. db: of this database alone.
    """
    body, sender = ctx.body, ctx.sender
    database = fields.text(body, "db", ctx.name, "")
    drops = fields.boolean(body, "drop", ctx.name)
    if await ctx.member.workers.run(lambda: _documents_of(ctx, "tempRolesCollection")):
        raise NotBuiltError("roles of one's own are not built yet, so none can be restored")
    found: dict[bytes, bytes] = {}
    for raw in await ctx.member.workers.run(lambda: _documents_of(ctx, "tempUsersCollection")):
        user = User.parse(raw)
        if database in ("", user.database):
            authorize(ctx.member, sender, Action.CREATE_USER, user.database, ctx.name)
            for role in sorted(user.roles):
                _check_role(ctx, Action.GRANT_ROLE, role)
            key = user_id(user.name, user.database)
            found[encode_key(key)] = encode({**user.document, "_id": key})
    wanted: dict[bytes, bytes | None] = dict(found)
    for raw in await ctx.member.workers.run(lambda: users_of(ctx.member.store)) if drops else ():
        user = User.parse(raw)
        if database in ("", user.database):
            authorize(ctx.member, sender, Action.DROP_USER, user.database, ctx.name)
            wanted.setdefault(encode_key(user_id(user.name, user.database)), None)
    rows = list(wanted.items())
    reply: Reply = {}
    for start in range(0, len(rows), MERGED_AT_ONCE):
        reply = await _write(ctx, partial(_put_users, rows[start : start + MERGED_AT_ONCE]))
    return reply


def _documents_of(ctx: CommandContext, field: str) -> list[bytes]:
    """The documents of the collection of `admin` that the field names. Runs in a thread."""
    name = fields.text(ctx.body, field, ctx.name, "")
    if not name:
        return []
    database, _, collection = name.partition(".")
    ns = writable_namespace(database, collection)
    with ctx.member.store.read() as snapshot:
        coll = snapshot.collection(ns)
        return [] if coll is None else [raw for _, raw in snapshot.scan(coll)]


def _put_users(rows: Sequence[tuple[bytes, bytes | None]], group: WriteGroup) -> None:
    """Give each of these users, by key, this document; None: remove the user."""
    for key, after in rows:
        user = ReplicatedDocument(USERS_NS, key)
        if after is None:
            user.remove(group)
        else:
            user.put(group, after)


# --- reading the commands ------------------------------------------------------------------------------------------


def _name(ctx: CommandContext) -> str:
    name = fields.text(ctx.body, ctx.name, ctx.name)
    if not name or len(name) > LONGEST_NAME or "\0" in name:
        raise BadValueError(f"a user's name has 1 to {LONGEST_NAME} characters")
    return name


def _key(ctx: CommandContext) -> bytes:
    return encode_key(user_id(_name(ctx), ctx.database))


def _new_uuid(ctx: CommandContext) -> Binary:
    return Binary(uuid.UUID(bytes=ctx.member.rng.randbytes(16), version=4).bytes, 4)


async def _settings(ctx: CommandContext, *, needs_all: bool) -> dict[str, object]:
    """The fields of the user's document that createUser or updateUser gives."""
    body, found = ctx.body, dict[str, object]()
    if not fields.is_absent(body, "mechanisms") and MECHANISM not in fields.values(body, "mechanisms", ctx.name):
        raise BadValueError(f"mechanisms must hold {MECHANISM}, the only one there is")
    if not fields.boolean(body, "digestPassword", ctx.name, True):
        raise BadValueError(f"{MECHANISM} needs the password itself: digestPassword cannot be false")
    if fields.given(body, "authenticationRestrictions"):
        raise NotBuiltError("authenticationRestrictions are not built yet")
    if needs_all or not fields.is_absent(body, "pwd"):
        password, salt = fields.text(body, "pwd", ctx.name), ctx.member.rng.randbytes(SALT_BYTES)
        credentials = await ctx.member.workers.run(lambda: Credentials.of(password, salt))
        found["credentials"] = {MECHANISM: credentials.document()}
    if needs_all or not fields.is_absent(body, "roles"):
        found["roles"] = _documents(_roles(ctx, Action.GRANT_ROLE))
    if not fields.is_absent(body, "customData"):
        found["customData"] = fields.document(body, "customData", ctx.name)
    return found


def _roles(ctx: CommandContext, action: Action) -> frozenset[Role]:
    """The roles that the command names. 31: there is no such role; 13: the sender may not do this with it."""
    if fields.is_absent(ctx.body, "roles"):
        raise fields.missing(ctx.name, "roles")
    found = frozenset(_role(ctx, value) for value in fields.values(ctx.body, "roles", ctx.name))
    for role in sorted(found):
        _check_role(ctx, action, role)
    return found


def _check_role(ctx: CommandContext, action: Action, role: Role) -> None:
    if role.rights is None:
        raise ReplError(f"Could not find role: {role.name}@{role.database}", code=ErrorCode.ROLE_NOT_FOUND)
    authorize(ctx.member, ctx.sender, action, role.database, ctx.name)


def _role(ctx: CommandContext, value: object) -> Role:
    if isinstance(value, str):
        return Role(value, ctx.database)
    name, database = (value.get("role"), value.get("db")) if isinstance(value, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(database, str):
        raise BadValueError("Role names must be either strings or objects with the fields role and db")
    return Role(name, database)


def _roles_of(document: dict[str, object]) -> list[Role]:
    rows = document.get("roles")
    return [Role(row["role"], row["db"]) for row in rows] if isinstance(rows, list) else []


def _documents(roles: Iterable[Role]) -> list[dict[str, str]]:
    return [role.document() for role in sorted(roles)]


# --- showing -------------------------------------------------------------------------------------------------------


async def users_info(ctx: CommandContext) -> Reply:
    """Users: by name, all of this database (1), or of all databases. Only members are shown keys."""
    body = ctx.body
    shows_keys = fields.boolean(body, "showCredentials", ctx.name)
    if shows_keys and not ctx.connection.is_member:
        raise ReplError("keys of users are shown to nobody", code=ErrorCode.UNAUTHORIZED)
    if shows_keys and (ctx.member.node.config is None or not ctx.member[UserDirectory].has_users()):
        raise NotPrimaryOrSecondaryError("this member has no users of its own, or old ones: ask another one")
    wanted = _wanted(ctx)
    rows = await ctx.member.workers.run(lambda: _read(ctx, wanted))
    mine = None if ctx.sender.login is None else (ctx.sender.login.name, ctx.sender.login.database)
    users: list[object] = []
    for raw in rows:
        document = decode(raw)
        name, database = str(document["user"]), str(document["db"])
        if (name, database) != mine and not is_allowed(ctx.member, ctx.sender, Action.VIEW_USER, database):
            continue
        if shows_keys:
            users.append(RawDocument(raw))
            continue
        del document["credentials"]
        document["mechanisms"] = [MECHANISM]
        if fields.boolean(body, "showPrivileges", ctx.name):
            document["inheritedPrivileges"] = [row for role in _roles_of(document) for row in role.privileges()]
        users.append(document)
    return {"users": users}


Wanted = tuple[str | None, str | None]
"""A user's name and database; None: any."""


def _wanted(ctx: CommandContext) -> list[Wanted]:
    """Which users are asked for. 13: the sender may not see them, whether they exist or not."""
    value = ctx.body.get(ctx.name)
    found: list[Wanted] = []
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str):
            found.append((one, ctx.database))
        elif isinstance(one, dict) and one.get("forAllDBs") is True:
            found.append((None, None))
        elif isinstance(one, dict) and isinstance(one.get("user"), str) and isinstance(one.get("db"), str):
            found.append((one["user"], one["db"]))
        elif isinstance(one, int | float) and one == 1:
            found.append((None, ctx.database))
        else:
            raise BadValueError("usersInfo takes 1, a name, {user, db}, a list of these, or {forAllDBs: true}")
    login = ctx.sender.login
    for name, database in found:
        if login is None or (name, database) != (login.name, login.database):
            authorize(ctx.member, ctx.sender, Action.VIEW_USER, database or "admin", ctx.name)
    return found


def _read(ctx: CommandContext, wanted: list[Wanted]) -> list[bytes]:
    """The documents of these users, in the order of database and name. Runs in a thread."""
    found = []
    for raw in users_of(ctx.member.store):
        document = RawDocument(raw)
        name, database = document.get("user"), document.get("db")
        if any(a in (None, name) and b in (None, database) for a, b in wanted):
            found.append(raw)
    return found


async def roles_info(ctx: CommandContext) -> Reply:
    """The roles of this database (1 and showBuiltinRoles), or those that are named."""
    value = ctx.body.get(ctx.name)
    if isinstance(value, int | float) and value == 1:
        names = [*DATABASE_ROLES, *(ADMIN_ROLES if ctx.database == "admin" else ())]
        shown = fields.boolean(ctx.body, "showBuiltinRoles", ctx.name)
        roles = [Role(name, ctx.database) for name in names] if shown else []
    else:
        roles = [_role(ctx, one) for one in (value if isinstance(value, list) else [value])]
    rows: list[dict[str, object]] = []
    for role in roles:
        if role.rights is not None:
            row: dict[str, object] = {**role.document(), "isBuiltin": True, "roles": [], "inheritedRoles": []}
            if fields.boolean(ctx.body, "showPrivileges", ctx.name):
                row["privileges"] = row["inheritedPrivileges"] = role.privileges()
            rows.append(row)
    return {"roles": rows}


def _writing(name: str, run: Handler, taken: frozenset[str], needs: Action) -> Command:
    return Command(name, run, taken, where=Where.PRIMARY, write_concern=True, needs=needs)


COMMANDS: tuple[Command, ...] = (
    _writing("createUser", create_user, _SETTINGS, Action.CREATE_USER),
    _writing("updateUser", update_user, _SETTINGS, Action.CHANGE_OWN),
    _writing("dropUser", drop_user, frozenset(), Action.DROP_USER),
    _writing("grantRolesToUser", grant_roles, frozenset({"roles"}), Action.GRANT_ROLE),
    _writing("revokeRolesFromUser", revoke_roles, frozenset({"roles"}), Action.REVOKE_ROLE),
    Command(
        "_mergeAuthzCollections",
        merge_users,
        frozenset({"tempUsersCollection", "tempRolesCollection", "drop", "db"}),
        where=Where.PRIMARY,
        admin_only=True,
        write_concern=True,
        needs=Action.APPLY_OPS,
    ),
    Command("usersInfo", users_info, frozenset({"showCredentials", "showPrivileges"}), needs=Action.LOGIN),
    Command("rolesInfo", roles_info, frozenset({"showBuiltinRoles", "showPrivileges"}), needs=Action.LOGIN),
)
