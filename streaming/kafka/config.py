"""Credentials for Kafka: a properties file as Kafka's own tools use it, for kafka-python and for Spark's Java client.

Secrets are in that file only. Command lines, Spark's plans, checkpoints and pickled sinks carry its path. Python's client
reads the file when it connects. Java's client gets ``${file:PATH:PROPERTY}``, which Kafka's `FileConfigProvider` resolves
when the client is created. So every machine that runs a Spark task needs the file at the same path.
"""

from __future__ import annotations

import logging
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

from schemas.errors import MagnetarError
from sinks.small_files import read_small, read_small_text

_PROTOCOLS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SUPPORTED = (
    "security.protocol", "sasl.mechanism", "sasl.jaas.config", "sasl.username", "sasl.password",
    "ssl.truststore.location", "ssl.truststore.type", "ssl.ca.location", "ssl.keystore.location", "ssl.keystore.type",
    "ssl.endpoint.identification.algorithm",
)  # fmt: skip

_SECRET = ("sasl.jaas.config", "sasl.password")
_ONLY = {"ssl.truststore.type": ("PEM",), "ssl.keystore.type": ("PEM",), "security.protocol": _PROTOCOLS,
         "sasl.mechanism": tuple(_LOGIN_MODULES), "ssl.endpoint.identification.algorithm": ("https", "")}  # fmt: skip
_PEM = {
    "ssl.truststore.location": ("CERTIFICATE", "keytool -list -rfc -keystore FILE > trust.pem"),
    # Java reads keys in PKCS #8 only, and of encrypted ones only a kind that OpenSSL stopped writing years ago.
    "ssl.keystore.location": ("PRIVATE KEY", "openssl pkcs12 -nodes -in FILE -out key.pem"),
}

_TALKERS = ("kafka.net.connection", "kafka.protocol.parser")
"""Loggers that log every request at DEBUG, including the one with the password."""

