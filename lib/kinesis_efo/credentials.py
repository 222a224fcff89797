"""Reloads changed credentials while a query runs, and explains why credentials cannot be fetched. The SDK reads credential files only once,
and renews only credentials with an expiration time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from inspect import isawaitable
from math import inf
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, Final, Protocol, TypeVar, cast

import aiobotocore.credentials
import botocore.credentials
from aiobotocore.session import AioSession
from botocore.exceptions import CredentialRetrievalError
from botocore.utils import parse_timestamp

from kinesis_efo.aws_errors import Cause, SignInError, cause_of, cause_of_code, describe
from kinesis_efo.clock import Clock, deadline, in_thread, seconds_left

T = TypeVar("T")
logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
"""Seconds between two checks of the credential files."""
PROCESS_SECONDS: Final = 60.0
"""Maximum duration of a `credential_process` in seconds. The SDK would wait forever."""
_KILL_SECONDS: Final = 0.3
_AGAIN_SECONDS: Final = 1.0
_REPEATED_BY_OTHERS: Final = ("PutRecords",)
"""Operations that the SDK must not retry, because it cannot send their bodies twice (raw_bodies.py). The producer retries them."""
_FILES: Final = ("credentials_file", "config_file")
_MAY_PASS: Final = (Cause.PASSING, Cause.CREDENTIALS_UNREACHABLE)
_BY_AWS: Final = (*_MAY_PASS, Cause.DENIED, Cause.UNRECOGNIZED, Cause.EXPIRED)
"""If fetching credentials fails with one of these causes, the original error is raised instead of `SignInError`: callers handle it."""
_PROCESS: Final = "custom-process"
_OF_THIS_HOST: Final = (_PROCESS, "Environment")
"""The SDK's names for credential sources that do not use the network."""
_OF_HOSTS: Final = ("EcsContainer", "Ec2InstanceMetadata")
"""The credential sources besides `Environment` that a profile's `credential_source` may select."""


def provide(session: Any, load: Callable[[], Any]) -> None:
    """Make a session load its credentials with `load`, which returns credentials or None (with aiobotocore, as an awaitable)."""
    session.register_component("credential_provider", SimpleNamespace(load_credentials=load))


class SdkSession(Protocol):
    """A botocore, boto3 or aiobotocore session."""

    def get_credentials(self) -> Any:
        """Return credentials or None; with aiobotocore, as an awaitable."""


def setting_of(session: Any, name: str) -> str | None:
    """Return the `region` or the `profile` of a session. A boto3 session has them as attributes, not as configuration variables."""
    if hasattr(session, "get_config_variable"):
        return cast("str | None", session.get_config_variable(name))
    return getattr(session, f"{name}_name", None)


def borrow(session: AioSession, given: SdkSession, seconds: float) -> None:
    """Make a session load its credentials from the session `given`, which renews them. Loading is limited to `seconds`."""

    provide(session, lambda: _in_time(_borrowed(given.get_credentials), seconds))


async def _borrowed(load: Callable[[], Any]) -> Any:
    """Load credentials for aiobotocore, in a thread, because `load` may block."""
    found = await asyncio.wrap_future(in_thread(load))
    if isawaitable(found):
        return await found
    return None if found is None else _Borrowed(found)


