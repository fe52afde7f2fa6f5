"""What fails `make audit`, and what it only reports."""

import datetime
import importlib.util
import json
import tomllib
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HASH = "--hash=sha256:" + "0" * 64
TODAY = datetime.date(2026, 1, 31)
UNREACHABLE = "Traceback\nrequests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.osv.dev')"
FOUND = {"id": "PYSEC-1", "aliases": ["CVE-2026-1"], "fix_versions": ["2.0"], "description": "bad"}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(*dependencies: dict[str, Any]) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


def vulnerable(*found: dict[str, Any]) -> str:
    return report({"name": "Bad_Package", "version": "1.0", "vulns": list(found)})


def test_our_own_lock_is_pinned_hashed_within_range_and_installed(audit: ModuleType) -> None:
    lock = audit.read_lock((ROOT / "requirements.lock").read_text())
    accepted = tomllib.loads((ROOT / ".ci" / "audit-accepted.toml").read_text())
    assert len(lock) > 50
    assert audit.check_lock(lock, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]) == []
    assert all(reason for reason in accepted["licences"].values())
    assert audit.check_installed(lock, accepted["licences"]) == []
    assert any("crc32c" in each and "Lesser" in each for each in audit.check_installed(lock, {}))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (f"thing>=1 {HASH}", "thing is not pinned"),
        (f"thing==1.* {HASH}", "thing is not pinned"),
        ("thing @ https://example.com/thing.whl", "thing is not pinned"),
        ("thing==1.5", "thing has no hash"),
        (f"thing==3.0 {HASH}", "requires thing<2,>=1, but requirements.lock has 3.0"),
        (f"other==1.5 {HASH}", "requires thing<2,>=1, but requirements.lock has none"),
    ],
)
def test_an_invalid_lock(audit: ModuleType, line: str, complaint: str) -> None:
    project = {"dependencies": ["thing>=1,<2"], "optional-dependencies": {"dev": []}}
    assert any(complaint in each for each in audit.check_lock(audit.read_lock(line), project))
    assert audit.check_lock(audit.read_lock(f"thing==1.5 \\\n    {HASH}\n    # via x\n"), project) == []


def test_what_is_installed(audit: ModuleType) -> None:
    lock = audit.read_lock(
        f"pytest==0.0.1 {HASH}\nno-such-thing==1 {HASH}\ncolorama==9 ; sys_platform == 'never' {HASH}\n"
    )
    first, second = audit.check_installed(lock, {})
    assert first.startswith("pytest ")
    assert "0.0.1 is locked" in first
    assert second == "no-such-thing is locked but not installed: make env"


@pytest.mark.parametrize(
    ("headers", "licence"),
    [
        ([("License-Expression", "MIT"), ("License", "x")], "MIT"),
        (
            [("Classifier", "License :: OSI Approved :: BSD License"), ("License", "long\ntext")],
            "BSD License",
        ),
        ([("License", "ISC\nand its text")], "ISC"),
        ([], ""),
    ],
)
def test_the_licence_in_metadata(audit: ModuleType, headers: list[tuple[str, str]], licence: str) -> None:
    metadata = Message()
    for name, value in headers:
        metadata[name] = value
    assert audit.licence_of(metadata) == licence


def test_a_vulnerability_fails_unless_it_is_accepted_and_that_has_not_expired(
    audit: ModuleType,
) -> None:
    reports = [("pypi", vulnerable(FOUND), "")]
    verdict = audit.check_vulnerabilities(reports, [])
    assert verdict == (["Bad_Package 1.0: PYSEC-1 CVE-2026-1, fixed in 2.0"], [])
    accepted = {"package": "bad-package", "reason": "r", "until": TODAY}
    for name in ("PYSEC-1", "CVE-2026-1"):
        assert audit.check_vulnerabilities(reports, [accepted | {"id": name}], TODAY) == ([], [])
    for other in (
        {"id": "CVE-2"},
        {"id": "PYSEC-1", "package": "else"},
        {"id": "PYSEC-1", "until": TODAY - datetime.timedelta(1)},
    ):
        assert audit.check_vulnerabilities(reports, [accepted | other], TODAY).wrong


def test_if_a_service_does_not_know_a_package_the_next_one_is_asked(audit: ModuleType) -> None:
    skipped = report(
        {"name": "a", "skip_reason": "Dependency not found on PyPI"}, {"name": "b", "skip_reason": "…"}
    )
    whole = report({"name": "a", "version": "1", "vulns": []}, {"name": "b", "version": "1", "vulns": []})
    wrong, unknown = audit.check_vulnerabilities([("pypi", skipped, ""), ("osv", "", UNREACHABLE)], [])
    assert wrong == []
    assert "pypi does not know 2 packages" in unknown[0]
    assert "pip-audit with osv: requests.exceptions.ConnectionError" in unknown[1]
    assert audit.check_vulnerabilities([("pypi", skipped, ""), ("osv", whole, "")], []) == ([], [])
    assert audit.check_vulnerabilities([("pypi", skipped, ""), ("osv", vulnerable(FOUND), "")], []).wrong
    # Findings of a service count, whatever the next one reports.
    assert audit.check_vulnerabilities(
        [
            (
                "pypi",
                report(
                    json.loads(skipped)["dependencies"][0], json.loads(vulnerable(FOUND))["dependencies"][0]
                ),
                "",
            ),
            ("osv", whole, ""),
        ],
        [],
    ).wrong


def test_a_wrong_command_line_is_not_a_network_failure(audit: ModuleType) -> None:
    assert audit.check_vulnerabilities(
        [("pypi", "", "pip-audit: error: unrecognized arguments: --x")], []
    ).wrong
    assert audit.check_yanked(2, "error: unexpected argument '--x' found").wrong
    assert audit.check_yanked(1, "no version of thing==9").wrong


def test_yanked_versions(audit: ModuleType) -> None:
    said = 'Resolved 2 packages in 65ms\nwarning: `thing==0.15` is yanked (reason: "broken")\nwarning: `b==1` is yanked\n'
    assert audit.check_yanked(0, said) == (
        ["thing 0.15 was withdrawn: broken", "b 1 was withdrawn: no reason given"],
        [],
    )
    assert audit.check_yanked(0, "Resolved 2 packages in 65ms\n") == ([], [])
    assert audit.check_yanked(2, "error: Failed to fetch: `https://pypi.org/simple/x/`") == (
        [],
        ["uv: error: Failed to fetch: `https://pypi.org/simple/x/`"],
    )


def test_without_its_tools_it_says_so_and_passes(
    audit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(tmp_path) == 0
    said = capsys.readouterr().out
    assert "NOT CHECKED: pip-audit and uv could not be installed" in said
    assert "KNOWN VULNERABILITIES OR WITHDRAWN VERSIONS MAY BE AMONG THEM" in said
