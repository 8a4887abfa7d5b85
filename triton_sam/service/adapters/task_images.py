"""Fetches task images from the configured Label Studio, and from the storages that it redirects to."""

from __future__ import annotations

import asyncio
import base64
import time
from urllib.parse import quote, urljoin, urlsplit

import urllib3

from ..._common.lru import ByteLru
from ..budgets import MAX_FETCHES
from ..problems import Problem
from ..public import HEADERS, SECONDS, FetchError, FetchPool, fetch
from ..settings import MEBI
from ..store import StoredImage
from .bridge import Bridge

KEEP_SECONDS = 300.0
"""A fetched image is reused for further clicks for this long."""
MAX_KEPT = 1024
CLOUD = ("s3://", "gs://", "azure-blob://")
"""URL prefixes of storages that Label Studio signs."""
START = "start the service with --label-studio-url and the address of Label Studio"


class TaskImages:
    """The images of tasks.

    Args:
        url: URL of Label Studio; None: only images within the tasks can be used.
        token: access token of Label Studio, personal (a JWT) or legacy. None: no token.
    """

    def __init__(self, bridge: Bridge, url: str | None, token: str | None, private_storage: bool) -> None:
        self._bridge = bridge
        self._url = None if url is None else url.rstrip("/") + "/"
        self._token = token
        self._has_private_storage = private_storage
        self._places = asyncio.Semaphore(MAX_FETCHES)  # each file takes up to a request's maximum memory
        self._access = ("", 0.0)
        self._kept: ByteLru[str, tuple[str, float]] = ByteLru(MAX_KEPT)

    async def image(self, address: str, task: object) -> StoredImage:
        """Return the image of a task.

        Args:
            address: value of the task's data: a path of Label Studio, its whole URL, a storage's URL, or a data URL.
        """
        if address.startswith("data:"):
            return await self._bridge.image(address)
        known = self._kept.get(address)
        if known is not None and time.monotonic() < known[1]:
            found = self._bridge.engine.images.get(known[0])
            if found is not None:
                return found
        image = await self._bridge.engine.store(await self._content(self._located(address, task)))
        self._kept.put(address, (image.image_id, time.monotonic() + KEEP_SECONDS))
        return image

    async def _content(self, url: str) -> bytes:
        limit = self._bridge.engine.settings.max_body
        async with self._places:
            with FetchPool(public=False) as own, FetchPool(public=not self._has_private_storage) as storages:
                try:
                    return await fetch(url, limit, lambda each: self._get(own, storages, each))
                except FetchError as error:
                    raise self._problem(error) from None

    def _located(self, address: str, task: object) -> str:
        if self._url is None:
            raise Problem(
                422, f"the image of the task is stored in Label Studio: {START}, or put a data URL into the task"
            )
        if address.startswith(CLOUD):
            uri = quote(base64.b64encode(address.encode()).decode())
            return urljoin(self._url, f"tasks/{task}/resolve/?fileuri={uri}")
        found = urljoin(self._url, address)
        if _origin(found) != _origin(self._url):
            raise Problem(
                422, f"the image lies at {_origin(found)[:80]}, but the service fetches images only from Label Studio"
            )
        return found

    def _get(self, own: FetchPool, storages: FetchPool, url: str) -> urllib3.BaseHTTPResponse:
        if urlsplit(url).scheme not in ("http", "https"):
            raise FetchError("redirects", url)
        pool = own if self._is_label_studio(url) else storages
        return pool.request("GET", url, headers=self._headers(url), redirect=False, preload_content=False)

    def _problem(self, error: FetchError) -> Problem:
        if error.fault == "private":
            return Problem(
                502,
                f"Label Studio leads to a storage in a private network ({error}): if it is yours, start the service "
                "with label_studio_private_storage in --limits",
            )
        if error.fault == "large":
            limit = self._bridge.engine.settings.max_body / MEBI
            return Problem(413, f"the image of the task is larger than {limit:g} MiB (max_body in --limits)")
        if error.fault == "slow":
            return Problem(504, f"{_origin(error.url)} did not send the image within {SECONDS:g} s")
        if error.fault == "redirects":
            return Problem(502, "Label Studio has too many redirects for the image of the task")
        if error.fault == "silent":
            if self._is_label_studio(error.url):
                text, remedy = "Label Studio does not answer at {}", "and the address in --label-studio-url"
            else:
                text = "the storage that Label Studio leads to, {}, does not answer"
                remedy = "and that this machine can reach it"
            return Problem(502, f"{text.format(_origin(error.url))}: check that it runs, {remedy}")
        if error.status in (401, 403):
            text = "Label Studio refuses the image: set LABEL_STUDIO_API_KEY to an access token of a member"
            return Problem(502, text)
        return Problem(502, f"Label Studio answers {error.status} to the request for the image")

    def _is_label_studio(self, url: str) -> bool:
        return self._url is not None and _origin(url) == _origin(self._url)

    def _headers(self, url: str) -> dict[str, str]:
        """Return the headers of a request. Only Label Studio gets the token, not a storage that it redirects to."""
        if self._token is None or not self._is_label_studio(url):
            return HEADERS
        is_jwt = self._token.count(".") == 2
        token = f"Bearer {self._refreshed()}" if is_jwt else f"Token {self._token}"
        return {**HEADERS, "Authorization": token}

    def _refreshed(self) -> str:
        """Return an access token, which Label Studio issues for a personal token and which lasts five minutes."""
        token, until = self._access
        if time.monotonic() < until:
            return token
        try:
            address = f"{self._url}api/token/refresh"
            # A pool of its own: Label Studio closes the connection only some time after its answer.
            with FetchPool(public=False) as pool:
                answer = pool.request("POST", address, headers=HEADERS, json={"refresh": self._token})
                token = str(answer.json()["access"]) if answer.status == 200 else ""
        except (ValueError, KeyError, TypeError):
            token = ""
        if not token:
            raise Problem(502, "Label Studio refuses the token in LABEL_STUDIO_API_KEY")
        self._access = (token, time.monotonic() + 240)
        return token


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
