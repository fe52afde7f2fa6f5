"""When nothing changes any more for a message, so that the folds beside each other can forget it.

Nothing does once no run has the message: each has deleted its ledger, or never stored it. No cursor goes back to it, and whatever comes
later is of other messages. What a run keeps of messages so grows with what is stored, not with the length of the log.
"""

from __future__ import annotations

from collections.abc import Callable

from streaming.answers.whatif.side_by_side import Runs

AT_LEAST = 256
"""So many messages of a topic are settled at a time, at least, if they are not the last."""

JudgeSettled = Callable[[Runs, str, int], object]
"""Called with the runs, a topic, and the number of the first message that is not settled. Those from `TopicPublishes.first` on are."""


class Settling:
    """Lets the runs of an ingress partition forget what is settled. `tries`: by topic, how many messages it has to have to be looked at
    again."""

    def __init__(self, tries: dict[str, int] | None = None) -> None:
        self.tries = {} if tries is None else tries

    def settle(self, runs: Runs, judge: JudgeSettled) -> None:
        """A piece is folded: have the settled messages judged, of the topics of which they are half, at least. So no message is
        copied often."""
        everything = [*runs.observers, *runs.beside]
        for topic in {topic for each in everything for topic in each.touched}:
            messages = runs.messages[topic]
            first = messages.first
            least = max(AT_LEAST, (len(messages) - first) // 2, self.tries.get(topic, 0))
            if len(messages) - first < least or not all(topic in each.topics for each in everything):
                continue
            tried = stop = min(each.settled(topic) for each in everything)
            if tried - first < least:
                continue
            for each in everything:
                stop = each.known(topic).waiting(first, stop)
            self.tries[topic] = 0 if stop == tried else 2 * (tried - first)
            if stop > first:
                judge(runs, topic, stop)
                for each in everything:
                    each.known(topic).forget(stop)
                messages.forget(stop)
