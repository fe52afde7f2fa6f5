"""A mirror's token is replaced while it runs."""

from pathlib import Path
from typing import Any

import pulsar
import pytest

from streaming.cli.record import authorization, token_of
from streaming.mirror import mirror as mirroring
from streaming.protocol.codec import encode
from streaming.record.client import Reader, ReadFailed
from streaming.record.rest import CallFailed, Rest
from streaming.server.authentication import TokenAuthentication
from streaming.server.server import Security
from tests.mirror.kit import mirror, positions
from tests.record.test_record import Scripted, connected
from tests.server.conftest import running
from tests.server.test_authentication import secret, token

pytestmark = pytest.mark.feature("K4")


@pytest.mark.parametrize("looks_only", [False, True])
def test_a_new_token_takes_effect_at_once(
    looks_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although what is refused is tried every ten minutes else. Of topics alone, or of all calls."""
    topic, folder, file = "persistent://public/default/t", tmp_path / "log", tmp_path / "token"
    file.write_text(token(sub="first"))
    bad = token(b"another key that is 32 bytes long")
    security = Security(None, TokenAuthentication.with_secret(secret()))
    with (
        running(security=security) as broker,
        broker.client(authentication=pulsar.AuthenticationToken(token())) as client,
    ):
        producer = client.create_producer(topic)
        producer.send(b"0")
        read = token_of(file)
        rest = Rest(str(broker.server.admin_url), authorization(read))
        rounds = iter(range(9))

        def before() -> None:
            number = next(rounds)
            if number == 0:
                file.write_text(bad)
                if looks_only:  # the lists were refused at the next minute
                    monkeypatch.setattr(mirroring.ClusterMirror, "_allow", lambda _: None)
                producer.send(b"1")
            if number == 3:
                monkeypatch.undo()
                file.write_text(token(sub="second"))

        _, said = mirror(broker.service_url, rest, [topic], folder, 9, before, token=read)
    assert any("401" in each for each in said)
    assert len(said) <= 4, said
    assert len(positions(folder, topic)) == 2


def test_a_file_that_is_being_replaced_has_the_token_before(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(OSError, match="token"):
        token_of(file)
    file.write_text("a\n")
    read = token_of(file)
    found = [read()]
    for change in (lambda: file.write_text(""), file.unlink, lambda: file.write_text("b")):
        change()
        found.append(read())
    assert found == ["a", "a", "a", "b"]
    assert authorization(read)() == {"Authorization": "Bearer b"}
    assert (token_of(None)(), authorization(token_of(None))()) == (None, {})


@pytest.mark.parametrize("text", ["a\nb", "a b", "a\tb", "ü", "a\0"])
def test_what_is_no_token_is_not_shown(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret" + text)
    with pytest.raises(OSError, match="line break") as raised:
        token_of(file)
    assert str(file) in str(raised.value)
    assert "secret" not in str(raised.value)
    file.write_text("good")
    read = token_of(file)
    file.write_text("secret" + text)
    assert read() == "good"
    rest = Rest("http://127.0.0.1:1", lambda: {"Authorization": f"Bearer secret{text}"})
    with pytest.raises(CallFailed) as failed:
        rest.call("GET", "/clusters")
    assert "secret" not in str(failed.value)


def test_a_reader_answers_a_challenge_with_the_token_of_now() -> None:
    tokens, answers = iter("ab"), list[Any]()

    def broker(frame: Any) -> list[bytes]:
        if frame.cmd == "AUTH_RESPONSE":
            answers.append(frame.fields["response"])
            return [encode("LOOKUP_RESPONSE", {"request_id": 1, "response": "Failed", "message": "enough"})]
        challenge = {"challenge": {"auth_method_name": "token", "auth_data": b"x"}, "protocol_version": 20}
        return [encode("AUTH_CHALLENGE", challenge)] if frame.cmd == "LOOKUP" else connected(frame)

    scripted = Scripted(broker)
    with Reader(scripted.url, lambda: next(tokens)) as reader, pytest.raises(ReadFailed, match="enough"):
        next(reader.entries("t"))
    assert answers == [{"auth_method_name": "token", "auth_data": b"b"}]
    scripted.close()
