"""No setting that protects a real broker is without effect, and without a word, in a server that listens."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.broker.config import WITHOUT_EFFECT, BadSetting, configuration
from streaming.cli.app import app
from streaming.log.broker_settings import sort_out
from streaming.server.protection import NOTHING, OPTIONS, check_protection

PROTECT = {**OPTIONS, **NOTHING}

ABOUT_ACCESS = re.compile(
    r"acl|anonym|athenz|audien|auth|cert(?!ransfer)|cipher|crypt|jaas|keystore|password|principal|role|sasl|secret|secur|tls|token|trust",
    re.IGNORECASE,
)

OUTBOUND = re.compile(r"brokerClient|bookkeeper|bookie|replicat|managedLedger|zooKeeper|metadataStore|s3|gcs")
"""Settings about what a broker connects to, or a bookie."""

HARMLESS = {
    "how those are checked whom authenticationEnabled keeps out": """
        anonymousUserRole athenzDomainNames authenticateOriginalAuthData authenticationProviders authenticationRefreshCheckSeconds
        authenticationRoleLoggingAnonymizer basicAuthConf inflightSaslContextExpiryMs maxInflightSaslContext saslJaasClientAllowedIds
        saslJaasServerRoleTokenSignerSecretPath saslJaasServerSectionName strictAuthMethod tokenAuthClaim""",
    "what authorizationEnabled forbids to whom": """
        allowAclChangesOnNonExistentTopics authorizationAllowWildcardsMatching authorizationProvider proxyRoles superUserRoles""",
    "how a broker with a certificate, or one that checks those of clients, does it": """
        tlsAllowInsecureConnection tlsCertFilesRefreshDurationSeconds tlsCertRefreshCheckDurationSec
        tlsHostnameVerificationEnabled tlsKeyStorePassword tlsKeyStorePasswordPath tlsKeyStoreType tlsProvider tlsProviderFactoryClass
        tlsTrustCertsFilePath tlsTrustStore tlsTrustStorePassword tlsTrustStorePasswordPath tlsTrustStoreType webServiceTlsProvider
        webServiceTrustXForwardedFor""",
    "of a bookie": "tlsClientAuthentication zkEnableSecurity",
}


def test_every_setting_about_access_is_judged() -> None:
    """A new release may have more: each protects, or is one of the harmless ones, of which this says why."""
    judged = {name for names in HARMLESS.values() for name in names.split()}
    assert not judged & set(PROTECT)
    about = {
        name for name in WITHOUT_EFFECT if ABOUT_ACCESS.search(name) and not OUTBOUND.match(name)
    }  # fmt: skip
    assert about == judged | set(PROTECT)


def asked(name: str) -> str:
    return "true" if name.endswith(("Enabled", "Endpoint", "OnConnect")) else "6651"


def refused(*words: str) -> str:
    """What `serve` says of settings, before it listens."""
    ran = CliRunner().invoke(
        app, ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", *words]
    )
    assert ran.exit_code == 2, ran.output
    return ran.stderr


@pytest.mark.parametrize("name", PROTECT)
@pytest.mark.parametrize("more", [(), ("--test-double",), ("--insecure",)], ids=" ".join)
def test_a_server_is_not_open_where_its_settings_say_it_is_not(name: str, more: tuple[str, ...]) -> None:
    said = refused("--set", f"{name}={asked(name)}", *more)
    assert said.startswith(f"magnetar: {name}: ")
    assert said.count("\n") == 1
    assert {"tokens": "--token-secret-key", "TLS": "--tls-cert"}.get(OPTIONS.get(name, ""), "leave") in said


@pytest.mark.parametrize("name", PROTECT)
def test_what_is_not_asked_for_or_there_is_no_error(name: str) -> None:
    for value in ("", "false", " FALSE ", "null", "[]"):
        check_protection({name: value}, tokens=False, tls=False)
    given = {"tokens": True, "tls": True}
    if name in OPTIONS:
        check_protection({name: asked(name)}, **given)
        given = {each: each != OPTIONS[name].lower() for each in given}
    with pytest.raises(BadSetting, match=name):
        check_protection({name: asked(name)}, **given)


def test_a_log_takes_the_settings_of_a_locked_broker(tmp_path: Path) -> None:
    settings = {name: asked(name) for name in PROTECT}
    assert configuration("4.x", dict(settings)) == configuration("4.x", {})
    assert sort_out(settings, "4.0").without_effect == len(settings)