class _Borrowed:
    """Adapts botocore's credentials to aiobotocore's interface."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    async def get_frozen_credentials(self) -> Any:
        """Return the current credentials. Renews them in a thread if necessary."""
        freeze, found = self._found.get_frozen_credentials, self._found
        if hasattr(found, "refresh_needed") and found.refresh_needed():
            return await asyncio.wrap_future(in_thread(freeze))
        return freeze()

    async def get_account_id(self) -> Any:
        return (await self.get_frozen_credentials()).account_id


def _files_of(session: Any) -> list[Path]:
    return [Path(os.path.expanduser(session.get_config_variable(name))) for name in _FILES]  # noqa: PTH111


def profile_of(session: Any) -> str:
    """Describe the profile of a session and its files, for messages."""
    there = " and ".join(str(file) for file in _files_of(session) if file.exists())
    profile = session.get_config_variable("profile") or "default"
    return f"AWS profile {profile!r} ({f'of {there}' if there else 'without files'})"


def watch(session: Any, clock: Clock, seconds: float = PROCESS_SECONDS, provider: str | None = None) -> None:
    """Make a session reload its credentials if their files changed (checked once a minute) or if AWS reports that they have expired.

    If `provider` (the option `credentialProvider`) is set, the credentials come from the function with this name, which is called again
    before they expire. Fetching credentials takes at most `seconds`. If it fails and waiting does not help, calls raise `SignInError`.
    """
    for name in ("botocore.credentials", "aiobotocore.credentials", "botocore.tokens", "aiobotocore.tokens"):
        logging.getLogger(name).addFilter(_without_traceback)
    moment = _RefreshState([] if provider else _files_of(session), session, clock, provider)
    usual = partial(_provided, provider) if provider else _ending_helpers(session).load_credentials
    if provider and isinstance(session, AioSession):
        usual = partial(_borrowed, usual)

    def anew() -> Any:
        # Create a new session, because a session caches the contents of the credentials and config files.
        session_anew = type(session)()
        # Set the profile only if the session has one: an explicit profile overrides keys in the environment.
        if profile := session.instance_variables().get("profile"):
            session_anew.set_config_variable("profile", profile)
        session_anew.set_config_variable("region", session.get_config_variable("region"))
        return _ending_helpers(session_anew).load_credentials()

    async def load_async() -> Any:
        with moment.signing_in():
            found = await _in_time(usual(), seconds)
        return None if found is None else _AsyncCredentials(found, usual if provider else anew, moment, asyncio.Lock())

    def load() -> Any:
        with moment.signing_in(), deadline(seconds):
            found = _in_time_here(usual)
        return None if found is None else _Credentials(found, usual if provider else anew, moment, Lock())

    def again(response: tuple[Any, dict[str, Any]] | None, attempts: int, operation: Any, **_: Any) -> float | None:
        """Make the SDK sign and send a request once more if AWS has rejected it because its credentials had expired."""
        if response is None or cause_of_code(response[1].get("Error", {}).get("Code", "")) is not Cause.EXPIRED:
            return None
        moment.expired()
        return _AGAIN_SECONDS if attempts == 1 and operation.name not in _REPEATED_BY_OTHERS else None

    provide(session, load_async if isinstance(session, AioSession) else load)
    session.register("needs-retry", again)


def _ending_helpers(session: Any) -> Any:
    """Make a session kill a `credential_process`, including that of a `source_profile`, when the call waiting for it is cancelled or times
    out. The SDK would leave the program running. Returns the session's chain of credential providers.

    The program's child processes are not killed: this would require a separate process group, which could not prompt on the terminal.
    """
    awaits = isinstance(session, AioSession)
    popen = _process if awaits else _blocking_process

    def sdk(name: str) -> Any:
        return getattr(aiobotocore.credentials, f"Aio{name}") if awaits else getattr(botocore.credentials, name)

    chain, profile = session.get_component("credential_provider"), session.get_config_variable("profile") or "default"

    def process(profile_name: str) -> Any:
        return sdk("ProcessProvider")(profile_name, lambda: session.full_config, popen=popen)

    usual = sdk("ProfileProviderBuilder")(session, cache={})

    def providers(profile_name: str, disable_env_vars: bool = False) -> list[Any]:
        found = usual.providers(profile_name, disable_env_vars)
        return [process(profile_name) if each.METHOD == _PROCESS else each for each in found]

    sources = [sdk("EnvProvider")(), *(each for each in chain.providers if each.CANONICAL_NAME in _OF_HOSTS)]
    roles = sdk("AssumeRoleProvider")(
        lambda: session.full_config, session.create_client, {}, profile,
        credential_sourcer=sdk("CanonicalNameCredentialSourcer")(sources),
        profile_provider_builder=SimpleNamespace(providers=providers),
    )  # fmt: skip
    for provider in (roles, process(profile)):
        chain.insert_after(provider.METHOD, provider)
        chain.remove(provider.METHOD)  # removes the first provider with this METHOD, which is the SDK's
    return chain


def _provided(name: str) -> Any:
    """Return the credentials from the function or entry point `name`, the value of the option `credentialProvider`."""
    group = "kinesis_efo.credentials"
    entries = [EntryPoint("", name, group)] if ":" in name else [*entry_points(group=group, name=name)]
    if not entries:
        raise SignInError(reason=f"no installed package has such an entry point in the group '{group}'")
    function = entries[0].load()
    found = function()
    if hasattr(found, "get_credentials"):  # `found` is a session
        found = found.get_credentials()
    if isinstance(found, botocore.credentials.Credentials):
        return found
    renewed = botocore.credentials.RefreshableCredentials.create_from_metadata
    return renewed(_parsed(found), lambda: _parsed(function()), name)


def _parsed(found: Any) -> dict[str, str]:
    """Convert credentials in the format of STS and `credential_process` to botocore's format. Raises `SignInError` if they are invalid."""
    try:
        # Credentials without an expiration are used until AWS rejects them.
        expires = parse_timestamp(str(found.get("Expiration") or "9999-01-01T00:00:00Z"))
        if expires.tzinfo is None:
            raise ValueError("a time without a time zone")
        return {
            "access_key": found["AccessKeyId"],
            "secret_key": found["SecretAccessKey"],
            "token": found.get("SessionToken"),
            "expiry_time": expires.isoformat(),
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        # Name only the type: the value may contain a secret.
        raise SignInError(
            reason=f"it returned a {type(found).__name__}; return a session or credentials of boto3 or botocore, or a dict with AccessKeyId, "
            "SecretAccessKey and, if there are any, SessionToken and Expiration (with its time zone)"
        ) from None


class _RefreshState:
    """Decides when to reload the credentials, and records whether fetching them has ever succeeded."""

    def __init__(self, files: list[Path], session: Any, clock: Clock, provider: str | None) -> None:
        self._files = files
        self._session = session
        self._provider = provider
        self._profile = session.get_config_variable("profile") or "default"
        self._worked = False
        self._clock = clock
        self._stamps = self._seen = self._look()
        self._looked = clock.monotonic()
        self._expired = False

    def expired(self) -> None:
        """Record that AWS reported the credentials as expired."""
        self._expired = True

    @contextmanager
    def signing_in(self, *, works: bool = False) -> Iterator[None]:
        """Raise `SignInError` if the `with` block fails to fetch credentials and a retry cannot help. Set `works` if success of the block
        proves that the setup works: later failures are then more likely to be transient."""
        try:
            yield
        except Exception as error:
            if self._provider:
                why = error.kwargs["error_msg"] if isinstance(error, CredentialRetrievalError) else describe(error)
                if self._worked or cause_of(error) in _MAY_PASS:
                    raise CredentialRetrievalError(provider=self._sign_in, error_msg=why) from None
                raise SignInError(reason=f"{self._sign_in} fails: {why}") from error
            # If a helper program has worked before, assume that it now printed a network error instead of JSON.
            if self._worked and isinstance(error, ValueError):
                raise CredentialRetrievalError(provider=f"profile {self._profile!r}", error_msg=error) from None
            if _is_of_aws(error) or (self._worked and cause_of(error) in _MAY_PASS):
                raise
            raise SignInError(reason=f"{self._sign_in} fails: {_why(error)}{self._named_by(error)}") from None
        self._worked = self._worked or works

    @property
    def _sign_in(self) -> str:
        if self._provider:
            return f"kinesis-efo option 'credentialProvider' {self._provider!r} on host {socket.gethostname()}"
        return f"the sign-in with {profile_of(self._session)}"

    def _named_by(self, error: Exception) -> str:
        """Describe the setting that contains the file or program to which an error refers; empty if there is no such setting."""
        file = getattr(error, "filename", None)
        profiles = self._session.full_config["profiles"].values() if file else ()
        variables = [(name, value) for name, value in os.environ.items() if name.startswith("AWS_")]
        settings = [*variables, *(setting for profile in profiles for setting in profile.items())]
        names = [name for name, value in settings if isinstance(value, str) and str(file) in value.split()]
        return f" (setting {names[0]})" if names else ""

    def is_due(self) -> bool:
        """Whether to reload the credentials now. Checks the files if a check is due."""
        now = self._clock.monotonic()
        if now - self._looked < (_AGAIN_SECONDS if self._expired else LOOK_SECONDS):
            return False
        self._looked = now
        self._seen = self._look()
        return self._expired or self._seen != self._stamps

    def taken(self, found: Any, kept: Any) -> Any:
        """Return the credentials to use from now on: the reloaded ones (`found`) or, if these are unsuitable, the current ones (`kept`).

        Until `kept` has expired, `found` must come from the same source. While a credentials file is being rewritten, the SDK may find
        credentials in another source instead.
        """
        fits = found is not None and (self._expired or found.method == kept.method)
        self._expired = False
        if not fits:
            return kept
        # Use the files' stamps from before loading, so that changes during loading are detected.
        self._stamps = self._seen
        logger.info("credentials were reloaded (%s)", found.method)
        return found

    def missed(self, error: Exception) -> None:
        """Log that the credentials could not be reloaded. The current credentials stay in use."""
        self._expired = False
        logger.warning("credentials cannot be reloaded, so the current ones stay in use: %s", describe(error))

    def _look(self) -> list[tuple[int, ...] | None]:
        return [stamp(file) for file in self._files]


def stamp(file: Path) -> tuple[int, ...] | None:
    """Return a file's modification time, size and inode, to detect changes and replacements; None if the file cannot be accessed."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class _Watched:
    """Wraps the SDK's credentials, and replaces them when they have changed."""

    def __init__(self, found: Any, anew: Callable[[], Any], moment: _RefreshState, lock: Any) -> None:
        self._found = found
        self._anew = anew
        self._moment = moment
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)


