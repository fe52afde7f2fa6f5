"""Credentials for a Kafka: a file of properties as Kafka's own tools take it, for the two clients that are here.

The file is the only place where secrets are. What travels (command lines, Spark's plans, checkpoints, pickled sinks) is
its path: Python's client reads it where it connects, and Java's is told ``${file:PATH:PROPERTY}``, which Kafka's own
`FileConfigProvider` replaces when the client is made. So every machine that runs a Spark task needs the file, at the
same path.
"""

from __future__ import annotations

import logging
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

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
    # Java reads keys in PKCS #8 alone, and of the encrypted ones only those that OpenSSL hasn't made for years.
    "ssl.keystore.location": ("PRIVATE KEY", "openssl pkcs12 -nodes -in FILE -out key.pem"),
}

_TALKERS = ("kafka.net.connection", "kafka.protocol.parser")
"""What logs every request at DEBUG, and so the password."""

_PROPERTY = re.compile(r"[ \t\f]*((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_OPTION = r"""(\w+)\s*=\s*("(?:[^"\\]|\\["'\\])*"|'(?:[^'\\]|\\["'\\])*'|[\w.$-]+)"""
_JAAS = re.compile(rf"\s*([\w.]+)\s+required((?:\s+{_OPTION})*)\s*;\s*")


class KafkaConfigError(ValueError):
    """A file of Kafka properties can't be used. The text names the file and the property, never a secret."""


class Secret(str):
    """Text that a dump of the settings it is in doesn't show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[hidden]'"


class KafkaConfig(NamedTuple):
    """How to speak to a Kafka. Holds a path and no secret: may be pickled and printed."""

    file: Path | None = None
    """Properties, see ``docs/security.md``; None: without encryption and without a password. An absolute path."""

    @classmethod
    def of(cls, file: str | Path | None) -> KafkaConfig:
        """Of a file that is there and can be used; raises `KafkaConfigError` if it can't."""
        config = cls(None if file is None else Path(file).absolute())
        config.client()
        return config

    @property
    def is_open(self) -> bool:
        """Whether every user of this machine can read the file."""
        return self.file is not None and bool(self.file.stat().st_mode & stat.S_IROTH)

    def client(self) -> dict[str, Any]:
        """Keyword arguments for kafka-python, read anew: a changed password is used from the next connection on.
        Raises `KafkaConfigError`."""
        found = self._read()
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
        """The properties, under Java's names, with ``sasl.username`` and ``sasl.password`` however they were given."""
        if self.file is None:
            return {}
        if set("}:") & set(str(self.file)):
            raise KafkaConfigError(
                f"{self.file}: Kafka's clients can't be told a path with ':' or '}}': rename it"
            )
        try:
            return _checked(parse_properties(self.file.read_text(encoding="utf-8")))
        except OSError as error:
            raise KafkaConfigError(f"{error.filename}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise KafkaConfigError(f"{self.file}: isn't text in UTF-8") from None
        except KafkaConfigError as error:
            raise KafkaConfigError(f"{self.file}: {error}") from None


PLAIN = KafkaConfig()
"""Neither encryption nor a password."""


def parse_properties(text: str) -> dict[str, str]:
    """The properties in `text`, in the syntax of `java.util.Properties`: Java reads the same file."""
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
                f"the property {name!r} is not supported; these are: {', '.join(_SUPPORTED)} (the address is in the "
                "kafka:// URL, certificates are PEM)"
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
            # Kafka's clients would ignore it, and speak in the clear to whoever answers.
            raise KafkaConfigError(f"{given[0]} has no effect with security.protocol={protocol}")
    for name, (part, recipe) in _PEM.items():
        if name in found:
            found[name] = str(Path(found[name]).absolute())
            if f"-----BEGIN {part}-----".encode() not in Path(found[name]).read_bytes():
                raise KafkaConfigError(
                    f"{name}: {found[name]} has no '-----BEGIN {part}-----'; make such a file with '{recipe}'"
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
                "sasl.username or sasl.password has a quote, a backslash or a control character, "
                "which only sasl.jaas.config can hold"
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
