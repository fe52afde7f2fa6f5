"""A Kafka that asks for a client's certificate, a password and rights, and the files that go with it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from streaming.kafka.local import LocalKafka
from tests.certificates import Certificate

USER = "magnetar"
SCRAM_USER = "sam"
GUEST = "guest"
"""Has no rights but those that a test grants."""
PASSWORD = "Tr0ub4dor-&3-of-the-client"
WRONG = "not-the-password-0815"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecuredKafka:
    """`kafka` answers only to who has a certificate of its authority and a password: SASL_SSL, PLAIN or SCRAM."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        authority = Certificate("authority")
        self.trust = self._write("trust.pem", authority.pem())
        self.foreign = self._write("foreign.pem", Certificate("somebody else").pem())
        self.key = self._write("client.pem", Certificate("client", authority).pem(with_key=True))
        server = self._write("server.pem", Certificate("server", authority).pem(with_key=True))
        self.kafka = LocalKafka(
            folder / "broker",
            properties={
                "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} required username="broker" '
                f'password="{PASSWORD}" user_broker="{PASSWORD}" user_{USER}="{PASSWORD}" user_{GUEST}="{PASSWORD}";',
                # The listener's name is PLAINTEXT, so the broker would verify transactions with itself without TLS.
                "transaction.partition.verification.enable": "false",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:broker;User:{USER};User:{SCRAM_USER};User:ANONYMOUS",
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