_PROPERTY = re.compile(r"[ \t\f]*((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_OPTION = r"""(\w+)\s*=\s*("(?:[^"\\]|\\["'\\])*"|'(?:[^'\\]|\\["'\\])*'|[\w.$-]+)"""
_JAAS = re.compile(rf"\s*([\w.]+)\s+required((?:\s+{_OPTION})*)\s*;\s*")


class KafkaConfigError(MagnetarError, ValueError):
    """A file of Kafka properties is unusable. The text names the file and the property, never a secret."""


class Secret(str):
    """Text that is hidden in a dump of the settings that contain it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[hidden]'"


class KafkaConfig(NamedTuple):
    """How to connect to a Kafka. It holds a path and no secret, so it can be pickled and printed."""

    file: Path | None = None
    """The absolute path of the properties (see ``docs/operate/security.md``); None: neither TLS nor a password."""

    @classmethod
    def of(cls, file: str | Path | None) -> KafkaConfig:
        """The settings in `file`. Raises `KafkaConfigError` if the file is missing or unusable."""
        config = cls(None if file is None else Path(file).absolute())
        config.client()
        return config

    @property
    def is_open(self) -> bool:
        """Whether every user of this machine can read a password in the file. Raises `KafkaConfigError`."""
        return (
            self.file is not None
            and bool(self.file.stat().st_mode & stat.S_IROTH)
            and not self._read().keys().isdisjoint(_SECRET)
        )

    def client(self) -> dict[str, Any]:
        """Keyword arguments for kafka-python. The file is read on every call, so a changed password takes effect with the
        next connection. Raises `KafkaConfigError`."""
        found = self._read()
        logging.getLogger("kafka.net.selector").addFilter(_is_no_slow_step)
        for name in _TALKERS if "sasl.password" in found else ():
            logger = logging.getLogger(name)
            logger.setLevel(max(logging.INFO, logger.level))
        settings: dict[str, Any] = {
            "security_protocol": found.get("security.protocol"),
            "sasl_mechanism": found.get("sasl.mechanism"),
            "sasl_plain_username": found.get("sasl.username"),
            "sasl_plain_password": found.get("sasl.password"),
            "ssl_cafile": found.get("ssl.truststore.location"),
            "ssl_certfile": found.get("ssl.keystore.location"),
            "ssl_keyfile": found.get("ssl.keystore.location"),
        }
        if found.get("ssl.endpoint.identification.algorithm") == "":
            settings["ssl_check_hostname"] = False
        return {name: value for name, value in settings.items() if value is not None}

    def spark(self) -> dict[str, str]:
        """Options for Spark's Kafka source; secrets are references to the file. Raises `KafkaConfigError`."""
        found = self._read()
        if not found:
            return {}
        options = {
            "config.providers": "file",
            "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        }
        for name, value in found.items():
            if name not in ("sasl.username", "sasl.password"):
                options[name] = self._reference(name) if name in _SECRET else value
        if "sasl.username" in found and "sasl.jaas.config" not in found:
            user, password = self._reference("sasl.username"), self._reference("sasl.password")
            module = _LOGIN_MODULES[found["sasl.mechanism"]]
            options["sasl.jaas.config"] = f'{module} required username="{user}" password="{password}";'
        return {f"kafka.{name}": value for name, value in options.items()}

    def _reference(self, name: str) -> str:
        return f"${{file:{self.file}:{name}}}"

    def _read(self) -> dict[str, str]:
        """The properties by their Java names, with ``sasl.username`` and ``sasl.password`` in whatever form they were given."""
        if self.file is None:
            return {}
        if set("}:") & set(str(self.file)):
            raise KafkaConfigError(
                f"{self.file}: Kafka's clients cannot read a path that contains ':' or '}}': rename it"
            )
        try:
            return _checked(parse_properties(read_small_text(self.file)))
        except OSError as error:
            raise KafkaConfigError(f"{error.filename}: {error.strerror}") from None
        except KafkaConfigError as error:
            raise KafkaConfigError(f"{self.file}: {error}") from None


PLAIN = KafkaConfig()
"""Neither TLS nor a password."""


def _is_no_slow_step(record: logging.LogRecord) -> bool:
    """False for what kafka-python says of a step that took 0.1 s, as steps do on a busy machine."""
    return "is blocking the event loop" not in record.getMessage()


def parse_properties(text: str) -> dict[str, str]:
    """The properties in `text`, in the syntax of `java.util.Properties`, because Java reads the same file."""
    found: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|[\r\n]", text))
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        match = _PROPERTY.fullmatch(line)
        assert match is not None  # it matches every line: see its test
        name, value = (_ESCAPED.sub(_unescaped, part) for part in match.groups())
        found[name] = Secret(value)
    return found


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _ESCAPES.get(escaped, escaped)


def _checked(found: dict[str, str]) -> dict[str, str]:
    for name in found:
        if name not in _SUPPORTED:
            raise KafkaConfigError(
                f"the property {name!r} is not supported; supported are: {', '.join(_SUPPORTED)} (the address is in the "
                "kafka:// URL, and certificates are PEM)"
            )
    found = {name: value if name in _SECRET else str(value) for name, value in found.items()}
    if "ssl.ca.location" in found:
        found["ssl.truststore.location"] = found.pop("ssl.ca.location")
    for name, allowed in _ONLY.items():
        if found.get(name, allowed[0]) not in allowed:
            raise KafkaConfigError(f"{name}: expected {' or '.join(map(repr, allowed))}")
    protocol = found.setdefault("security.protocol", _PROTOCOLS[0])
    for family in ("sasl", "ssl"):
        given = [name for name in found if name.startswith(family)]
        if given and family.upper() not in protocol:
            # Kafka's clients would ignore it and connect in plain text.
            raise KafkaConfigError(f"{given[0]} has no effect with security.protocol={protocol}")
    for name, (part, recipe) in _PEM.items():
        if name in found:
            found[name] = str(Path(found[name]).absolute())
            if f"-----BEGIN {part}-----".encode() not in read_small(found[name]):
                raise KafkaConfigError(
                    f"{name}: {found[name]} has no '-----BEGIN {part}-----'; create such a file with '{recipe}'"
                )
            found[name.replace("location", "type")] = "PEM"
    if "SASL" in protocol:
        found |= _credentials(found)
    return found


def _credentials(found: dict[str, str]) -> dict[str, str]:
    """User and password, from the two properties or from the JAAS one."""
    mechanism = found.get("sasl.mechanism")
    if mechanism is None:
        raise KafkaConfigError(f"sasl.mechanism is missing: expected {' or '.join(_LOGIN_MODULES)}")
    user, password = found.get("sasl.username"), found.get("sasl.password")
    if "sasl.jaas.config" not in found:
        if not user or not password:
            raise KafkaConfigError("sasl.username and sasl.password (or sasl.jaas.config) are missing")
        if re.search(r"[\"\\\x00-\x1f]", user + password):
            raise KafkaConfigError(
                "sasl.username or sasl.password contains a quote, a backslash or a control character; "
                "use sasl.jaas.config for such a value"
            )
        return {}
    if user is not None or password is not None:
        raise KafkaConfigError("give sasl.jaas.config or sasl.username and sasl.password, not both")
    match = _JAAS.fullmatch(found["sasl.jaas.config"])
    module = _LOGIN_MODULES[mechanism]
    options = {} if match is None else {o[1]: _unquoted(o[2]) for o in re.finditer(_OPTION, match[2])}
    if match is None or match[1] != module or options.keys() != {"username", "password"}:
        raise KafkaConfigError(f'sasl.jaas.config: expected {module} required username="…" password="…";')
    return {"sasl.username": options["username"], "sasl.password": Secret(options["password"])}


def _unquoted(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1]) if word[0] in "\"'" else word
