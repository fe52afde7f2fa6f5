"""Certificates for tests."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificate:
    """A key and a certificate for 127.0.0.1, signed by `issuer` or by itself."""

    def __init__(self, name: str, issuer: "Certificate | None" = None, begins: int = -1) -> None:
        """`begins`: when it becomes valid, for two days (days from now)."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = issuer or self
        today = datetime.datetime.now(datetime.UTC)
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        issuer_s = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer._key.public_key())
        self._certificate = (
            x509.CertificateBuilder(signer._subject, self._subject, self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today + datetime.timedelta(days=begins))
            .not_valid_after(today + datetime.timedelta(days=begins + 2))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(address, critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(issuer_s, critical=False)
            .sign(signer._key, hashes.SHA256())
        )

    def pem(self, *, with_key: bool = False, password: bytes | None = None) -> bytes:
        """`password`: encrypts the key."""
        certificate = self._certificate.public_bytes(serialization.Encoding.PEM)
        encryption = (
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password)
        )
        key = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
        return key + certificate if with_key else certificate
