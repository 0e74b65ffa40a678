"""The key file and the certificates, read again while a member runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from replset.errors import BadValueError
from replset.ids import HostPort
from replset.key_file import Handshake, Keys
from replset.member.net.credentials import Credentials
from replset.member.options import MemberOptions
from tests.certificates import Authority

HANDSHAKE = Handshake(HostPort("a:1"), HostPort("b:1"), bytes(32), bytes(range(32)))


def knows(keys: Keys, key: str) -> bool:
    return keys.answer(HANDSHAKE, Keys([key]).proofs("asking", HANDSHAKE)) is not None


def key_file(folder: Path, text: str) -> Path:
    path = folder / "key"
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def test_a_key_is_changed_while_the_member_runs(tmp_path: Path) -> None:
    """Old, both, new: who holds the keys sees each change."""
    path = key_file(tmp_path, "OLDOLDOLD")
    credentials = Credentials.of_options(MemberOptions("rs0", tmp_path, key_file=path))
    keys = credentials.keys
    key_file(tmp_path, "- OLDOLDOLD\n- NEWNEWNEW\n")
    assert credentials.reload()
    assert knows(keys, "OLDOLDOLD")
    assert knows(keys, "NEWNEWNEW")
    key_file(tmp_path, "NEWNEWNEW")
    assert credentials.reload()
    assert not knows(keys, "OLDOLDOLD")
    assert knows(keys, "NEWNEWNEW")


def test_wrong_certificates_leave_the_key_as_it_was(tmp_path: Path) -> None:
    path = key_file(tmp_path, "OLDOLDOLD")
    files = Authority(tmp_path).issue()
    options = MemberOptions("rs0", tmp_path, key_file=path, tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca)
    credentials = Credentials.of_options(options)
    key_file(tmp_path, "NEWNEWNEW")
    files.ca.write_text("")
    with pytest.raises(BadValueError, match="TLS CA file"):
        credentials.reload()
    assert knows(credentials.keys, "OLDOLDOLD")
    assert not knows(credentials.keys, "NEWNEWNEW")


def test_a_member_without_files_has_nothing_to_read(tmp_path: Path) -> None:
    credentials = Credentials.of_options(MemberOptions("rs0", tmp_path))
    assert not credentials.reload()
    assert not credentials.keys.is_secret
    assert credentials.certifies(None), "no certificate is asked for"


def test_beside_a_key_file_certificates_prove_no_member(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue()
    options = MemberOptions("rs0", tmp_path, tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca)
    assert not Credentials.of_options(options).certifies(None), "a connection without a certificate is a stranger's"
    keyed = Credentials(Keys(["OLDOLDOLD"]), Credentials.of_options(options).tls)
    assert keyed.certifies(None), "the key decides"
