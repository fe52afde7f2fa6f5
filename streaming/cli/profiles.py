"""`magnetar profiles`: what versions of Pulsar do differently."""

from __future__ import annotations

from typing import Annotated

import typer

from schemas.printable import counted
from streaming.cli.console import say
from streaming.cli.options import ProfileChoice


def profiles_command(
    before: Annotated[
        ProfileChoice | None, typer.Argument(metavar="[FROM]", help="A profile, such as 2.10.")
    ] = None,
    after: Annotated[
        ProfileChoice | None, typer.Argument(metavar="[TO]", help="The profile to compare it with.")
    ] = None,
) -> None:
    """List the profiles, or what changes from one to another: each rule and default that differs, what you notice of it, and
    which recordings of real brokers show it."""
    from streaming.answers.profile_rules import PROFILE_RULES, entries
    from streaming.broker.config import PROFILE_OF, PROFILES, changes, setting_text
    from streaming.log.policy_files import setting_descriptions

    if before is None:
        for name in ProfileChoice:
            profile = PROFILE_OF[name.value]
            if profile == name.value:
                what = f"{_WHAT[profile]}{counted(len(PROFILES[profile]), 'setting')} other than in 4.0"
            else:
                what = f"another name for {profile}"
            say(f"{name.value:5} {what}")
        return
    if after is None:
        raise typer.BadParameter("name two profiles, such as 2.10 4.0", param_hint="TO")
    texts = setting_descriptions()
    found = changes(before.value, after.value)
    say(
        f"{before.value} -> {after.value}: {counted(len(found), 'setting')}. Rules are those of docs/rules/versions.md."
    )
    for setting, values in found.items():
        rule, lists = PROFILE_RULES[setting], entries(*values)
        if lists is None:
            say("", f"{setting}: {' -> '.join(map(setting_text, values))}", f"  {rule.notices}")
        else:
            say("", f"{setting}: {lists.before} -> {lists.after} entries", f"  {rule.notices}")
            for what, some in (("no longer", lists.gone), ("new", lists.new)):
                for each in some:
                    say(f"  {what}: {each}")
        say(f"  {texts[setting]}", f"  Shown by: {rule.shown_by}.")


_WHAT = {
    "2.10": "what 2.10.5 does; ",
    "2.x": "the rules of five articles on older Pulsar, built on 2.10; ",
    "3.0": "what 3.0.7 does; ",
    "4.0": "what 4.0.7 does; ",
    "4.2": "what 4.2.4 does; ",
    "5.0": "a preview, what 5.0.0-M1 does; ",
}
