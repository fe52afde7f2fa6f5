"""What every command reads and writes, and the rule that holds before it begins: see `sinks.outputs`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from streaming.cli.errors import expected_errors


class Use(Enum):
    """What a command does with what an argument or an option names."""

    NO_PATH = auto()
    READS = auto()
    READS_POLICIES = auto()
    """Reads files, see `streaming.log.policy_sources`."""
    FILE = auto()
    """Writes a new file."""
    FILE_WITH_TEST = auto()
    """Writes a new file, and another one beside it."""
    FOLDER = auto()
    """Fills a new or empty folder."""
    OWN = auto()
    """Fills a folder that may have what the same command wrote before, which the command checks."""
    LOG = auto()
    """Adds lines to a log."""
    STORE = auto()
    """Goes on with a store, which it checks and locks. Files of others may be there, and stay as they are, but for logs and results."""
    NOTED = auto()
    """Notes something in a store or in the results of a replay, which it checks and locks."""


KEPT = (Use.STORE, Use.NOTED)
"""What is there already is the command's own, and stays."""

_WORDS = {
    "topic", "subscription", "message", "producer", "name", "where", "value", "quarantine", "quarantine_topic", "rule", "record", "profile", "before", "after",
    "from_time", "at", "older_than", "back", "size", "duration", "limit", "limit_time", "quota_policy", "quota_type", "setting",
    "advertised_address", "listen", "admin_listen", "trigger", "max_ahead", "metrics", "ui", "keep_outputs", "master", "conf", "clock",
    "service_url", "admin_url", "admin_to", "payloads", "topics", "policy", "clients", "show", "engine", "state_store", "log_format",
    "ingress", "responses", "dead_letters", "to_ingress", "keep", "every", "canary_every", "rate", "entries",
}  # fmt: skip
"""Names of arguments that name nothing on a disk, in every command that has them."""

USES: dict[tuple[str, str], Use] = {
    ("demo", "out"): Use.OWN,
    ("replay", "log"): Use.READS,
    ("replay", "out"): Use.OWN,
    ("replay", "policies"): Use.READS_POLICIES,
    ("replay", "quarantined"): Use.READS,
    ("whatif", "log"): Use.READS,
    ("whatif", "policies"): Use.READS_POLICIES,
    ("whatif", "out"): Use.FOLDER,
    ("whatif", "checkpoint"): Use.OWN,
    ("whatif", "from_"): Use.READS,
    ("whatif", "store"): Use.READS,
    ("diff", "before"): Use.READS,
    ("diff", "after"): Use.READS,
    ("diff", "out"): Use.FOLDER,
    ("advise", "log"): Use.READS,
    ("advise", "out"): Use.FOLDER,
    ("explain", "folder"): Use.READS,
    ("explain", "checkpoint"): Use.READS,
    ("explain", "snapshots"): Use.OWN,
    ("explain", "stats"): Use.READS,
    ("explain", "internal_stats"): Use.READS,
    ("explain", "policies"): Use.READS_POLICIES,
    ("explain", "tls_ca"): Use.READS,
    ("explain", "token_file"): Use.READS,
    ("inspect", "checkpoint"): Use.READS,
    ("inspect", "store"): Use.READS,
    ("inspect", "snapshots"): Use.OWN,
    ("peek", "folder"): Use.READS,
    ("peek", "checkpoint"): Use.READS,
    ("peek", "snapshots"): Use.OWN,
    ("check", "scenario"): Use.READS,
    ("check", "to"): Use.FOLDER,
    ("debug", "log"): Use.READS,
    ("debug", "snapshots"): Use.OWN,
    ("minimize", "log"): Use.READS,
    ("minimize", "keep"): Use.READS,
    ("minimize", "out"): Use.FILE_WITH_TEST,
    ("run", "checkpoint"): Use.STORE,
    ("run", "store"): Use.STORE,
    ("run", "canary"): Use.READS_POLICIES,
    ("canaries", "store"): Use.READS,
    ("canaries", "out"): Use.FOLDER,
    ("ui", "folder"): Use.READS,
    ("ui", "checkpoint"): Use.READS,
    ("compact", "store"): Use.STORE,
    ("serve", "data"): Use.STORE,
    ("serve", "tls_cert"): Use.READS,
    ("serve", "tls_key"): Use.READS,
    ("serve", "token_secret_key"): Use.READS,
    ("serve", "token_public_key"): Use.READS,
    ("serve", "ready_at"): Use.FILE,
    ("produce", "log"): Use.READS,
    ("produce", "ticks"): Use.READS,
    ("quality", "path"): Use.READS,
    ("quality", "docs"): Use.OWN,
    ("record", "out"): Use.FOLDER,
    ("record", "to"): Use.NO_PATH,
    ("record", "tls_ca"): Use.READS,
    ("record", "token_file"): Use.READS,
    ("capture", "to"): Use.FILE,
    ("capture", "tls_ca"): Use.READS,
    ("capture", "token_file"): Use.READS,
    ("mirror", "to"): Use.OWN,
    ("mirror", "tls_ca"): Use.READS,
    ("mirror", "token_file"): Use.READS,
    ("import", "traces"): Use.READS,
    ("import", "out"): Use.FILE,
    ("conform", "traces"): Use.READS,
    ("kafka up", "directory"): Use.STORE,
    ("kafka down", "directory"): Use.STORE,
    ("kafka status", "directory"): Use.READS,
    ("state export", "checkpoint"): Use.READS,
    ("state export", "store"): Use.READS,
    ("state export", "out"): Use.FILE,
    ("state import", "dump"): Use.READS,
    ("state import", "entries"): Use.READS,
    ("state import", "store"): Use.STORE,
    ("state move", "checkpoint"): Use.READS,
    ("state move", "store"): Use.READS,
    ("state move", "to_store"): Use.STORE,
    ("quarantine list", "store"): Use.READS,
    ("quarantine show", "store"): Use.READS,
    ("quarantine export", "store"): Use.READS,
    ("quarantine resubmit", "store"): Use.NOTED,
    ("quarantine resubmit", "repaired"): Use.READS,
    ("quarantine resubmit", "value"): Use.READS,
    ("quarantine resubmit", "log"): Use.READS,
    ("quarantine resubmit", "out"): Use.FILE,
}
"""What each argument or option is for. Commands to a broker (`_OPERATE`) come besides."""

