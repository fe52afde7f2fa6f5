"""A Kafka that asks for a client's certificate and a password, and the files that go with it."""

import datetime
import ipaddress
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from streaming.kafka.local import LocalKafka

USER = "magnetar"
PASSWORD = "Tr0ub4dor-&3-of-the-client"
WRONG = "not-the-password-0815"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecuredKafka:
    """`kafka` answers only to who has a certificate of its authority and a password: SASL_SSL, PLAIN or SCRAM."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        authority = _Certificate("authority")
        self.trust = self._write("trust.pem", authority.pem())
        self.foreign = self._write("foreign.pem", _Certificate("somebody else").pem())
        self.key = self._write("client.pem", _Certificate("client", authority).pem(with_key=True))
        server = self._write("server.pem", _Certificate("server", authority).pem(with_key=True))
        self.kafka = LocalKafka(
            folder / "broker",
            properties={
                "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} required username="broker" '
                f'password="{PASSWORD}" user_broker="{PASSWORD}" user_{USER}="{PASSWORD}";',
                "listener.name.plaintext.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram."
                "ScramLoginModule required;",
                "ssl.client.auth": "required",
                "listener.name.plaintext.ssl.client.auth": "required",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(server),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.trust),
            },
        )

    def file(self, name: str, changed: Mapping[str, str | None]) -> Path:
        """A client's properties: those that are right, but for what is `changed` (None: left out)."""
        right = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.trust),
            "ssl.keystore.location": str(self.key),
        }
        lines = [f"{key}={value}\n" for key, value in {**right, **changed}.items() if value is not None]
        return self._write(f"{name}.properties", "".join(lines).encode())

    def _write(self, name: str, content: bytes) -> Path:
        file = self._folder / name
        file.touch(mode=0o600)
        file.write_bytes(content)
        return file


@contextmanager
def secured_kafka(folder: Path) -> Iterator[SecuredKafka]:
    """One that is up."""
    secured = SecuredKafka(folder)
    try:
        secured.kafka.start()
        yield secured
    finally:
        secured.kafka.kill()


class _Certificate:
    """A key and a certificate for 127.0.0.1, signed by `issuer` or by itself."""

    def __init__(self, name: str, issuer: "_Certificate | None" = None) -> None:
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
            .not_valid_before(today - datetime.timedelta(days=1))
            .not_valid_after(today + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(address, critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(issuer_s, critical=False)
            .sign(signer._key, hashes.SHA256())
        )

    def pem(self, *, with_key: bool = False) -> bytes:
        certificate = self._certificate.public_bytes(serialization.Encoding.PEM)
        key = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return key + certificate if with_key else certificate
