"""Credentials: what a file of properties may say, and that no secret is where it can be seen."""

import logging
import pickle
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sinks.kafka import KafkaResponses
from streaming.cli.app import app
from streaming.kafka.client import explain
from streaming.kafka.config import PLAIN, KafkaConfig, KafkaConfigError, Secret, parse_properties

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
PASSWORD = "hunter2-and-more"


def config(folder: Path, text: str) -> KafkaConfig:
    file = folder / "client.properties"
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8")
    return KafkaConfig(file)


def pem(folder: Path, name: str, *parts: str) -> Path:
    file = folder / name
    file.write_text("".join(f"-----BEGIN {part}-----\nAA==\n-----END {part}-----\n" for part in parts))
    return file


def test_without_a_file_nothing_is_set() -> None:
    assert KafkaConfig.of(None) == PLAIN
    assert PLAIN.client() == PLAIN.spark() == {}
    assert not PLAIN.is_open


def test_user_and_password(tmp_path: Path) -> None:
    of = config(tmp_path, SASL + f"sasl.username=me\nsasl.password={PASSWORD}\n")
    assert of.client() == {
        "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me",
        "sasl_plain_password": PASSWORD,
    }  # fmt: skip
    assert of.spark() == {
        "kafka.config.providers": "file",
        "kafka.config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{PLAIN_MODULE} required username="${{file:{of.file}:sasl.username}}" '
        f'password="${{file:{of.file}:sasl.password}}";',
    }


def test_only_a_password_needs_to_be_kept_from_others(tmp_path: Path) -> None:
    secret = config(tmp_path, SASL + f"sasl.username=me\nsasl.password={PASSWORD}\n")
    assert not secret.is_open
    assert secret.file is not None
    secret.file.chmod(0o644)
    assert KafkaConfig(secret.file).is_open
    other = tmp_path / "other"
    other.mkdir()
    harmless = config(other, "security.protocol=PLAINTEXT\n")
    assert harmless.file is not None
    harmless.file.chmod(0o644)
    assert not harmless.is_open


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_form_of_java(tmp_path: Path, mechanism: str) -> None:
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={module} required \\\n"
    of = config(tmp_path, text + """  username='me and you' password="a\\\\"b\\\\\\\\c";\n""")
    client = of.client()
    assert (client["sasl_plain_username"], client["sasl_plain_password"]) == ("me and you", 'a"b\\c')
    assert of.spark()["kafka.sasl.jaas.config"] == f"${{file:{of.file}:sasl.jaas.config}}"


def test_certificates(tmp_path: Path) -> None:
    trust, key = (
        pem(tmp_path, "trust.pem", "CERTIFICATE"),
        pem(tmp_path, "key.pem", "PRIVATE KEY", "CERTIFICATE"),
    )
    tls = "security.protocol=SSL\nssl.endpoint.identification.algorithm=\n"
    expected = {
        "security_protocol": "SSL", "ssl_cafile": str(trust), "ssl_certfile": str(key), "ssl_keyfile": str(key),
        "ssl_check_hostname": False,
    }  # fmt: skip
    for name in ("ssl.ca.location", "ssl.truststore.location"):
        of = config(tmp_path, f"{tls}{name}={trust}\nssl.keystore.location={key}\n")
        assert of.client() == expected
        spark = of.spark()
        assert spark["kafka.ssl.truststore.location"] == str(trust)
        assert spark["kafka.ssl.keystore.location"] == str(key)
        assert spark["kafka.ssl.truststore.type"] == spark["kafka.ssl.keystore.type"] == "PEM"
        assert spark["kafka.ssl.endpoint.identification.algorithm"] == ""
        assert "kafka.ssl.ca.location" not in spark


