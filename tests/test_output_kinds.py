"""A new kind of output row is one class in `schemas.effects`. These tests name the other places that it concerns.

Its table, its row in docs/reference/outputs.md and its expectation suite are made of the class (`make docs`).
"""

import ast
import inspect

from schemas import effects as e
from streaming.answers.explain import life
from streaming.answers.whatif.observed import OBSERVED
from streaming.protocol import frames


def test_answers_to_clients_have_a_frame() -> None:
    """All but those of the admin API, which go over HTTP."""
    cases = {
        node.cls.attr
        for node in ast.walk(ast.parse(inspect.getsource(frames.frame)))
        if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Attribute)
    }
    answers = {effect.__name__ for effect, kind in e.KINDS.items() if kind in e.RESPONSES}
    assert answers - cases == {"AdminResponse"}


def test_what_takes_messages_from_a_subscription_is_known_to_explain_and_whatif() -> None:
    moves = {effect for effect in e.KINDS if "after_ledger" in effect._fields}
    assert {e.KINDS[effect] for effect in moves} == life._OUTCOMES.keys()
    assert moves <= OBSERVED


def test_what_deletes_entries_is_known_to_whatif() -> None:
    assert {effect for effect in e.KINDS if effect.__name__.startswith("Ledger")} - OBSERVED <= {
        e.LedgerClosed
    }