class _Credentials(_Watched):
    """Credentials of botocore that are reloaded when their source, such as a file, may have changed."""

    def get_frozen_credentials(self) -> Any:
        """Return the current credentials. Reloads them first if they may have changed."""
        with self._lock:
            if self._moment.is_due():
                try:
                    self._found = self._moment.taken(self._anew(), self._found)
                except Exception as error:
                    self._moment.missed(error)
        with self._moment.signing_in(works=True):
            freeze = self._found.get_frozen_credentials
            return _in_time_here(freeze) if self._found.method == _PROCESS else freeze()

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        def get() -> Any:
            with self._moment.signing_in():
                return getattr(self._found, name, None)

        return get


class _AsyncCredentials(_Watched):
    """The same for aiobotocore's credentials."""

    async def get_frozen_credentials(self) -> Any:
        """Return the current credentials. Reloads them first if they may have changed."""
        async with self._lock:
            if self._moment.is_due():
                try:
                    self._found = self._moment.taken(await self._anew(), self._found)
                except Exception as error:
                    self._moment.missed(error)
        with self._moment.signing_in(works=True):
            freezing = self._found.get_frozen_credentials()
            return await (_in_time(freezing) if self._found.method == _PROCESS else freezing)

    async def get_account_id(self) -> Any:
        with self._moment.signing_in():
            found = self._found.get_account_id()  # a coroutine for some kinds of credentials
            return await found if isawaitable(found) else found


