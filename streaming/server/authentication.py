"""Who may connect: token authentication, as Pulsar's `AuthenticationProviderToken` does it.

A token is a JWT that is signed with a key. Whoever has one may do everything, unless there is authorization
(`streaming.server.authorization`).
"""

import base64
import binascii
import urllib.parse
import warnings
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# Pulsar takes keys of any length for any algorithm, and every client that has a token could have a line printed.
warnings.filterwarnings("ignore", "The HMAC key is")

METHOD = "token"
"""The name of the authentication method in the protocol."""

REFRESH = b"PulsarAuthRefresh"
"""The challenge that asks a client for a new token."""

ROLE = "magnetar.role"
"""What a scope has the role of a request under. Empty: its token has none."""

_SECRET = ["HS256", "HS384", "HS512"]
_RSA = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
_EC = ["ES256", "ES384", "ES512"]
_UNCHECKED = {f"verify_{claim}": False for claim in ("aud", "iat", "iss", "jti", "sub")}
"""Claims that a broker with default settings does not look at."""

_LEAST_BYTES, _MOST_BYTES = 32, 1 << 16


class TokenKeyError(RuntimeError):
    """A key of tokens can't be read. The text says why."""


class NotAuthenticated(Exception):
    """A client has no valid token."""


class TokenAuthentication:
    """Checks the tokens of clients."""

    def __init__(self, key: Any, algorithms: list[str]) -> None:
        self._key, self._algorithms = key, algorithms

    @classmethod
    def with_secret(cls, setting: str) -> "TokenAuthentication":
        """With a secret key, see `_read`: Pulsar's ``tokenSecretKey``. Raises `TokenKeyError`."""
        key = _read(setting)
        if key.lstrip().startswith((b"-----BEGIN", b"ssh-")):
            raise TokenKeyError(
                "a secret key that is a key pair or a part of one: name the public key with --token-public-key"
            )
        if len(key) < _LEAST_BYTES:
            raise TokenKeyError(f"a secret key of {len(key)} bytes: expected {_LEAST_BYTES} or more")
        return cls(key, _SECRET)

    @classmethod
    def with_public_key(cls, setting: str) -> "TokenAuthentication":
        """With the public key of an RSA or EC key pair, in DER or PEM: Pulsar's ``tokenPublicKey``. Raises `TokenKeyError`."""
        data = _read(setting)
        try:
            key = (load_pem_public_key if data.startswith(b"-----") else load_der_public_key)(data)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise TokenKeyError(f"not a public key in DER or PEM: {error}") from None
        match key:
            case RSAPublicKey():
                return cls(key, _RSA)
            case EllipticCurvePublicKey():
                return cls(key, _EC)
        raise TokenKeyError("the public key is neither RSA nor EC")

    def expiry(self, token: str | bytes) -> int | None:
        """When a valid token expires (seconds since the epoch); None: never. Raises `NotAuthenticated`."""
        try:
            claims = jwt.decode(token, self._key, self._algorithms, options=_UNCHECKED)  # type: ignore[arg-type]
        except (
            jwt.PyJWTError,
            ValueError,
            TypeError,
            OverflowError,
        ) as error:  # the last two: of PyJWT's older versions
            raise NotAuthenticated(str(error)) from None
        return int(claims["exp"]) if "exp" in claims else None  # a text of digits is valid, too

    def of_connect(self, fields: dict[str, Any]) -> int | None:
        """`expiry` of the token in the fields of a CONNECT, or in the answer to a challenge."""
        if fields.get("auth_method_name") != METHOD:
            raise NotAuthenticated("no token")
        return self.expiry(fields.get("auth_data", b""))

    def principal(self, fields: dict[str, Any]) -> str:
        """Who has the valid token in the fields that `of_connect` takes: its subject, or the first of a list; empty: nobody.
        Pulsar's ``tokenAuthClaim`` names another claim; here it is always ``sub``."""
        claims = jwt.decode(fields.get("auth_data", b""), options={"verify_signature": False})
        subject = claims.get("sub")
        first = subject[0] if isinstance(subject, list) and subject else subject
        # No answer could name one with half of a surrogate pair, which JSON may have.
        return first if isinstance(first, str) and _is_unicode(first) else ""

    def guarded(self, app: ASGIApp, anonymous: str | None = None) -> ASGIApp:
        """`app` for requests with a token alone, in whose scope `ROLE` is the token's. `anonymous`: the role of all other requests; None: they
        are refused."""

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                header = dict(scope["headers"]).get(b"authorization", b"")
                scheme, _, token = header.partition(b" ")
                try:
                    if scheme != b"Bearer":
                        raise NotAuthenticated("no token")
                    self.expiry(token)
                    role = self.principal({"auth_data": token})
                except NotAuthenticated:
                    if anonymous is None:
                        refusal = JSONResponse({"reason": "Authentication required"}, 401)
                        return await refusal(scope, receive, send)
                    role = anonymous
                scope = {**scope, ROLE: role}
            return await app(scope, receive, send)

        return call


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(setting: str) -> bytes:
    """A key as Pulsar's settings name it: ``file:///PATH``, a path, ``data:;base64,KEY``, or the key in base64."""
    try:
        if setting.startswith("data:"):
            return base64.b64decode(setting.partition(",")[2], validate=True)
        if setting.startswith("file:"):
            return _read_file(Path(urllib.parse.unquote(urllib.parse.urlsplit(setting).path)))
        if (path := Path(setting)).exists():
            return _read_file(path)
        return base64.b64decode(setting, validate=True)
    except OSError as error:
        raise TokenKeyError(f"{error.filename}: {error.strerror}") from None
    except binascii.Error:
        raise TokenKeyError("neither a file that exists nor a key in base64") from None


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise TokenKeyError(f"{path}: more than {_MOST_BYTES:,} bytes are too many for a key")
    return data
