"""The set's users as one member knows them: documents of admin.system.users, replicated as any other.

What was read counts for a second, so that a command costs no read of its own. A member that has none (an arbiter, a
witness, one that copies its data) or only old ones (a delayed one) asks the others, the primary first, and goes on with
what it knew while none answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from replset.auth.roles import Grants
from replset.auth.scram import ITERATIONS, SALT_BYTES, Credentials
from replset.auth.users import USERS_NS, Login, User, user_id
from replset.bson import RawDocument, encode_key
from replset.errors import AuthenticationFailedError, OverloadedError, ReplError
from replset.ids import HostPort, Millis
from replset.replication.write_ops import ReplicatedDocument
from replset.storage.sqlite import first_row

if TYPE_CHECKING:
    from replset.operations.kernel import Kernel
    from replset.storage.store import Store

log = logging.getLogger("replset.users")

KNOWN_MS: Final = 1_000
"""For so long a user counts as it was read."""
MEMBER_MS: Final = Millis(2_000)
MOST_ASKED: Final = 16
"""Logins for which others are asked at once. Each takes a connection to a member, and strangers begin logins too."""
DECOY: Final = b"replset login decoy 1"
MOST_CHECKS: Final = 64
"""Passwords that wait to be checked. Each takes milliseconds, one after the other, in a thread."""


def users_of(store: Store) -> list[bytes]:
    """All users' documents, keys and all, in the order of database and name. It may run in a thread."""
    with store.read() as snapshot:
        coll = snapshot.collection(USERS_NS)
        return [] if coll is None else [raw for _, raw in snapshot.scan(coll)]


@dataclass(slots=True)
class _Known:
    user: User
    read_at: Millis
    basic: bytes = b""
    """A mark of a password that was right, so that the next request with it need not be checked so slowly."""


