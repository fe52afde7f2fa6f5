"""Each command on a topic has a handler in both domains."""

from typing import Any, get_args

import pytest

from streaming.broker.non_persistent import commands as non_persistent
from streaming.broker.persistent import commands as persistent
from streaming.broker.topic.topic_commands import TopicCommand


@pytest.mark.parametrize("domain", [persistent, non_persistent])
def test_every_command_on_a_topic_has_a_handler(domain: Any) -> None:
    assert set(domain.HANDLERS) == set(get_args(TopicCommand))
