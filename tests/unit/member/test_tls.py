"""What a member accepts as its certificate, and what it says of one that cannot serve it."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from replset.errors import BadValueError
from replset.member.net.tls import MemberTls, TlsFiles
from tests.certificates import Authority

HOST = "127.0.0.1"


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def junk(path: Path) -> Path:
    path.write_text("this is no certificate")
    path.chmod(0o600)
    return path


BAD: dict[str, tuple[Callable[[Authority, Path], TlsFiles], str]] = {
    "it-has-ended": (lambda ca, at: ca.issue(expired=True), "certificate has expired"),
    "it-is-for-another-name": (lambda ca, at: ca.issue("m1.example"), "is not valid for '127.0.0.1'"),
    "its-ca-is-not-believed": (
        lambda ca, at: dataclasses.replace(ca.issue(), ca=Authority(at, "other").ca),
        "unable to get local issuer certificate",
    ),
    "the-key-is-of-another": (
        lambda ca, at: dataclasses.replace(ca.issue(), key=ca.issue(name="other").key),
        "key values mismatch",
    ),
    "the-certificate-is-none": (lambda ca, at: dataclasses.replace(ca.issue(), cert=junk(at / "x")), "is not PEM"),
    "the-key-is-none": (lambda ca, at: dataclasses.replace(ca.issue(), key=junk(at / "x")), "is not PEM"),
    "the-ca-is-none": (lambda ca, at: dataclasses.replace(ca.issue(), ca=junk(at / "x")), "no certificate"),
    "there-is-no-file": (lambda ca, at: dataclasses.replace(ca.issue(), ca=at / "none"), "No such file"),
}


@pytest.mark.parametrize(("made", "reason"), BAD.values(), ids=BAD)
def test_a_certificate_that_the_others_would_refuse_is_refused_at_the_start(
    ca: Authority, tmp_path: Path, made: Callable[[Authority, Path], TlsFiles], reason: str
) -> None:
    with pytest.raises(BadValueError, match=reason) as found:
        MemberTls(made(ca, tmp_path), HOST)
    assert "\n" not in found.value.message
    assert str(tmp_path) in found.value.message


def test_a_key_that_everybody_may_read_is_refused(ca: Authority) -> None:
    files = ca.issue()
    files.key.chmod(0o644)
    with pytest.raises(BadValueError, match=f"chmod 600 {files.key}"):
        MemberTls(files, HOST)


def test_members_that_prove_themselves_by_certificates_need_a_name_in_common(ca: Authority, tmp_path: Path) -> None:
    assert MemberTls(ca.issue(unit=None), HOST, needs_attributes=True), "an O is enough"
    nameless = tmp_path / "nameless"
    nameless.mkdir()
    with pytest.raises(BadValueError, match="without O, OU or DC"):
        MemberTls(_without_subject(nameless), HOST, needs_attributes=True)


def _without_subject(folder: Path) -> TlsFiles:
    """Make a certificate of its own CA, with a common name alone."""
    x509 = pytest.importorskip("cryptography.x509")
    from datetime import timedelta
    from ipaddress import ip_address

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from tests.certificates import LONG_AGO

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(LONG_AGO)
        .not_valid_after(LONG_AGO + timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = TlsFiles(folder / "crt", folder / "key", folder / "crt")
    files.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files.key.touch(mode=0o600)
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def test_wrong_files_change_nothing_when_they_are_read_again(ca: Authority, tmp_path: Path) -> None:
    files = ca.issue()
    tls = MemberTls(files, HOST)
    wire, http, client = tls.wire, tls.http, tls.client
    shutil.copy(junk(tmp_path / "x"), files.cert)
    with pytest.raises(BadValueError):
        tls.reload()
    assert (tls.wire, tls.http, tls.client) == (wire, http, client)
    ca.issue()
    tls.reload()
    assert tls.wire is not wire


def test_a_certificate_that_ends_soon_is_a_warning(ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = MemberTls(ca.issue(), HOST)
    assert tls.warning() is None
    monkeypatch.setattr("replset.member.net.tls.time.time", lambda: tls.expires_at - 86_400)
    assert "ends at" in (tls.warning() or "")
