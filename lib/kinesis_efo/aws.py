"""Creates botocore and aiobotocore clients with a query's region, endpoint and role.

The SDK reads `AWS_ENDPOINT_URL*`, profiles, web identities and instance roles. This module applies the query's options on top.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import cache, cached_property, lru_cache, partial, wraps
from math import inf
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiobotocore
import botocore.config
import botocore.loaders
import botocore.session
from aiobotocore.client import AioBaseClient
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioAssumeRoleCredentialFetcher, AioDeferredRefreshableCredentials
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, HTTPClientError, ProfileNotFound
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.httpsession import ProxyConfiguration, get_cert_path, mask_proxy_url
from botocore.parsers import ResponseParserError
from botocore.utils import get_environ_proxies

from kinesis_efo.aws_errors import NoAnswerError, SignInError
from kinesis_efo.clock import Clock, SystemClock, deadline, in_thread, seconds_left
from kinesis_efo.credentials import SdkSession, borrow, profile_of, provide, setting_of, stamp, watch
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.options import AwsSettings
from kinesis_efo.raw_bodies import HttpSession, limit_bodies, send_exact_times

SessionT = TypeVar("SessionT", bound=botocore.session.Session)


def _config(attempts: int, connect: float, read: float) -> dict[str, Any]:
    retries = {"mode": "standard", "total_max_attempts": attempts}
    return {"retries": retries, "connect_timeout": connect, "read_timeout": read}


CONTROL_CONFIG: Final = _config(attempts=8, connect=10, read=30)
"""Default client configuration, for calls that the SDK retries. It is not for subscriptions, which this library retries."""


def patient_config(seconds: float) -> dict[str, Any]:
    """Return the client configuration for calls that this library retries, with timeouts of at most `seconds`. The SDK's own retries are
    turned off, because their total time cannot be limited."""
    return _config(attempts=1, connect=min(10.0, seconds), read=min(30.0, seconds))


INTERACTIVE_CONFIG: Final = _config(attempts=2, connect=2, read=5)
"""Client configuration for interactive tools, whose calls must fail quickly."""


CONTROL_SECONDS: Final = 60.0
"""Maximum duration of a call in seconds, including retries and fetching credentials. Does not apply to GetRecords and PutRecords."""

COMMAND_SECONDS: Final = 10.0
"""Maximum duration of an AWS call of a command-line tool in seconds, including retries and fetching credentials."""

_MOST_PAGES: Final = 1_000


async def pages_of(
    action: str,
    call: Callable[..., Awaitable[dict[str, Any]]],
    request: dict[str, Any],
    following: Callable[[dict[str, Any]], dict[str, Any] | None],
) -> AsyncIterator[dict[str, Any]]:
    """Yield the pages of a paginated AWS call. `following` returns the request for the page after the given one; None after the last page.

    Raises `ConfigurationError` after 1,000 pages: AWS does not return that many, and a faulty server must not exhaust the memory.
    """
    for _ in range(_MOST_PAGES):
        page = await call(**request)
        yield page
        if (next_request := following(page)) is None:
            return
        request = next_request
    raise ConfigurationError(
        f"{action}: there are {_MOST_PAGES} pages and still more, so it is not AWS that answers; correct the endpoint or the proxy"
    )


def token_only(page: dict[str, Any]) -> dict[str, Any] | None:
    """Return the request for the page after `page`, for operations whose token replaces all other parameters; None after the last page."""
    return {"NextToken": token} if (token := page.get("NextToken")) else None


_loader = cache(botocore.loaders.create_loader)


def with_shared_loader(session: SessionT) -> SessionT:
    """Make a session share the SDK's parsed service models with all other sessions of this process. Returns the session.

    Without sharing, each session would parse the models again, which costs 5 to 100 ms of CPU time per service.
    """
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@cache
def domains_of_aws() -> tuple[str, ...]:
    """Return the domains of AWS endpoints in all partitions, each with a leading dot."""
    data = with_shared_loader(botocore.session.Session()).get_data("partitions")
    outputs = [each["outputs"] for each in data["partitions"]]
    return tuple(f".{each[name]}" for each in outputs for name in ("dnsSuffix", "dualStackDnsSuffix"))


_HTML: Final = (b"<!doctype html", b"<html")


def _refuse_html(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Raise an error if the response is an HTML page, which the SDK would treat as an empty response."""
    if operation_model.has_streaming_output and not operation_model.has_event_stream_output:
        return  # a streamed body, such as an S3 object, may be an HTML page
    body, status = response_dict["body"], response_dict["status_code"]
    if body == b"":
        return  # an empty body is not an HTML page, even if its content type is text/html
    begins = body[:100].strip().lower().startswith(_HTML) if isinstance(body, bytes) else False
    if not begins and "text/html" not in response_dict["headers"].get("content-type", ""):
        return
    if status >= 500:
        response_dict["body"] = b""  # remove the page: the SDK retries, and its error then contains the status
        return
    if hasattr(body, "close"):
        body.close()  # the caller gets only the error below, so it cannot close this stream
    raise ResponseParserError(
        f"{operation_model.name} was answered with an HTML page (HTTP status {status}), which AWS does not send: "
        "a captive portal or a proxy is in between. Sign in to the network, or correct the proxy or the endpoint"
    )


