"""A Ray cluster's job server: asked first whether it is there, knows our token and has our Ray; then given jobs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rig.cluster_env import QUIET, authentication, setting, token
from rig.errors import UsageError
from rig.jobs import Job, Unreachable

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_PROBE_S = 5.0
_ANSWER_S = 60.0  # the client itself would wait for ever


@contextlib.contextmanager
def job_server(address: str | None) -> Iterator[JobServer]:
    """The job server at `address`, or else at RAY_API_SERVER_ADDRESS, a RAY_ADDRESS that is a URL, or this machine's.

    `UsageError` in seconds if nothing answers there, it is no job server, it refuses our token, or its Ray is not ours.
    """
    url = _url(address)
    told = {"RAY_API_SERVER_ADDRESS": url}  # Ray's client prefers it to what it is given
    with setting(QUIET | authentication() | told):  # before ray is imported: it reads them once
        probe(url)
        yield JobServer(url)


class JobServer:
    """Submits, shows and stops jobs. Every method raises `Unreachable` if the server gives no answer, or an error."""

    def __init__(self, url: str) -> None:
        self.url = url
        with _answering():
            self._client = _client(url)

    def submit(
        self,
        job_id: str,
        *,
        entrypoint: str,
        archive: Path,
        metadata: Mapping[str, str],
        node: str | None = None,
    ) -> None:
        """Start a job whose working folder is the zip `archive`, on the head, or on the `node` of that id."""
        with _answering():
            self._client.submit_job(
                submission_id=job_id,
                entrypoint=entrypoint,
                runtime_env={"working_dir": str(archive)},
                metadata=dict(metadata),
                entrypoint_label_selector={"ray.io/node-id": node} if node else None,
            )

    def info(self, job_id: str) -> Job:
        """What there is to say of a job now."""
        with _answering():
            told = self._client.get_job_info(job_id)
        return Job(
            status=str(getattr(told.status, "value", told.status)),
            message=told.message or "",
            exit_code=told.driver_exit_code,
            node=told.driver_node_id,
        )

    def log(self, job_id: str) -> str:
        """All that a job's command has printed."""
        with _answering():
            return str(self._client.get_job_logs(job_id))

    def stop(self, job_id: str) -> None:
        """Ask a job to end; one that is over is left alone."""
        with _answering():
            self._client.stop_job(job_id)


def probe(url: str) -> None:
    """Ask the job server at `url` whether it is there, knows our token and has our Ray, in seconds."""
    sent = token() if os.environ.get("RAY_AUTH_MODE") == "token" else ""
    request = urllib.request.Request(f"{url}/api/version")
    if sent:
        request.add_header("Authorization", f"Bearer {sent}")
    try:
        with urllib.request.urlopen(request, timeout=_PROBE_S) as answer:
            theirs = str(json.loads(answer.read(1 << 16))["ray_version"])
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            raise UsageError(_no_job_server(url, f"HTTP {error.code}")) from None
        had = "refuses the token that was found" if sent else "wants a token, and none was found"
        raise UsageError(
            f"{url}: the cluster {had}; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to its token"
        ) from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise UsageError(
            f"{url}: no Ray job server answers there ({getattr(reason, 'strerror', None) or reason}); give --address "
            "http://HOST:8265 of the head's dashboard, which listens on --dashboard-host only"
        ) from None
    except Exception as error:  # not HTTP, not JSON, another JSON
        raise UsageError(_no_job_server(url, type(error).__name__)) from None
    ours = version("ray")
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        raise UsageError(f"{url}: the cluster runs Ray {theirs} and this is Ray {ours}; make them the same")


def _no_job_server(url: str, found: str) -> str:
    return f"{url}: something answers there that is no Ray job server ({found}); its port is 8265 by default"


def _url(address: str | None) -> str:
    named = os.environ.get("RAY_ADDRESS", "")
    address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or (named if named.startswith("http") else "")
    url = (address or DEFAULT_ADDRESS).rstrip("/")
    url = url if "://" in url else f"http://{url}"
    parts = urlsplit(url)
    try:
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right or parts.query or parts.fragment or any(char.isspace() for char in url):
        raise UsageError(f"{address}: expected the address of a Ray job server, as in http://10.0.0.1:8265")
    return url


def _client(url: str) -> JobSubmissionClient:
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray.dashboard.modules.dashboard_sdk").setLevel(logging.ERROR)  # it would tell of every upload

    class Client(JobSubmissionClient):
        """Ray's, with a time limit on every request."""

        def _do_request(self, *arguments: Any, **more: Any) -> Any:
            return super()._do_request(*arguments, **({"timeout": _ANSWER_S} | more))

    return Client(url)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Whatever keeps Ray's client from an answer is `Unreachable`, in one line."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, LookupError) as error:  # requests' own errors are OSError
        text = str(error).strip()
        last = text.splitlines()[-1] if text else type(error).__name__
        raise Unreachable(last[:300]) from error
    except Exception as error:
        if type(error).__module__.startswith("ray."):  # such as its AuthenticationError
            raise Unreachable(" ".join(str(error).split())[:300]) from error
        raise
