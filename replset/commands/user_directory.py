"""The users of the set, as this member knows them: documents of admin.system.users, replicated as any other."""

from __future__ import annotations

from replset.auth.login import Login
from replset.auth.roles import Grants


class UserDirectory:
    """Looks up what a login allows now."""

    def grants(self, login: Login) -> Grants | None:
        """What the user of this login may do now; None: it is over."""
        return None