def _refuse_kinesis(request: Any, event_name: str, **_: Any) -> None:
    """Raise an error if a request to another AWS service would go to a Kinesis endpoint, because of a configured endpoint URL."""
    host, service = urlsplit(request.url).hostname or "", event_name.split(".")[1]
    # Require a region after `kinesis`: the host name of an S3 bucket called `kinesis` begins with this word, too.
    its = re.search(r"(^|[.-])kinesis(-fips)?\.[a-z-]+-\d+\.", host)
    if service != "kinesis" and its and host.endswith(domains_of_aws()):
        raise ConfigurationError(
            f"{host} is an endpoint of Kinesis only, but was given for every service, including {service}; set AWS_ENDPOINT_URL_KINESIS "
            "instead of kinesis-efo option 'endpointUrl' (on the command line, --endpoint-url) and AWS_ENDPOINT_URL"
        )


def _require_authorities(session: botocore.session.Session, request: Any, **_: Any) -> None:
    """Raise an error for a TLS request if the CA bundle is unusable. The SDK would retry the request, which cannot succeed."""
    source, path = _authorities(session)
    # Check the bundle again after a change: it may be replaced while a query runs.
    if source and request.url.startswith("https") and (fault := _fault_of(path, stamp(Path(path)))):
        raise ConfigurationError(
            f"{source} names {path!r}: {fault}; give a file of certificates in PEM format, or remove the setting"
        )


def _authorities(session: botocore.session.Session) -> tuple[str, str]:
    """Return the setting that selects the SDK's CA bundle (empty if the SDK uses its default bundle), and the path of the bundle."""
    if path := session.get_config_variable("ca_bundle"):
        return "AWS_CA_BUNDLE" if "AWS_CA_BUNDLE" in os.environ else f"ca_bundle of {profile_of(session)}", path
    if path := os.environ.get("REQUESTS_CA_BUNDLE"):
        return "REQUESTS_CA_BUNDLE", path
    return "", get_cert_path(True)


@lru_cache(maxsize=8)
def _fault_of(path: str, _stamp: tuple[int, ...] | None) -> str | None:
    """Describe why the SDK cannot use a CA bundle; None if it can. Results are cached until the file changes."""
    try:
        if Path(path).is_dir():
            return "it is a directory, not a file"
        ssl.create_default_context().load_verify_locations(path)
    except ssl.SSLError:
        return "it has no certificate in PEM format"
    except OSError as error:
        return error.strerror or str(error)
    return None


_OWN_LIMITS: Final = ("GetRecords", "PutRecords")
"""Operations with large request or response bodies. Their duration is limited by the HTTP session instead of by `_Limit`."""


