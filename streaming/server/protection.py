"""Settings that protect a real broker, and what protects `magnetar serve` instead: its options, or nothing.

As settings of a replay they are without effect, like those of storage. A server that listens must not be open where its settings say that it is
not.
"""

from collections.abc import Mapping
from typing import Literal

from streaming.broker.config import NotSupported

_Need = Literal["tokens", "TLS"]

OPTIONS: dict[str, _Need] = {
    "authenticationEnabled": "tokens",
    "authenticateMetricsEndpoint": "tokens",
    "authorizationEnabled": "tokens",
    "tokenSecretKey": "tokens",
    "tokenPublicKey": "tokens",
    "tlsEnabled": "TLS",
    "tlsEnabledWithKeyStore": "TLS",
    "tlsCertificateFilePath": "TLS",
    "tlsKeyFilePath": "TLS",
    "tlsKeyStore": "TLS",
    "brokerServicePortTls": "TLS",
    "webServicePortTls": "TLS",
}
"""Settings that ask for what options of the server give."""

NOTHING: dict[str, str] = {
    "tlsRequireTrustedClientCertOnConnect": "certificates of clients are not checked",
    "tokenAudience": "the audience of tokens is not checked",
    "tokenAudienceClaim": "the audience of tokens is not checked",
    "tlsProtocols": "the versions of TLS can't be chosen",
    "tlsCiphers": "the ciphers of TLS can't be chosen",
    "webServiceTlsProtocols": "the versions of TLS can't be chosen",
    "webServiceTlsCiphers": "the ciphers of TLS can't be chosen",
}
"""Settings that ask for what the server has not."""

_HOW: dict[_Need, tuple[str, str]] = {
    "tokens": ("clients need no token", "add --token-secret-key or --token-public-key"),
    "TLS": ("there is no TLS", "add --tls-cert and --tls-key"),
}
_UNSET = ("", "false", "null", "[]")


_PROVIDER = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"


def check_protection(settings: Mapping[str, str], *, tokens: bool, tls: bool, embedded: bool = True) -> None:
    """Raises `NotSupported` if settings ask for a protection that a server with or without `tokens` and `tls` has not. The text says what
    to do. `embedded`: the broker is in this process."""
    has: dict[_Need, bool] = {"tokens": tokens, "TLS": tls}
    for name, value in settings.items():
        if value.strip().lower() in _UNSET:
            continue
        if name in NOTHING:
            raise NotSupported(f"{name}: {NOTHING[name]}: leave the setting out if that will do")
        if name in OPTIONS and not has[OPTIONS[name]]:
            without, to_do = _HOW[OPTIONS[name]]
            raise NotSupported(
                f"{name}: this setting has no effect here, and {without}: {to_do}, or leave it out"
            )
    if settings.get("authorizationEnabled", "").strip().lower() == "true":
        _check_authorization(settings, embedded=embedded)


def _check_authorization(settings: Mapping[str, str], *, embedded: bool) -> None:
    if not embedded:
        raise NotSupported(
            "authorizationEnabled: permissions are in the state of the query, which this server does not have, so it can't enforce "
            "them: serve with the embedded engine, or leave the setting out"
        )
    if settings.get("proxyRoles", "").strip():
        raise NotSupported("proxyRoles: a client can't act for another principal here: leave the setting out")
    if (provider := settings.get("authorizationProvider", "").strip()) not in ("", _PROVIDER):
        raise NotSupported(f"authorizationProvider: only {_PROVIDER} is supported, not {provider}")
    if (claim := settings.get("tokenAuthClaim", "").strip()) not in ("", "sub"):
        raise NotSupported(f"tokenAuthClaim: the role is always the claim sub, not {claim}")
