"""The WebSocket API: conversations as a real Pulsar 4.0.7 held them, and what Magnetar adds: bounds, tokens, pages of other sites."""

from typing import Any

import pytest

from streaming.server.authentication import TokenAuthentication
from streaming.server.server import Security
from tests.authorization.questions import SETTINGS
from tests.server.conftest import Running, running_on
from tests.websocket.conversations import CONVERSATIONS, held
from tests.websocket.record import address_of, recorded, standalone


@pytest.fixture(scope="module")
def broker() -> Any:
    with running_on(standalone) as found:
        yield found


@pytest.mark.feature("I9")
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_that_of_a_real_pulsar(broker: Running, name: str) -> None:
    assert held(address_of(broker), name) == recorded()[name]


@pytest.mark.feature("I8", "I9")
def test_roles_may_open_what_a_real_pulsar_lets_them() -> None:
    security = Security(None, TokenAuthentication.with_secret(SETTINGS["tokenSecretKey"]), settings=SETTINGS)
    with running_on(standalone, security) as broker:
        assert held(address_of(broker), "roles") == recorded()["roles"]