class UserDirectory:
    """Looks up users, and what a login allows now. required: clients must log in (`--auth`)."""

    def __init__(self, member: Kernel, *, required: bool) -> None:
        self.required = required
        self._member = member
        self._known: dict[str, _Known] = {}
        self.secret = member.rng.randbytes(32)
        """A secret of this process alone, of which such marks are made."""
        self._asking = 0
        self._checking = 0
        self._one_check = asyncio.Lock()

    # --- what a login allows

    def knows(self, login: Login) -> bool:
        """Whether `grants` can tell at once; else `refresh` must be awaited first."""
        return self._fresh(user_id(login.name, login.database)) is not None

    async def refresh(self, login: Login) -> None:
        if not self.has_users():
            await self._ask_others(login.name, login.database)

    def grants(self, login: Login) -> Grants | None:
        """What the user of this login may do now; None: the user is gone or has another password."""
        user = self.user_of(login)
        return None if user is None else user.grants

    def user_of(self, login: Login) -> User | None:
        """The user of this login as he is now; None: he is gone or has another password."""
        key = user_id(login.name, login.database)
        known = self._fresh(key) or (None if self.has_users() else self._known.get(key))
        if known is None or login.proof not in (b"", known.user.credentials.stored_key):
            return None
        return known.user

    def forget(self) -> None:
        """Read all users anew: one was changed here."""
        self._known.clear()

    # --- finding users

    async def find(self, name: str, database: str, *, for_login: bool = False) -> User | None:
        """The user, None: there is none, or none that this member can learn of now.

        for_login: he is read, or asked for, anew, as one who does not exist always is. So the time says nothing about
        who exists. OverloadedError: this member would have to ask another one, and asks for many users already.
        """
        key = user_id(name, database)
        known = self._fresh(key, anew=for_login)
        if known is None and not self.has_users():
            if self._asking >= MOST_ASKED:
                raise OverloadedError("too many logins are under way")
            self._asking += 1
            try:
                known = await self._ask_others(name, database)
            finally:
                self._asking -= 1
        return None if known is None else known.user

    def has_none(self) -> bool:
        """Whether the set has no user yet."""
        store = self._member.store
        coll = store.collection(USERS_NS)
        if coll is None:
            return True
        sql = f"SELECT 1 FROM {coll.table} LIMIT 1"
        return store.query(lambda connection: first_row(connection, sql)) is None

    def _fresh(self, key: str, *, anew: bool = False) -> _Known | None:
        known, now = self._known.get(key), self._member.clock.now()
        if not anew and known is not None and now - known.read_at < KNOWN_MS:
            return known
        return self._read(key, now) if self.has_users() else None

    def has_users(self) -> bool:
        """Whether this member's own documents tell of users: those of an arbiter, or of a delayed member, do not."""
        node = self._member.node
        me = None if node.config is None else node.config.member_at(self._member.host)
        return me is None or (node.state.is_readable and not me.secondary_delay_secs)

    def _read(self, key: str, now: Millis) -> _Known | None:
        """Read the user from this member's own documents."""
        return self._keep(key, ReplicatedDocument(USERS_NS, encode_key(key)).read(self._member.store), now)

    def _keep(self, key: str, raw: bytes | None, now: Millis) -> _Known | None:
        if raw is None:
            self._known.pop(key, None)
            return None
        known = _Known(User.parse(raw), now)
        before = self._known.get(key)
        if before is not None and before.user.stamp == known.user.stamp:
            known.basic = before.basic
        self._known[key] = known
        return known

    async def _ask_others(self, name: str, database: str) -> _Known | None:
        """Ask who holds the documents; while none answers, go on with what was known, or is in this member's files."""
        key, member = user_id(name, database), self._member
        config, primary = member.node.config, member.node.primary_host
        holders = [] if config is None else [row.host for row in config.members if row.bears_data]
        hosts = sorted((host for host in holders if host != member.host), key=lambda host: host != primary)
        for host in hosts:
            try:
                raw = await self._ask(host, name, database)
            except ReplError as error:
                log.info("%s was asked for the user %s, and did not answer: %s", host, key, error.message)
                continue
            return self._keep(key, raw, member.clock.now())
        known = self._known.get(key)
        if known is None:
            return self._read(key, member.clock.now())
        known.read_at = member.clock.now()
        return known

    async def _ask(self, host: HostPort, name: str, database: str) -> bytes | None:
        """The document of the user at another member, with its keys: only members are given these."""
        command = {"usersInfo": {"user": name, "db": database}, "showCredentials": True}
        reply = await self._member.peer.call(host, command, timeout_ms=MEMBER_MS)
        users = reply.get("users")
        if reply.get("ok") != 1 or not isinstance(users, list):
            raise ReplError(str(reply.get("errmsg")))
        return RawDocument(reply.get_raw("users") or b"").get_raw("0")

    # --- passwords

    def decoy(self, name: str, database: str) -> Credentials:
        """Credentials for a name that no user has: who tries it learns nothing from the answer.

        All members with one key file give the same, after a restart too, as they do for a user.
        """
        keys = self._member.keys
        secret = keys.derive(DECOY)[0] if keys.is_secret else self.secret
        made = hmac.digest(secret, f"{database}.{name}".encode(), hashlib.sha512)
        return Credentials(ITERATIONS, made[:SALT_BYTES], made[-32:], made[-32:])

    async def check_password(self, name: str, database: str, password: str) -> User:
        """The user, if this is the password (18 else). OverloadedError: too many wait for the same."""
        user = await self.find(name, database, for_login=True)
        mark = hmac.digest(self.secret, password.encode(), "sha256")
        known = self._known.get(user_id(name, database))
        if user is not None and known is not None and hmac.compare_digest(known.basic, mark):
            return user
        if self._checking >= MOST_CHECKS:
            raise OverloadedError("too many logins are under way")
        self._checking += 1
        try:
            async with self._one_check:
                credentials = self.decoy(name, database) if user is None else user.credentials
                fits = await self._member.workers.run(lambda: credentials.fit(password))
        finally:
            self._checking -= 1
        if user is None or not fits:
            raise AuthenticationFailedError("Authentication failed.")
        known = self._known.get(user_id(name, database))
        if known is not None and known.user.stamp == user.stamp:
            known.basic = mark
        return user