_OPERATE = (
    "policy set", "policy get", "policy unset", "skip", "expire", "clear-backlog", "reset-cursor", "unsubscribe", "unload",
)  # fmt: skip
USES |= {(each, "log"): Use.LOG for each in _OPERATE}


_SCHEME = re.compile(r"[a-z][a-z0-9]+:")


def use(command: str, name: str) -> Use | None:
    """What a command does with an argument. None: nobody has said so."""
    if (found := USES.get((command, name))) is not None:
        return found
    if name == "kafka_config":
        return Use.READS
    return Use.NO_PATH if name in _WORDS else None


class CheckedCommand(TyperCommand):
    """A command that begins when what it writes is not in the way of anything."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the command line."""
        if not ctx.resilient_parsing:
            # As they were typed: `Path` takes an empty text for the current folder.
            typed, *_ = self.make_parser(ctx).parse_args(args=[*args])
            _check_paths(ctx, self.params, typed)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        name = _name(ctx)
        given = {each: value for each, value in ctx.params.items() if value is not None}
        for each, value in given.items():
            _check_text(value)
            if use(name, each) not in (None, Use.NO_PATH):
                _check_text([path.absolute() for path in _paths(value)])  # with the current folder's name
            _check_local(value)
        if any(use(name, each) in _CHECKED for each in given):
            _check(name, given)
        folders = [Path(given[each]) for each in given if use(name, each) is Use.FOLDER]
        read = [one for each, value in given.items() if use(name, each) in _SHARED for one in _folders(value)]
        with expected_errors():
            if not folders and not read:
                return super().invoke(ctx)
            from sinks.lock import exclusive, reading
            from sinks.outputs import check_folder

            with reading(read), exclusive(map(str, folders), f"magnetar {name}", alone=True) as held:
                for each in folders:  # another command may have filled it since
                    own = _left(name, held.killed.get(str(each.absolute())))
                    check_folder(each, own=own, writer=f"magnetar {name}")
                    for file in each.iterdir():
                        if own is not None and own(file.name):
                            file.unlink()
                return super().invoke(ctx)


def _name(ctx: Any) -> str:
    """The words of a command: ``state export``."""
    names = []
    while ctx.parent is not None:
        names.append(ctx.info_name)
        ctx = ctx.parent
    return " ".join(reversed(names))


def _check_paths(ctx: Any, params: Iterable[Any], typed: Mapping[str, Any]) -> None:
    """Raises `typer.BadParameter` for a path that is empty, as that of a shell's variable which is not set."""
    command = _name(ctx)
    for param in params:
        if use(command, param.name) not in (None, Use.NO_PATH) and "" in _named(typed.get(param.name)):
            where = (
                param.opts[0] if param.param_type_name == "option" else param.metavar or param.name.upper()
            )
            raise typer.BadParameter("the path is empty: is a variable not set?", ctx=ctx, param_hint=where)


