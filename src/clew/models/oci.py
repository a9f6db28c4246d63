"""Calls models in OCI Generative AI, through its OpenAI-compatible endpoint: OpenAI's SDK makes the requests, and Oracle's
SDK signs them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

from clew.errors import InvalidInput, MissingExtra
from clew.models.client import is_installed
from clew.models.openai_chat import ChatModel, closed_client, openai_vendor
from clew.models.retry import MAX_RETRIES, NoCredentials
from clew.models.windows import context_window

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OCIModel"]

Auth = Literal["config", "session", "instance", "resource"]

_TEMPLATE = "https://inference.generativeai.{region}.oci.{secondLevelDomain}"
_PATHS = {"compartment": "/20231130/actions/v1", "project": "/openai/v1"}
"""Where the endpoint has its OpenAI-compatible API. Requests name a compartment at one path, a project at the other."""
_CLI_AUTH = {
    "api_key": "config",
    "security_token": "session",
    "instance_principal": "instance",
    "resource_principal": "resource",
}
"""Clew's names of the kinds of credentials, by the names that OCI's command line has for them in `OCI_CLI_AUTH`."""
_SIGNED = ("content-type", "content-length", "host")
_EXTRA = "oci,openai"
_NO_KEY = "oci-signs-each-request"
"""What the SDK is given in place of a key, because it makes no client without one. The signature replaces it."""


class OCIModel(ChatModel):
    """A model in OCI Generative AI (Oracle's cloud), by the name that it has there, such as `openai.gpt-5.5` or
    `xai.grok-4`.

    `auth` selects the credentials with which requests are signed. `config`: the key in a `profile` of the configuration
    file of Oracle's SDK, or the session token if the profile has one. `session`: the session token in that profile.
    `instance` or `resource`: the identity that OCI gives to the machine or the function in which this program runs.
    Instead of `auth`, a `signer` object of Oracle's SDK can be given. `compartment_id` is the compartment in which the
    model is used; by default it is the tenancy, which is the root compartment. If you give `project`, the OCID of a
    Generative AI project, that project is used instead of a compartment.

    Arguments that you leave out are read from the environment variables of OCI's command line: `OCI_CLI_AUTH`,
    `OCI_CLI_PROFILE`, `OCI_CLI_CONFIG_FILE` and `OCI_CLI_REGION`, and from `OCI_COMPARTMENT_ID`. `base_url` replaces
    the endpoint of the region. Other `settings` are passed to the class `AsyncOpenAI` of OpenAI's SDK: `timeout`,
    `default_headers` … If you give a `client`, such as Oracle's own, it is used instead, and you have to close it.
    """

    _prefix = "oci"

    def __init__(
        self,
        model: str,
        *,
        client: AsyncOpenAI | None = None,
        max_retries: int = MAX_RETRIES,
        context_window: int | None = None,
        auth: Auth | None = None,
        profile: str | None = None,
        config_file: str | None = None,
        region: str | None = None,
        signer: Any = None,
        compartment_id: str | None = None,
        project: str | None = None,
        base_url: str | None = None,
        **settings: Any,
    ) -> None:
        own = {
            "auth": auth,
            "profile": profile,
            "config_file": config_file,
            "region": region,
            "signer": signer,
            "compartment_id": compartment_id,
            "project": project,
            "base_url": base_url,
        }
        if client is not None:
            settings |= {name: value for name, value in own.items() if value is not None}
        if "api_key" in settings:
            raise InvalidInput(
                "an oci: model signs its requests and takes no api_key. With an API key of OCI Generative AI, use the "
                "model as openai:NAME with base_url='https://inference.generativeai.REGION.oci.oraclecloud.com"
                f"{_PATHS['compartment']}'."
            )
        if not (is_installed("oci") and is_installed("openai")):
            raise MissingExtra(f"the model {self._prefix + ':' + model!r}", _EXTRA)
        if base_url is not None:
            _check_url(base_url)
        access = _Access(auth, profile, config_file, region, signer)

        def make(sdk: Any, **settings: Any) -> AsyncOpenAI:
            return _client(sdk, access, base_url, compartment_id, project, settings)

        super().__init__(
            model,
            lambda name: openai_vendor(
                model,
                name,
                client,
                settings,
                max_retries,
                maker=make,
                advice=_advice,
                prepare=access.load,
                extra=_EXTRA,
            ),
            context_window,
        )

    @property
    def context_window(self) -> int | None:
        return self._window or context_window(self._model.partition(".")[2] or self._model)

    def _limit_name(self, base_url: str) -> str:
        """Return the name of the request field that limits the output tokens: `max_completion_tokens` for OpenAI's
        newer models, which refuse the old name, and `max_tokens` for all other models, which may not know the new name.
        `base_url`, the address of the endpoint, makes no difference here.
        """
        is_closed = self._model.startswith("openai.") and not self._model.startswith("openai.gpt-oss")
        return "max_completion_tokens" if is_closed else "max_tokens"


class _Access:
    """The credentials with which requests to OCI are signed, and the region and tenancy (the customer's account) that
    belong to them. The methods block, so they are called on other OS threads than that of the event loop."""

    def __init__(
        self, auth: str | None, profile: str | None, config_file: str | None, region: str | None, signer: Any
    ) -> None:
        if auth is not None and auth not in get_args(Auth):
            raise InvalidInput(f"auth is one of {', '.join(get_args(Auth))}, not {auth!r}. A signer goes into signer=")
        if signer is not None and (auth or profile or config_file):
            raise InvalidInput("give either a signer, or auth, profile and config_file")
        if signer is not None and not callable(signer):
            raise InvalidInput(f"a {type(signer).__name__} does not sign requests: give a signer of the oci SDK")
        self._auth = auth
        self._profile = profile
        self._file = config_file
        self._signer = signer
        self._token: tuple[Path, str] | None = None
        """The file of a session token, and the token that the signer was made with."""
        self._config: dict[str, Any] = {}
        self._loading = threading.Lock()
        self._is_loaded = False
        self.region = region or os.environ.get("OCI_CLI_REGION") or ""
        self.tenancy = ""

    def load(self) -> None:
        """Load the credentials, and the region and tenancy if they are not known. Does nothing if they are loaded
        already. Raises `NoCredentials` if there are none."""
        with self._loading:
            if self._is_loaded:
                return
            said = os.environ.get("OCI_CLI_AUTH", "")
            auth = self._auth or _CLI_AUTH.get(said, said) or "config"
            what = "the signer" if self._signer is not None else f"auth={auth!r}"
            self._explained(what, lambda: self._load(auth))
            self.region = self.region or str(getattr(self._signer, "region", None) or "")
            self.tenancy = self.tenancy or str(getattr(self._signer, "tenancy_id", None) or "")
            if not self.tenancy and callable(claim := getattr(self._signer, "get_claim", None)):
                self.tenancy = str(claim("res_tenant") or "")
            self._is_loaded = True

    def _load(self, auth: str) -> None:
        import oci

        if self._signer is not None:
            return
        if auth == "instance":
            self._signer = oci.auth.signers.InstancePrincipalsSecurityTokenSigner()
        elif auth == "resource":
            self._signer = oci.auth.signers.get_resource_principals_signer()
        elif auth in ("config", "session"):
            file = self._file or os.environ.get("OCI_CLI_CONFIG_FILE") or oci.config.DEFAULT_LOCATION
            profile = self._profile or os.environ.get("OCI_CLI_PROFILE") or oci.config.DEFAULT_PROFILE
            self._config = oci.config.from_file(file, profile)
            self.region = self.region or self._config.get("region") or ""
            self.tenancy = self._config.get("tenancy") or ""
            if auth == "session" or self._config.get("security_token_file"):
                self._load_token()
            else:
                self._signer = oci.Signer.from_config(self._config)
        else:
            raise InvalidInput(f"OCI_CLI_AUTH is {auth!r}, but Clew knows {', '.join(_CLI_AUTH)}")

    def _load_token(self) -> None:
        """Read the session token from the file that the profile in OCI's configuration names, and make a signer from
        the token and the profile's key. Keeps the present signer if it was made with the token that is in the file.
        Called for each request, because another process may renew the token in the file."""
        import oci

        named = self._config.get("security_token_file")
        if not named:
            raise NoCredentials("the profile has no security_token_file. Make a session: oci session authenticate")
        file = Path(named).expanduser()
        token = file.read_text().strip()
        if self._token != (file, token):
            key = oci.signer.load_private_key_from_file(self._config["key_file"], self._config.get("pass_phrase"))
            self._signer = oci.auth.signers.SecurityTokenSigner(token, key)
            self._token = file, token

    def sign(self, request: Any) -> None:
        """Sign a request of OpenAI's SDK: its method, address, date and body. Raises `NoCredentials` if the credentials
        cannot sign it. Some credentials are renewed by a request to OCI; if OCI does not answer that request, raises
        `ConnectionError`."""
        with self._loading:
            if self._token is not None:
                self._explained("the session token", self._load_token)
            signer = self._signer
        unsigned = SimpleNamespace(
            method=request.method,
            url=str(request.url),
            path_url=request.url.raw_path.decode("ascii"),
            headers={name: request.headers[name] for name in _SIGNED if name in request.headers},
            body=request.content,
        )
        self._explained("the signer", lambda: signer(unsigned), is_renewal=True)
        for name, value in unsigned.headers.items():
            request.headers[name] = value

    def _explained(self, what: str, work: Callable[[], object], *, is_renewal: bool = False) -> None:
        """Call `work`, which uses Oracle's SDK, and turn the SDK's errors into `NoCredentials`, or `ConnectionError` if
        OCI cannot be reached. The texts of the SDK's errors are left out because they may hold parts of keys. `what`
        names the credentials in the error message. With `is_renewal`, `work` may renew credentials over the network:
        then an `OSError` means that OCI cannot be reached, and not that there are no credentials."""
        import oci

        try:
            work()
        except (InvalidInput, NoCredentials):
            raise
        except oci.exceptions.ServiceError as error:
            if error.status == 429 or error.status >= 500:
                raise ConnectionError(f"no token for {what}") from None
            said = ", ".join(str(one) for one in (error.status, error.code) if one)
            raise NoCredentials(f"{what} cannot sign requests: {said}") from None
        except Exception as error:  # noqa: BLE001 - also those of libraries that the SDK uses, such as a JWT's
            if is_renewal and isinstance(error, OSError):
                raise ConnectionError(f"no token for {what}") from None
            raise NoCredentials(f"{what} cannot sign requests: {type(error).__name__}") from None


def _client(
    sdk: Any,
    access: _Access,
    base_url: str | None,
    compartment_id: str | None,
    project: str | None,
    settings: dict[str, Any],
) -> AsyncOpenAI:
    """Return a client of OpenAI's SDK for OCI's endpoint. `access` holds the credentials that sign the client's
    requests, and must have been loaded. `base_url`, if given, replaces the endpoint of the region. The model is used in
    `project`. If that is None, it is used in the compartment `compartment_id`, by default the one in the environment
    variable `OCI_COMPARTMENT_ID` or else the root compartment. `settings` are passed to the client. `sdk` is the
    package of OpenAI's SDK."""
    from openai import AsyncOpenAI

    class Signing(AsyncOpenAI):
        async def _prepare_request(self, request: Any) -> None:
            await super()._prepare_request(request)
            await asyncio.to_thread(access.sign, request)

    headers: dict[str, str] = {}
    if project is None:
        compartment = compartment_id or os.environ.get("OCI_COMPARTMENT_ID") or access.tenancy
        if not compartment:
            raise InvalidInput("an oci: model needs a compartment. Give compartment_id=, or set OCI_COMPARTMENT_ID.")
        headers = {"CompartmentId": compartment, "opc-compartment-id": compartment}
    given = {
        **settings,
        "project": project,
        "base_url": base_url or _endpoint(access.region) + _PATHS["compartment" if project is None else "project"],
        "api_key": _NO_KEY,
        "default_headers": {**headers, **(settings.get("default_headers") or {})},
    }
    return closed_client(sdk, Signing, given)


def _endpoint(region: str) -> str:
    import oci

    if not region:
        raise InvalidInput("an oci: model needs a region. Give region='us-chicago-1', or set OCI_CLI_REGION.")
    address: str = oci.regions.endpoint_for(
        "generative_ai_inference", region=region, service_endpoint_template=_TEMPLATE
    )
    return address.rstrip("/")


def _check_url(base_url: str) -> None:
    """Raise `InvalidInput` if an address is not encrypted (`https`), unless it is on this machine. The signature of a
    request can contain a session token, which nobody on the network may read."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not (parts.scheme == "http" and host in ("localhost", "127.0.0.1", "::1")):
        raise InvalidInput(f"the base_url of an oci: model begins with https://, and {base_url!r} does not")


def _advice(status: int | None) -> str:
    if status in (401, 403):
        return (
            "Check auth=, which is config, session, instance or resource, and its profile in the SDK's configuration file. "
            "A session that has ended is renewed by: oci session refresh."
        )
    if status == 404:
        return (
            "Check the model's name and region, the compartment, and that a policy allows generative-ai-family there."
        )
    if status is not None and 300 <= status < 400:
        return "The address redirects to another one, where no signed request is sent. Give the final address."
    return ""
