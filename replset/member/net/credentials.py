"""The files by which a member proves who it is, its key file and its certificate, which can be read again."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from replset.key_file import Keys, read_key_file
from replset.member.net.tls import Certifies, MemberTls, TlsFiles, needs_no_certificate
from replset.member.options import PREFER_TLS, MemberOptions


class Credentials:
    """The keys and the certificates in force. Those who use them keep this object, whose content `reload` replaces.

    tls: None: the ports speak plain TCP. certifies: with a certificate and without a key file, members prove themselves
    by their certificates. With --key-file-or-certificate they do it by either.
    """

    def __init__(
        self,
        keys: Keys | None = None,
        tls: MemberTls | None = None,
        key_file: Path | None = None,
        *,
        or_certified: bool = False,
    ) -> None:
        """keys: those of the key file; None: there is none. or_certified: a member's certificate serves as well."""
        self._key_file = key_file
        self.tls = tls
        self.keys = keys or Keys.public()
        self.keys.or_certified = or_certified
        by_certificate = tls is not None and (keys is None or or_certified)
        self.certifies: Certifies = tls.is_members if tls is not None and by_certificate else needs_no_certificate

    @classmethod
    def of_options(cls, options: MemberOptions) -> Self:
        """Read the files that the options name. BadValueError names the file and what is wrong."""
        tls = None
        if options.tls_cert is not None and options.tls_key is not None and options.tls_ca is not None:
            name = options.advertise or options.bind_ip
            files = TlsFiles(options.tls_cert, options.tls_key, options.tls_ca)
            by_certificate = options.key_file is None or options.key_file_or_certificate
            tls = MemberTls(files, name, needs_attributes=by_certificate, is_optional=options.tls_mode == PREFER_TLS)
        keys = None if options.key_file is None else read_key_file(options.key_file)
        return cls(keys, tls, options.key_file, or_certified=options.key_file_or_certificate)

    @property
    def has_files(self) -> bool:
        """Whether there is anything to read again."""
        return self._key_file is not None or self.tls is not None

    def reload(self) -> bool:
        """Read all files again, then use them for new connections. False: there are none.

        BadValueError: one of them is wrong, and what was read before stays in force.
        """
        keys = None if self._key_file is None else read_key_file(self._key_file)
        if self.tls is not None:
            self.tls.reload()
        if keys is not None:
            self.keys.replace(keys)
        return self.has_files

    def warnings(self) -> list[str]:
        """Return what an operator should do about the files."""
        warning = None if self.tls is None else self.tls.warning()
        return [] if warning is None else [warning]
