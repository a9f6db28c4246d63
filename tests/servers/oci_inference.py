"""The OpenAI-compatible endpoint of OCI Generative AI, for the real SDKs to talk to, and what gives a machine in OCI its
principal. No live one is to be had.

It verifies the signature of each request as Oracle describes it, and answers a wrong one with 401. What is signed well is
passed on to a model server, byte by byte.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

__all__ = ["TENANCY", "OCIInference", "new_key", "pem", "token_for", "write_config"]

TENANCY = "ocid1.tenancy.oc1..tenancy"
_FINGERPRINT = ":".join(["00"] * 16)
_SIGNED = ["date", "(request-target)", "host", "content-length", "content-type", "x-content-sha256"]
_FIELD = re.compile(r'(\w+)="([^"]*)"')


class _Request(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    raw: bytes
    """All of it, as it came."""


class OCIInference:
    """Listens on a port of 127.0.0.1, in the event loop of the test.

        async with ModelServer([…]) as server, OCIInference(server.url) as oci:
            resolve_model("oci:openai.gpt-5.5", base_url=oci.url, config_file=…)

    `keys` has the public key of each key id that it admits. `seen` has the headers of the requests that were signed well.
    """

    def __init__(self, model_server: str) -> None:
        parts = urlsplit(model_server)
        self._behind = (str(parts.hostname), int(parts.port or 80))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.keys: dict[str, Any] = {}
        self.seen: list[dict[str, str]] = []
        self.refused: list[str] = []
        """Why requests were refused."""
        self.redirect = ""
        """Where to send all model calls, in place of an answer."""
        self.issued = 0
        """How many tokens it gave to machines."""
        self._machine = _certificate()

    @property
    def address(self) -> str:
        assert self._server is not None, "it is not started"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"{self.address}/20231130/actions/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets asyncio finish the connections that were just closed

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(await _read(reader), writer)
                await writer.drain()
        finally:
            writer.close()

    async def _answer(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        path = urlsplit(request.target).path
        if path.startswith("/opc/v2/") or path == "/v1/x509":
            writer.write(_answer(200, *self._principal(path, request)))
        elif problem := self._problem(request):
            self.refused.append(problem)
            told = json.dumps({"code": "NotAuthenticated", "message": problem}).encode()
            writer.write(_answer(401, told, "application/json"))
        elif self.redirect:
            writer.write(_answer(307, b"", "text/plain", f"location: {self.redirect}{request.target}\r\n"))
        else:
            self.seen.append(request.headers)
            await self._pass_on(request, writer)

    def _problem(self, request: _Request) -> str:
        """What is wrong with the signature of a request; empty if nothing is."""
        headers = request.headers
        said = headers.get("authorization", "")
        fields = dict(_FIELD.findall(said))
        if not said.startswith("Signature ") or fields.get("algorithm") != "rsa-sha256" or fields.get("version") != "1":
            return "the request is not signed"
        if sorted(fields["headers"].split()) != sorted(_SIGNED):
            return f"it is not these headers that must be signed: {fields['headers']}"
        key = self.keys.get(fields["keyId"])
        if key is None:
            return "the key is not known"
        if abs(parsedate_to_datetime(headers["date"]) - datetime.now(UTC)) > timedelta(minutes=5):
            return "the date is not now"
        if headers["x-content-sha256"] != base64.b64encode(sha256(request.body).digest()).decode():
            return "the body is not the one that was signed"
        values = {**headers, "(request-target)": f"{request.method.lower()} {request.target}"}
        lines = "\n".join(f"{name}: {values[name]}" for name in fields["headers"].split())
        if not _verifies(key, base64.b64decode(fields["signature"]), lines.encode()):
            return "the signature does not fit"
        if not (headers.get("compartmentid") or headers.get("openai-project")):
            return "neither a compartment nor a project is named"
        return ""

    async def _pass_on(self, request: _Request, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(*self._behind)
        head, _, body = request.raw.partition(b"\r\n\r\n")
        lines = [
            line for line in head.split(b"\r\n") if not line.lower().startswith((b"connection:", b"authorization:"))
        ]
        forth.write(b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n" + body)
        try:
            while piece := await back.read(65536):
                writer.write(piece)
                await writer.drain()
        finally:
            forth.close()

    # What a machine in OCI asks for its principal.

    def _principal(self, path: str, request: _Request) -> tuple[bytes, str]:
        certificate, key = self._machine
        if path == "/v1/x509":
            from cryptography.hazmat.primitives.serialization import load_der_public_key

            asked = json.loads(request.body)
            assert asked["certificate"] in "".join(certificate.splitlines())
            self.issued += 1
            token = token_for(number=self.issued)
            self.keys[f"ST${token}"] = load_der_public_key(base64.b64decode(asked["publicKey"]))
            return json.dumps({"token": token}).encode(), "application/json"
        assert request.headers["authorization"] == "Bearer Oracle"
        named: dict[str, Callable[[], str]] = {
            "/opc/v2/instance/region": lambda: "eu-frankfurt-1",
            "/opc/v2/identity/cert.pem": lambda: certificate,
            "/opc/v2/identity/key.pem": lambda: key,
            "/opc/v2/identity/intermediate.pem": lambda: certificate,
        }
        return named[path]().encode(), "text/plain"


async def _read(reader: asyncio.StreamReader) -> _Request:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().strip().split("\r\n")
    method, target, _ = first.split(" ")
    named = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in named}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return _Request(method, target, headers, body, head + body)


def _answer(status: int, body: bytes, kind: str, further: str = "") -> bytes:
    head = f"HTTP/1.1 {status} Told\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    head += f"{further}\r\n"
    return head.encode() + body


def _verifies(key: Any, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    try:
        key.verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True


def new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: Any) -> str:
    """A private key as text, without a password."""
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    written: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return written.decode()


def token_for(**claims: Any) -> str:
    """A token of the form that OCI gives: its claims can be read, and nobody here checks its own signature."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"iat": now, "exp": now + 3600, "res_tenant": TENANCY, **claims})
    return ".".join(
        [*(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts), "c2ln"]
    )


def _certificate() -> tuple[str, str]:
    """A machine's certificate and its private key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    key = new_key()
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "machine"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, f"opc-tenant:{TENANCY}"),
        ]
    )
    now = datetime.now(UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    made = built.sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode(), pem(key)


def write_config(folder: Path, oci: OCIInference, profile: str = "DEFAULT", *, token: str = "") -> Path:
    """Add a profile with a key of its own to the SDK's configuration file in a folder, and let the service know the key.
    With `token`, it is the profile of a session."""
    key = new_key()
    key_file, token_file, config = folder / f"{profile}.pem", folder / f"{profile}.token", folder / "config"
    key_file.write_text(pem(key))
    key_file.chmod(0o600)
    lines = [f"[{profile}]", f"tenancy={TENANCY}", "region=eu-frankfurt-1", f"key_file={key_file}"]
    lines.append(f"fingerprint={_FINGERPRINT}")
    if token:
        token_file.write_text(token)
        lines.append(f"security_token_file={token_file}")
        oci.keys[f"ST${token}"] = key.public_key()
    else:
        lines.append("user=ocid1.user.oc1..user")
        oci.keys[f"{TENANCY}/ocid1.user.oc1..user/{_FINGERPRINT}"] = key.public_key()
    before = config.read_text() if config.exists() else ""
    config.write_text(before + "\n".join(lines) + "\n")
    config.chmod(0o600)
    return config
