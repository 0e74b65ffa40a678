"""Certificates for the tests, made by trustme: a CA and those that it signs, as PEM files in a folder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from replset.member.net.tls import TlsFiles

trustme = pytest.importorskip("trustme", reason="trustme makes the certificates (pip install -e .[test])")

MEMBERS = "the members of rs0"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Authority:
    """A CA whose file is `ca`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._name = folder, name
        self._ca = trustme.CA(organization_name=f"a CA, {name}")
        self.ca = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))

    def issue(self, *hosts: str, unit: str | None = MEMBERS, expired: bool = False, name: str = "member") -> TlsFiles:
        """Write a certificate and its key. unit: the OU of its subject, by which members know each other."""
        until = LONG_AGO + timedelta(days=2) if expired else None
        made = self._ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            organization_name="replset",
            organization_unit_name=unit,
            not_before=LONG_AGO if expired else None,
            not_after=until,
        )
        files = TlsFiles(self._folder / f"{name}.crt", self._folder / f"{name}.key", self.ca)
        files.cert.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        files.key.touch(mode=0o600)
        made.private_key_pem.write_to_path(str(files.key))
        return files


def flags_of(files: TlsFiles) -> list[str]:
    """Return the options of `replset start` for the files."""
    return ["--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-ca", str(files.ca)]