class _Limit:
    """Limits the duration of clients' calls, and adds the proxy or the CA bundle in use to their error messages.

    The SDK's timeouts cover neither a proxy that does not respond to CONNECT nor a response that arrives byte by byte.
    """

    def __init__(self, most_seconds: float, session: botocore.session.Session) -> None:
        self._most_seconds = most_seconds
        self._session = session

    def on_class(self, class_attributes: dict[str, Any], base_classes: list[type], **_: Any) -> None:
        """Limit the duration of all calls of a client class that the SDK creates."""
        limited = self._awaited if issubclass(base_classes[-1], AioBaseClient) else self._blocking
        for name, method in class_attributes.items():
            if isinstance(method, FunctionType):
                class_attributes[name] = limited(name, method)

    def _awaited(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def limited(client: Any, operation: str, seconds: float | None, answer: Awaitable[Any]) -> Any:
            with self._explaining(client):
                try:
                    async with asyncio.timeout(seconds) as limit:
                        return await answer
                except TimeoutError:
                    if limit.expired():
                        raise self._late(client, operation, seconds) from None
                    raise

        @wraps(method)
        def call(client: Any, *args: Any, **more: Any) -> Any:
            operation, seconds = self._of(client, name)
            answer = method(client, *args, **more)
            return limited(client, operation, seconds, answer) if operation else answer

        return call

    def _blocking(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(client: Any, *args: Any, **more: Any) -> Any:
            operation, seconds = self._of(client, name)
            if not operation:
                return method(client, *args, **more)
            with deadline(inf if seconds is None else seconds):  # the deadline also applies to a `credential_process`
                calling = in_thread(method, client, *args, **more)
            with self._explaining(client):
                try:
                    return calling.result(seconds)
                except TimeoutError:
                    if not calling.done():
                        raise self._late(client, operation, seconds) from None
                    raise

        return call

    def _of(self, client: Any, name: str) -> tuple[str, float | None]:
        """Return the AWS operation behind a client's method (empty if none), and its time limit in seconds (None if unlimited)."""
        operation = client.meta.method_to_api_mapping.get(name, "")
        model = client.meta.service_model
        if not operation or operation in _OWN_LIMITS or model.operation_model(operation).has_streaming_input:
            return operation, None
        config = client.meta.config
        attempts = (config.retries or {}).get("total_max_attempts", 5)
        longest = attempts * (config.connect_timeout + config.read_timeout)
        return operation, float(min(self._most_seconds, longest, seconds_left()))

    def _late(self, client: Any, operation: str, seconds: float | None) -> NoAnswerError:
        return NoAnswerError(operation=operation, endpoint_url=client.meta.endpoint_url, seconds=seconds)

    @contextmanager
    def _explaining(self, client: Any) -> Iterator[None]:
        try:
            yield
        except (HTTPClientError, BotoConnectionError) as error:
            found = []
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                source, path = _authorities(self._session)
                found.append(f"CA bundle: {path}, from {source or 'the SDK; AWS_CA_BUNDLE selects another'}")
            proxies, url = client.meta.config.proxies, client.meta.endpoint_url
            proxy = ProxyConfiguration(get_environ_proxies(url) if proxies is None else proxies).proxy_url_for(url)
            if proxy is not None and (shown := mask_proxy_url(proxy)) not in str(error):
                found.append(f"through the proxy {shown}, from {urlsplit(url).scheme.upper()}_PROXY")
            if found:
                error.args = (f"{error} ({'; '.join(found)})",)
            raise


def prepared(session: SessionT, seconds: float = CONTROL_SECONDS) -> SessionT:
    """Configure a session to limit its calls, validate endpoints and responses, and send times to Kinesis with milliseconds.

    `seconds` limits each call except GetRecords and PutRecords, including calls that fetch credentials. Returns the session.
    """
    session.register("creating-serializer.kinesis", send_exact_times)
    session.register("creating-client-class", _Limit(seconds, session).on_class)
    session.register("creating-client-class", limit_bodies)
    session.register("before-parse", _refuse_html)
    session.register("request-created", _refuse_kinesis)
    session.register("request-created", partial(_require_authorities, session))
    return with_shared_loader(session)


def refuse_old_sdk(version: str) -> None:
    """Raise an error for an aiobotocore version that does not verify host names or, behind a proxy, certificates."""
    if tuple(map(int, version.split(".")[:2])) < (3, 9):
        raise ConfigurationError(
            f"aiobotocore {version}: it does not verify the host name in AWS' certificates and, behind a proxy, accepts any certificate; "
            "install aiobotocore 3.9 or newer, with a boto3 that it allows, here and in the image or archive of the job"
        )


class SyncClients:
    """Creates synchronous botocore clients for individual calls, such as loading the manifest.

    Configuration and credentials are loaded when the first client is created: loading a manifest from a file does not need them.
    """

    def __init__(
        self,
        settings: AwsSettings,
        region: str | None = None,  # Used if `settings` has no region; None: use the SDK's configured region
        config: Mapping[str, Any] | None = None,  # The client configuration, such as timeouts and retries
        clock: Clock | None = None,
        seconds: float = CONTROL_SECONDS,  # Maximum duration of a call in seconds
    ) -> None:
        self._settings = settings
        self._seconds = seconds
        self._clock = clock or SystemClock()
        self._config = config or CONTROL_CONFIG
        self._given_region = settings.region or region

    @cached_property
    def region(self) -> str | None:
        """The region of the clients; None if it is not configured."""
        # AWS_REGION has precedence, as in the other SDKs and the AWS CLI; botocore reads only AWS_DEFAULT_REGION.
        configured = os.environ.get("AWS_REGION") or self._core.get_config_variable("region")
        return self._given_region or configured

    @cached_property
    def _core(self) -> botocore.session.Session:
        region = self._given_region or os.environ.get("AWS_REGION")
        return _watched(botocore.session.Session(), self._settings, self._clock, self._seconds, region)

    def client(self, service_name: str, /) -> Any:
        """Create a client, which the caller must close. Raises `ConfigurationError` if no region is configured."""
        if self.region is None:
            raise ConfigurationError(
                f"no AWS region for {service_name}: set kinesis-efo option 'region' (on the command line, --region) or the "
                "environment's AWS_REGION"
            )
        config = botocore.config.Config(**self._config)
        return self._session.create_client(
            service_name, region_name=self.region, endpoint_url=self._settings.endpoint_url, config=config
        )

    @cached_property
    def _session(self) -> botocore.session.Session:
        if self._settings.role_arn:
            base = _watched(botocore.session.Session(), self._settings, self._clock, self._seconds, self.region)
            config = botocore.config.Config(**self._config)
            client = partial(base.create_client, region_name=self.region, config=config)
            fetcher = _assuming(AssumeRoleCredentialFetcher, client, base.get_credentials(), self._settings)
            credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
            provide(self._core, lambda: credentials)
        if _needs_mfa_code(self._core) and (found := self._core.get_credentials()) is not None:
            found.get_frozen_credentials()
        return self._core


class AsyncClients:
    """Creates aiobotocore clients. `seconds` limits each call except GetRecords and PutRecords, including retries and fetching credentials.

    `given` is an SDK session whose credentials and profile are used instead of those from the environment.
    """

    def __init__(
        self,
        settings: AwsSettings,
        region: str,
        clock: Clock | None = None,
        seconds: float = CONTROL_SECONDS,
        given: SdkSession | None = None,
    ) -> None:
        self._seconds = seconds
        self._given = given
        self._settings = settings
        self._clock = clock or SystemClock()
        self._region = settings.region or region
        self._session: AioSession | None = None

    async def _ready(self) -> AioSession:
        if self._session is None:
            refuse_old_sdk(aiobotocore.__version__)
            session = self._signed_in()
            if self._settings.role_arn:
                base = self._signed_in()
                client = partial(base.create_client, region_name=self._region)
                fetcher = _assuming(
                    AioAssumeRoleCredentialFetcher, client, await base.get_credentials(), self._settings
                )
                credentials = AioDeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")

                async def assumed() -> AioDeferredRefreshableCredentials:
                    return credentials

                provide(session, assumed)
            if _needs_mfa_code(session) and (found := await session.get_credentials()) is not None:
                await found.get_frozen_credentials()
            self._session = session
        return self._session

    def _signed_in(self) -> AioSession:
        if self._given is None:
            return _watched(AioSession(), self._settings, self._clock, self._seconds, self._region)
        session = AioSession()
        # boto3 returns `default` if the profile is not set, so treat it as unset.
        if (profile := setting_of(self._given, "profile")) not in (None, "default"):
            session.set_config_variable("profile", profile)
        borrow(prepared(session, self._seconds), self._given, self._seconds)
        return session

    async def credentials(self) -> Any:
        """Return the current credentials (of the role, if the settings have one); None if there are none."""
        found = await (await self._ready()).get_credentials()
        return None if found is None else await found.get_frozen_credentials()

    async def open(self, service: str, config: AioConfig | None = None) -> AbstractAsyncContextManager[Any]:
        """Create a client for a service, as an async context manager."""
        session = await self._ready()
        given = config or AioConfig()
        merged = AioConfig(**CONTROL_CONFIG).merge(given)
        merged.http_session_cls = HttpSession if given.http_session_cls is AIOHTTPSession else given.http_session_cls
        client: AbstractAsyncContextManager[Any] = session.create_client(
            service,
            region_name=self._region,
            endpoint_url=self._settings.endpoint_url,
            config=merged,
        )
        return client


def _watched(session: SessionT, settings: AwsSettings, clock: Clock, seconds: float, region: str | None) -> SessionT:
    if settings.profile:
        session.set_config_variable("profile", settings.profile)
    try:
        configured = session.get_config_variable("region")
    except ProfileNotFound:
        raise SignInError(reason=f"there is no {profile_of(session)} on host {socket.gethostname()}") from None
    if region is not None and configured is None:
        session.set_config_variable("region", region)  # for calls that fetch credentials, such as AssumeRole
    watch(prepared(session, seconds), clock, seconds, settings.credential_provider)
    return session


def _needs_mfa_code(session: botocore.session.Session) -> bool:
    """Whether fetching credentials prompts for an MFA code. If so, callers fetch them in advance, because calls have a time limit."""
    try:
        return "mfa_serial" in session.get_scoped_config()
    except BotoCoreError:
        return False  # the SDK raises the same error when it fetches the credentials


def _assuming(fetcher: Any, client: Callable[..., Any], credentials: Any, settings: AwsSettings) -> Any:
    """Return a credential fetcher that assumes the role in `settings`. `fetcher` is its class, from botocore or aiobotocore."""
    if credentials is None:
        raise ConfigurationError(
            f"kinesis-efo option 'roleArn' is {settings.role_arn!r}, but there are no AWS credentials to assume it with; "
            "give the process credentials that may do so, by a role, a profile or its environment"
        )
    arguments = {"RoleSessionName": settings.role_session_name or "kinesis-efo"}
    if settings.external_id:
        arguments["ExternalId"] = settings.external_id
    at = partial(client, endpoint_url=settings.endpoint_url)
    return fetcher(at, credentials, settings.role_arn, extra_args=arguments)