def _check_local(value: Any) -> None:
    """Raises `typer.BadParameter` for the URL of a Kafka topic or a bucket where only a path on this machine can be."""
    for each in _named(value):
        if isinstance(each, Path) and each.parts and _SCHEME.fullmatch(each.parts[0]) and not each.exists():
            url = str(each).replace(":/", "://", 1)
            raise typer.BadParameter(f"{url} is a URL, and this takes a path on this machine")


def _check_text(value: Any) -> None:
    """Neither Arrow nor JSON has a text that is not Unicode. Raises `typer.BadParameter`."""
    for each in _named(value):
        try:
            str(each).encode()
        except UnicodeEncodeError:
            raise typer.BadParameter(
                f"{str(each)!a} is not UTF-8: rename it, or set a locale in which it is"
            ) from None


_WHATIF = r"(summary|series)\.parquet|differences/policies=[^/]+/change=[^/]+/rows\.parquet|whatif\.json|report\.html"
_ANSWERS = {
    "whatif": _WHATIF,
    "diff": _WHATIF,
    "advise": r"(needs|curves)\.parquet|advice\.json|report\.html",
    "check": r"[a-z-]+\.jsonl",
}
"""The names of the files that a command writes into a folder. What a recording that was killed has is whole, so it stays."""


def _left(command: str, last: str | None) -> Callable[[str], bool] | None:
    """Says of a file, by its name, whether a process of the command left it in the folder when it was killed: the folder was empty when that began, and
    nobody else had it. None: there was none. `last`: the last command in the folder."""
    if last != f"magnetar {command}" or (pattern := _ANSWERS.get(command)) is None:
        return None
    return lambda name: re.fullmatch(pattern, name) is not None


_INPUTS = (Use.READS, Use.READS_POLICIES, *KEPT)
_SHARED = (Use.READS, *KEPT)


def _folders(value: Any) -> list[Path]:
    """The folders of this machine that the value of an argument names."""
    return [each for each in _paths(value) if _is_folder(each)]


def _paths(value: Any) -> list[Path]:
    """The paths on this machine that the value of an argument names."""
    from sinks.outputs import local_path

    return [each for each in map(local_path, _named(value)) if each is not None]


def _named(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list | tuple) else [value]


def _files(command: str, name: str, value: Any) -> list[Any]:
    """What an argument names. A set of policies may be several files."""
    if use(command, name) is Use.READS_POLICIES:
        from streaming.log.policy_sources import policy_sources

        return [path for each in _named(value) if each for _, path in policy_sources(each)]
    return _named(value)


def _is_folder(path: Path) -> bool:
    with suppress(
        OSError
    ):  # the name is too long, or a folder above is closed to this user: for the command to say
        return path.is_dir()
    return False


_FOLDERS = (Use.FOLDER, Use.OWN, *KEPT)
_CHECKED = (Use.FILE, Use.FILE_WITH_TEST, *_FOLDERS)


def _check(command: str, given: dict[str, Any]) -> None:
    """Ends the command if an output is in the way."""
    from sinks.lock import last_command
    from sinks.outputs import InTheWay, check_apart, check_folder, check_nested, check_new_file

    inputs = [
        one
        for name, value in given.items()
        if use(command, name) in _INPUTS
        for one in _files(command, name, value)
    ]
    together = [value for name, value in given.items() if use(command, name) in KEPT]
    if command == "serve":  # with --engine spark, a query has its folders there
        together += [each / own for each in together for own in ("checkpoint", "store")]
    with expected_errors(InTheWay):
        for name, value in given.items():
            if use(command, name) in _FOLDERS and command != "quality":  # a page about a store may be in it
                check_nested(value, together, goes_on=use(command, name) is Use.STORE)
            match use(command, name):
                case Use.FILE:
                    check_new_file(value, inputs)
                case Use.FILE_WITH_TEST:
                    check_new_file(value, inputs)
                    check_new_file(beside(value), inputs)
                case Use.FOLDER:
                    own = _left(command, last_command(value))
                    check_folder(value, inputs, own=own, writer=f"magnetar {command}")
                case Use.OWN if command != "quality":
                    check_apart(value, inputs)


def beside(out: Path) -> Path:
    """The file with the test of a log."""
    return out.with_name(f"test_{re.sub(r'[^0-9A-Za-z]', '_', out.stem)}.py")