async def _process(*command: str, **options: Any) -> Any:
    """Start a `credential_process`, and kill it if its `communicate` is cancelled."""
    try:
        process = await asyncio.create_subprocess_exec(*command, **options)
    except OSError as error:
        error.filename = command[0]  # some event loops do not set it
        raise
    ended = process.communicate

    async def communicate() -> tuple[bytes, bytes]:
        try:
            output, errors = await ended()
            return output, _with_exit_code(command[0], process.returncode, errors)
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise

    process.communicate = communicate  # type: ignore[assignment,method-assign]
    return process


def _blocking_process(command: list[str], **options: Any) -> Any:
    """Start a `credential_process`. `communicate` kills it shortly before the caller's timeout, after which Python may exit at once."""
    process = subprocess.Popen(command, **options)
    ended = process.communicate

    def communicate() -> tuple[bytes, bytes]:
        seconds = max(0.1, min(PROCESS_SECONDS, seconds_left()) - _KILL_SECONDS)
        try:
            output, errors = ended(timeout=seconds)
            return output, _with_exit_code(command[0], process.returncode, errors)
        except subprocess.TimeoutExpired:
            with process:  # on exit, closes the pipes and waits for the process
                process.kill()
            raise _too_late(seconds) from None

    process.communicate = communicate  # type: ignore[method-assign,assignment]
    return process


def _with_exit_code(program: str, code: int | None, errors: bytes) -> bytes:
    """Prefix a program's error output with its name and exit code. The SDK uses the result as an error message."""
    return b"%s ended with exit code %d. %s" % (os.fsencode(program), code or 0, errors)


async def _in_time(work: Awaitable[T], seconds: float = inf) -> T:
    seconds = min(PROCESS_SECONDS, seconds)
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise _too_late(seconds) from None


def _in_time_here(work: Callable[[], T]) -> T:
    try:
        return in_thread(work).result(PROCESS_SECONDS)
    except TimeoutError:
        raise _too_late(PROCESS_SECONDS) from None


def _too_late(seconds: float) -> CredentialRetrievalError:
    return CredentialRetrievalError(
        provider=_PROCESS, error_msg=f"it did not end within {seconds:.0f} s; it may wait for input"
    )


def _is_of_aws(error: Exception) -> bool:
    """Whether an error comes from AWS or the network, rather than from a file, program or setting of this host."""
    if isinstance(error, CredentialRetrievalError):
        return error.kwargs.get("provider") not in _OF_THIS_HOST
    is_file = isinstance(error, OSError) and error.filename is not None
    return cause_of(error) in _BY_AWS and not is_file and not isinstance(error, EOFError)


def _why(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it asks for a code (MFA), and this process has no terminal"
    if isinstance(error, ValueError | AttributeError | TypeError):  # the SDK cannot parse the output of a program
        return f"the SDK cannot parse a file of it, or the output of its credential_process ({describe(error)})"
    return describe(error)


def _without_traceback(record: logging.LogRecord) -> bool:
    """A log filter. Shortens the SDK's message about a failed renewal to one line, and suppresses it if the SDK also raises the error."""
    if "mandatory refresh" in record.getMessage():
        return False
    if record.exc_info and isinstance(error := record.exc_info[1], Exception):
        record.msg, record.args, record.exc_info = f"{record.getMessage()} {describe(error)}", (), None
    return True
