"""A user as the set keeps it: a document that is none stops whoever reads it, and not somewhere behind."""

from __future__ import annotations

import pytest

from replset.auth.roles import Role
from replset.auth.scram import MECHANISM, Credentials
from replset.auth.users import User
from replset.bson import encode
from replset.errors import BadValueError

CREDENTIALS = Credentials(4096, b"salt", b"stored", b"server")
DOCUMENT: dict[str, object] = {
    "_id": "admin.anna",
    "user": "anna",
    "db": "admin",
    "credentials": {MECHANISM: CREDENTIALS.document()},
    "roles": [{"role": "root", "db": "admin"}],
}


def test_what_was_kept_is_read() -> None:
    user = User.parse(encode(DOCUMENT))
    assert (user.name, user.database, user.credentials) == ("anna", "admin", CREDENTIALS)
    assert user.roles == {Role("root", "admin")}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("user", "db") for value in (None, 1, b"anna")),
        *(("credentials", value) for value in (None, "x", {}, {MECHANISM: "x"}, {"SCRAM-SHA-1": {}})),
        *(("credentials", {MECHANISM: {**CREDENTIALS.document(), name: 1.5}}) for name in CREDENTIALS.document()),
    ],
)
def test_a_damaged_document_is_no_user(field: str, value: object) -> None:
    with pytest.raises(BadValueError):
        User.parse(encode({**DOCUMENT, field: value}))
