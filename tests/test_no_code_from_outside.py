"""Nothing that comes from outside is run: no unpickling, evaluating or shell in what is shipped."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("streaming", "sinks", "schemas")
FILES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))

MODULES = {
    "pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code", "codeop",
    "runpy", "pty", "commands", "tempita", "jinja2", "xmlrpc", "imp",
}  # fmt: skip
"""Of the pickles that Spark makes of our functions and reads again, none is made or read here."""
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
METHODS = {
    "os": {"system", "popen", "execv", "execve", "execvp", "execl", "execlp", "spawnl", "spawnv"},
    "subprocess": {"getoutput", "getstatusoutput"},
    "importlib": {"import_module"},
    "builtins": CALLS,
}
PICKLED = {
    "allow_pickle",
    "read_pickle",
    "to_pickle",
    "unsafe_load",
    "full_load",
    "FullLoader",
    "UnsafeLoader",
    "_setobject",
}


def _is_safe_yaml(keyword: ast.keyword) -> bool:
    """Whether an argument of ruamel's `YAML` leaves it without the loader that makes any Python object."""
    return keyword.arg == "pure" or (
        keyword.arg == "typ"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value in ("safe", "rt")
    )


def offences(source: str) -> list[str]:
    """What in `source` could run something that came from outside."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [each.name for each in names if each.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module), names=names):
                if module.partition(".")[0] in MODULES:
                    found.append(module)
                found += [f"{module}.{each.name}" for each in names if each.name in METHODS.get(module, ())]
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                found.append(name)
            case ast.Call(
                func=ast.Name(id="YAML") | ast.Attribute(attr="YAML"), args=args, keywords=keywords
            ) if args or not all(_is_safe_yaml(each) for each in keywords):
                found.append("YAML")
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in METHODS.get(module, ()):
                found.append(f"{module}.{name}")
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) if name in PICKLED:
                found.append(name)
            case ast.keyword(arg="shell", value=value) if not (
                isinstance(value, ast.Constant) and value.value is False
            ):
                found.append("shell=")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_runs_nothing_from_outside(file: Path) -> None:
    assert offences(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "import yaml as y", "from marshal import loads", "from os import system", "eval('1')", "exec(x)",
        "os.popen('x')", "subprocess.run(x, shell=True)", "subprocess.run(x, shell=asked)", "np.load(f, allow_pickle=True)",
        "pd.read_pickle(f)", "importlib.import_module(name)", "YAML(typ='unsafe').load(x)", "ruamel.yaml.YAML(typ=kind)", "YAML('unsafe')", "builtins.eval(x)",
    ],
)  # fmt: skip
def test_the_search_finds_it(source: str) -> None:
    assert offences(source)


def test_all_modules_are_looked_at() -> None:
    assert len(FILES) > 100
    assert {file.relative_to(ROOT).parts[0] for file in FILES} == set(FOLDERS)


BATCHES = ROOT / "streaming/broker/persistent/compaction/batches.py"
"""Compaction uncompresses batches, and says how large they may be."""

DECODERS = {"ast", "configparser", "csv", "json", "plistlib", "struct", "tomllib", "xml", "zlib"}


@pytest.mark.parametrize(
    "folder",
    [
        "schemas",
        "streaming/broker",
        "streaming/fold",
        "streaming/spark/state.py",
        "streaming/spark/operator.py",
    ],
)
def test_commands_and_state_are_decoded_by_msgspec_alone(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py")) or [ROOT / folder]
    modules = set()
    for file in files:
        if file == BATCHES:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=names):
                    modules |= {each.name.partition(".")[0] for each in names}
                case ast.ImportFrom(module=str(module)):
                    modules.add(module.partition(".")[0])
    assert not modules & DECODERS