JAAS = SASL + "sasl.jaas.config="


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bootstrap.servers=a:1\n", "'bootstrap.servers' is not supported"),
        ("sasl.oauthbearer.token.endpoint.url=x\n", "'sasl.oauthbearer.token.endpoint.url' is not supported"),
        ("ssl.truststore.password=x\n", "'ssl.truststore.password' is not supported.*certificates are PEM"),
        ("security.protocol=TLS\n", "security.protocol: expected 'PLAINTEXT' or"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\n", "sasl.mechanism: expected 'PLAIN' or"),
        ("security.protocol=SASL_SSL\n", "sasl.mechanism is missing"),
        ("security.protocol=SSL\nssl.truststore.type=JKS\n", "ssl.truststore.type: expected 'PEM'"),
        (SASL, "sasl.username and sasl.password .* are missing"),
        (SASL + "sasl.username=me\n", "sasl.username and sasl.password .* are missing"),
        (SASL + f'sasl.username=me\nsasl.password={PASSWORD}"\n', "use sasl.jaas.config for such a value"),
        (f"sasl.mechanism=PLAIN\nsasl.password={PASSWORD}\n", "has no effect with security.protocol=PLAINTEXT"),
        (SASL + "ssl.ca.location=ca.pem\n", "has no effect with security.protocol=SASL_PLAINTEXT"),
        ("security.protocol=SSL\nssl.ca.location=/nowhere/ca.pem\n", "^/nowhere/ca.pem: No such file"),
        (JAAS + f'{PLAIN_MODULE} required username="me" password="{PASSWORD}"\n', "expected .*PlainLoginModule req"),
        (JAAS + f'{SCRAM_MODULE} required username="me" password="{PASSWORD}";\n', "expected .*PlainLoginModule"),
        (JAAS + f'com.sun.JndiLoginModule required user.provider.url="{PASSWORD}";\n', "expected .*PlainLogin"),
        (JAAS + f'{PLAIN_MODULE} required password="{PASSWORD}";\n', "expected .*PlainLoginModule"),
        (JAAS + f"x\nsasl.username={PASSWORD}\n", "not both"),
    ],
)  # fmt: skip
def test_what_can_not_be_used_is_told_by_name_and_without_the_secret(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(KafkaConfigError, match=complaint) as raised:
        config(tmp_path, text).client()
    assert str(tmp_path / "client.properties") in str(raised.value) or "nowhere" in str(raised.value)
    assert PASSWORD not in str(raised.value)


def test_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    jks, certificate = tmp_path / "trust.jks", pem(tmp_path, "trust.pem", "CERTIFICATE")
    jks.write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(KafkaConfigError, match="ssl.truststore.location.*keytool -list"):
        config(tmp_path, f"security.protocol=SSL\nssl.ca.location={jks}\n").client()
    locked = pem(tmp_path, "locked.pem", "ENCRYPTED PRIVATE KEY", "CERTIFICATE")
    for file in (certificate, locked):
        with pytest.raises(KafkaConfigError, match="ssl.keystore.location.*openssl pkcs12"):
            config(tmp_path, f"security.protocol=SSL\nssl.keystore.location={file}\n").client()
    with pytest.raises(KafkaConfigError, match="No such file"):
        KafkaConfig.of(tmp_path / "nowhere")
    with pytest.raises(KafkaConfigError, match="rename it"):
        KafkaConfig.of(tmp_path / "a:b")
    (tmp_path / "latin").write_bytes(b"sasl.username=\xe9\n")
    with pytest.raises(KafkaConfigError, match="UTF-8"):
        KafkaConfig.of(tmp_path / "latin")


def test_what_is_kept_is_a_path_and_what_is_shown_no_secret(tmp_path: Path) -> None:
    of = config(tmp_path, SASL + f"sasl.username=me\nsasl.password={PASSWORD}\n")
    for seen in (repr(of), repr(of.client()), str(of.client()), f"{of.client()}", repr(of.spark())):
        assert PASSWORD not in seen
    for pickled in (of, KafkaResponses("127.0.0.1:1", "t", of)):
        assert PASSWORD.encode() not in pickle.dumps(pickled)
    assert pickle.loads(pickle.dumps(of)) == of
    assert repr(Secret("x")) == "'[hidden]'"


def test_kafka_python_does_not_log_the_password(tmp_path: Path) -> None:
    """At DEBUG it would log every request."""
    names = ("kafka.net.connection", "kafka.protocol.parser")
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.DEBUG)
        config(tmp_path, SASL + f"sasl.username=me\nsasl.password={PASSWORD}\n").client()
        assert not any(logging.getLogger(name).isEnabledFor(logging.DEBUG) for name in names)
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def test_kafka_python_does_not_log_how_long_its_steps_take(caplog: pytest.LogCaptureFixture) -> None:
    from kafka.net.selector import NetworkSelector

    PLAIN.client()
    selector = NetworkSelector(slow_task_threshold_secs=1e-9)

    async def step() -> None:
        time.sleep(0.001)

    selector.call_soon(step)
    selector.poll(timeout_ms=0)
    selector.close()
    assert caplog.messages == []


def test_a_file_that_all_can_read_gets_a_word(tmp_path: Path) -> None:
    of = config(tmp_path, SASL + f"sasl.username=me\nsasl.password={PASSWORD}\n")
    log = tmp_path / "log.jsonl"
    log.write_text("")
    assert of.file is not None
    arguments = ["produce", str(log), "--ingress", "http://x", "--kafka-config", str(of.file)]
    assert "every user" not in CliRunner().invoke(app, arguments).output
    of.file.chmod(0o644)
    said = CliRunner().invoke(app, arguments).output
    assert f"every user of this machine can read the passwords in {of.file}: chmod 600" in said
    assert PASSWORD not in said


def test_a_bad_file_is_a_sentence(tmp_path: Path) -> None:
    of = config(tmp_path, "nonsense=1\n")
    for command in (["produce", str(tmp_path / "x.jsonl")], ["run", "--checkpoint", "c", "--store", "s"]):
        done = CliRunner().invoke(
            app, [*command, "--ingress", "kafka://127.0.0.1:1/t", "--kafka-config", str(of.file)]
        )
        assert done.exit_code == 2
        assert f"magnetar: {of.file}: the property 'nonsense' is not supported" in done.output


WORD = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)


@given(st.dictionaries(WORD.filter(bool), WORD, max_size=4))
def test_properties_are_read_as_java_writes_them(properties: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        return (
            "".join(f"\\{char}" if char in "\\ =:#!\t\f" else char for char in text)
            .replace("\\\t", "\\t")
            .replace("\\\f", "\\f")
        )

    text = "".join(f"{escaped(key)} = {escaped(value)}\n" for key, value in properties.items())
    assert parse_properties(text) == properties


@given(st.text(st.sampled_from("ab\\=: \t\n\r\f#!u01")))
def test_any_text_has_properties(text: str) -> None:
    parse_properties(text)


def test_the_syntax_of_properties() -> None:
    text = "# a comment\n ! another\r\nkey=a=b\n  k2 : v\\u0041 \nk3 v\\\n   w\nk4\n\nk\\:5=\\tx"
    assert parse_properties(text) == {"key": "a=b", "k2": "vA ", "k3": "vw", "k4": "", "k:5": "\tx"}


def test_no_reason_is_no_answer() -> None:
    assert (
        explain([], "a:1", PLAIN, 5)
        == "no Kafka answered at a:1 within 5 s: check the address, and that Kafka is up"
    )
