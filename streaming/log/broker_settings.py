"""The settings of a real broker, as people have them: a ``broker.conf``, or what a running broker says its settings are.

Such a file has hundreds of settings, of which a fifth has an effect here. `sort_out` says which, and what becomes of the others.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from schemas.commands import Profile
from streaming.broker.config import (
    ONLY,
    RELEASES,
    WITHOUT_EFFECT,
    BadSetting,
    NotSupported,
    ServiceConfiguration,
    configuration,
    is_known,
)

NOT_OF_A_LOG = frozenset({"namespacesMustExist"})
"""A setting of `magnetar serve` that a log can't have: it lacks the calls that created what was there before."""

_MOST_NAMED = 20
"""Unknown settings that get the nearest known name. To look for one takes a millisecond."""
_MOST_CHARACTERS = 80


class SortedSettings(NamedTuple):
    """Settings by what becomes of them. `applied`: name → value. `without_effect`: how many there are. `not_applied`: name → why Magnetar
    can't apply its value. `bad`: name → why Pulsar could not, either. `unknown`: name → the nearest known one, if there is one.
    `profile`: that of the broker, if it is Magnetar's own."""

    applied: dict[str, Any]
    without_effect: int
    not_applied: dict[str, str]
    bad: dict[str, str]
    unknown: dict[str, str | None]
    profile: Profile | None

    @property
    def counted(self) -> str:
        """How many are applied, and how many have no effect, in words."""
        applied = len(self.applied)
        return f"{applied:,} setting{'' if applied == 1 else 's'} applied, {self.without_effect:,} without effect here"


def sort_out(settings: Mapping[str, Any], profile: Profile, *, transactions: bool = False) -> SortedSettings:
    """What becomes of a broker's settings under a profile. `transactions`: whether they are those of a log that has the transactions of the
    broker's clients; otherwise nothing turns transactions on."""
    found = SortedSettings({}, 0, {}, {}, {}, None)
    without_effect = 0
    for name, value in settings.items():
        if name == "profile" and value in (*RELEASES, "4.x"):
            found = found._replace(profile=value)
            continue
        if name in NOT_OF_A_LOG:
            without_effect += 1
            continue
        if not is_known(name):
            found.unknown[name] = nearest_setting(name) if len(found.unknown) < _MOST_NAMED else None
            continue
        if name not in ServiceConfiguration.__struct_fields__ and name not in ONLY:
            without_effect += 1
            continue
        try:
            configuration(profile, {name: value})
        except NotSupported as error:
            found.not_applied[name] = str(error)
        except BadSetting as error:
            found.bad[name] = str(error)
        else:
            if (
                name == "transactionCoordinatorEnabled"
                and not transactions
                and configuration(profile, {name: value}) != configuration(profile, {})
            ):
                found.not_applied[name] = (
                    f"{name}: transactions are those of the log, and policies can't turn them on"
                )
                continue
            if name in ServiceConfiguration.__struct_fields__:
                found.applied[name] = value
            else:
                without_effect += 1
    return found._replace(without_effect=without_effect)


def nearest_setting(name: str) -> str | None:
    """The known setting whose name is most like another."""
    fields = [each for each in ServiceConfiguration.__struct_fields__ if each != "profile"]
    if len(name) > _MOST_CHARACTERS:
        return None
    for known in (fields, WITHOUT_EFFECT):  # one with an effect is more likely to be meant
        if near := get_close_matches(name, known, 1, 0.75):
            return near[0]
    return None
