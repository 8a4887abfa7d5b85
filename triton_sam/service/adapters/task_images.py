"""Fetches the images of tasks from the Label Studio that the operator has named, and from storages that it leads to."""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

import urllib3

from ...transport.timed_sockets import CURRENT, Call
from ..budgets import MAX_FETCHES
from ..problems import Problem
from ..public import FetchPool, PrivateAddressError
from ..settings import MEBI
from ..store import StoredImage
from .bridge import Bridge

KEEP_SECONDS = 300.0
"""An image that was fetched so lately is not fetched again for the next click."""
MAX_KEPT = 1024
MAX_REDIRECTS = 4
SECONDS = 30.0
"""The time for one image, from the token to the last byte, with all redirects."""
PIECE = 1 << 16
HEADERS = {"Accept-Encoding": "identity", "Connection": "close"}
CLOUD = ("s3://", "gs://", "azure-blob://")
"""Addresses in storages that Label Studio signs."""
START = "start the service with --label-studio-url and the address of Label Studio"


@dataclass(frozen=True)
class _Pools:
    """The connections for one image: to Label Studio itself, and to storages. They end at a time of the clock."""

    own: FetchPool
    storages: FetchPool
    end: float


class TaskImages:
    """The images of tasks.

    Args:
        bridge: keeps the images.
        url: address of Label Studio; None: only images within the tasks can be used.
        token: access token of Label Studio: a personal one (a JWT) or a legacy one. None: no token.
        private_storage: whether Label Studio may lead to addresses of a private network.
    """

    def __init__(self, bridge: Bridge, url: str | None, token: str | None, private_storage: bool = False) -> None:
        self._bridge = bridge
        self._url = None if url is None else url.rstrip("/") + "/"
        self._token = token
        self._has_private_storage = private_storage
        self._places = asyncio.Semaphore(MAX_FETCHES)  # each file takes as much memory as a request may have
        self._access = ("", 0.0)
        self._kept: dict[str, tuple[str, float]] = {}

    async def image(self, address: str, task: object) -> StoredImage:
        """Return the image of a task.

        Args:
            address: value of the task's data: a path of Label Studio, its whole URL, a storage's URL, or a data URL.
            task: id of the task, for storages.

        Raises:
            Problem: 422, the address belongs to another host; 502, Label Studio does not answer with the image; 504,
                it takes too long.
        """
        if address.startswith("data:"):
            return await self._bridge.image(address)
        known = self._kept.get(address)
        if known is not None and time.monotonic() < known[1]:
            found = self._bridge.engine.images.get(known[0])
            if found is not None:
                return found
        image = await self._bridge.engine.store(await self._content(self._located(address, task)))
        while len(self._kept) >= MAX_KEPT:
            self._kept.pop(next(iter(self._kept)))
        self._kept[address] = (image.image_id, time.monotonic() + KEEP_SECONDS)
        return image

    async def _content(self, url: str) -> bytes:
        """Return the file at a URL of Label Studio."""
        async with self._places:
            end = time.monotonic() + SECONDS
            call = Call(end)
            try:
                return await asyncio.to_thread(self._fetch, url, call, end)
            finally:
                call.cancel()  # also when the caller has gone away

    def _located(self, address: str, task: object) -> str:
        """Return the URL at Label Studio."""
        if self._url is None:
            raise Problem(422, f"the image of the task lies at Label Studio: {START}, or put a data URL into the task")
        if address.startswith(CLOUD):
            uri = quote(base64.b64encode(address.encode()).decode())
            return urljoin(self._url, f"tasks/{task}/resolve/?fileuri={uri}")
        found = urljoin(self._url, address)
        if _origin(found) != _origin(self._url):
            raise Problem(
                422, f"the image lies at {_origin(found)[:80]}, but the service fetches images from Label Studio alone"
            )
        return found

    def _fetch(self, url: str, call: Call, end: float) -> bytes:
        CURRENT.call = call
        with FetchPool(public=False) as own, FetchPool(public=not self._has_private_storage) as storages:
            for _ in range(MAX_REDIRECTS):
                content, place = self._get(_Pools(own, storages, end), url)
                if not place:
                    return content
                url = urljoin(url, place)
                if urlsplit(url).scheme not in ("http", "https"):
                    break
        raise Problem(502, "Label Studio has too many redirects for the image of the task")

    def _get(self, pools: _Pools, url: str) -> tuple[bytes, str]:
        """Return the content at a URL, and the address that it leads to, "" if it leads nowhere."""
        pool = pools.own if self._is_label_studio(url) else pools.storages
        try:
            headers = self._headers(url, pools.own)
            answer = pool.request("GET", url, headers=headers, redirect=False, preload_content=False)
            try:
                if answer.status in (401, 403):
                    text = "Label Studio refuses the image: set LABEL_STUDIO_API_KEY to an access token of a member"
                    raise Problem(502, text)
                if answer.status >= 400:
                    raise Problem(502, f"Label Studio answers {answer.status} to the request for the image")
                place = answer.get_redirect_location() or ""
                return b"" if place else self._read(answer), place
            finally:
                answer.close()
        except PrivateAddressError as error:
            raise Problem(
                502,
                f"Label Studio leads to a storage in a private network ({error}): if it is yours, start the service "
                "with label_studio_private_storage in --limits",
            ) from None
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            if time.monotonic() >= pools.end:
                raise Problem(504, f"{_origin(url)} did not send the image within {SECONDS:g} s") from None
            raise self._silent(url) from None

    def _read(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        limit = self._bridge.engine.settings.max_body
        content = bytearray()
        for piece in answer.stream(PIECE, decode_content=False):
            content += piece
            if len(content) > limit:
                raise Problem(413, f"the image of the task is larger than {limit / MEBI:g} MiB (max_body in --limits)")
        return bytes(content)

    def _silent(self, url: str) -> Problem:
        """Return the problem of an address where nothing answers."""
        if self._is_label_studio(url):
            remedy = "check that it runs, and the address in --label-studio-url"
            return Problem(502, f"Label Studio does not answer at {_origin(url)}: {remedy}")
        remedy = "check that it runs, and that this machine can reach it"
        return Problem(502, f"the storage that Label Studio leads to, {_origin(url)}, does not answer: {remedy}")

    def _is_label_studio(self, url: str) -> bool:
        return self._url is not None and _origin(url) == _origin(self._url)

    def _headers(self, url: str, own: FetchPool) -> dict[str, str]:
        """Return the headers of a request. The token is for Label Studio alone, not for a storage that it leads to."""
        if self._token is None or not self._is_label_studio(url):
            return HEADERS
        token = f"Bearer {self._refreshed(own)}" if _is_jwt(self._token) else f"Token {self._token}"
        return {**HEADERS, "Authorization": token}

    def _refreshed(self, own: FetchPool) -> str:
        """Return an access token, which Label Studio gives for a personal token and which lasts five minutes."""
        token, until = self._access
        if time.monotonic() < until:
            return token
        try:
            address = f"{self._url}api/token/refresh"
            answer = own.request("POST", address, headers=HEADERS, json={"refresh": self._token})
            token = str(answer.json()["access"]) if answer.status == 200 else ""
        except (ValueError, KeyError, TypeError):
            token = ""
        if not token:
            raise Problem(502, "Label Studio gives no access for the token in LABEL_STUDIO_API_KEY")
        self._access = (token, time.monotonic() + 240)
        return token


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def _is_jwt(token: str) -> bool:
    return token.count(".") == 2
