"""Download one large file whose SHA-256 is known: resumed, retried, verified, whole or not at all under its name.

Beside the file ``NAME`` stand, while it is on its way, ``NAME.part`` with what has arrived, ``NAME.part.etag`` with the
server's mark of that version of the file, and ``NAME.lock``, which keeps a second download of the same file waiting.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import sleep

import urllib3
from tqdm import tqdm
from urllib3.exceptions import HTTPError

from .._common.backoff import spread
from .._common.files import locked, move_into_place
from ..errors import ChecksumError, DownloadError
from .http import NotFoundError, PassingError, bad_status, classify, make_pool

_CHUNK = 1 << 18
_LONGEST_WAIT = 60.0
"""Seconds that a server may make us wait with Retry-After, and the end of the exponential back-off."""


@dataclass(frozen=True)
class _Job:
    """One file to fetch, and where its pieces are."""

    path: Path
    size: int | None
    sha256: str
    progress: bool
    retries: int
    timeout: float
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def part(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def tag(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part.etag")

    @property
    def lock(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")

    @property
    def arrived(self) -> int:
        """Bytes that are there already."""
        return self.part.stat().st_size if self.part.exists() else 0

    def start_over(self) -> None:
        """Forget what has arrived."""
        self.part.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)

    def say(self, text: str) -> None:
        if self.progress:
            tqdm.write(text, file=sys.stderr)  # above the progress bar


def fetch(
    urls: Sequence[str],
    path: Path,
    *,
    size: int | None,
    sha256: str,
    progress: bool = True,
    retries: int = 5,
    timeout: float = 30.0,
    headers: Mapping[str, str] | None = None,
    installed: Path | None = None,
) -> Path:
    """Download a file, or do nothing when the right one is there already.

    A broken download goes on where it stopped, in this call or in a later one; Ctrl-C keeps what has arrived. A file
    with the right name and the wrong content is replaced when the new one is complete. Proxies are taken from
    HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, trusted certificates from the system or from SSL_CERT_FILE.

    Args:
        urls: http or https; the next one is tried when a server has no such file (404, 410).
        path: file to write; its directory is made when missing.
        size: bytes; None when unknown.
        sha256: hexadecimal digest of the whole file.
        progress: show a progress bar and what happens, on stderr.
        retries: how many tries in a row may fail without a new byte, with growing pauses in between.
        timeout: seconds to wait for a connection, and for each piece of data.
        headers: sent with every request; an Authorization goes to the host of the URL alone, not along redirects.
        installed: another place where the right file may be already; it is left as it is.

    Returns:
        ``path``, or ``installed`` where the right file is there.

    Raises:
        ConfigurationError: a URL or a proxy that is neither http nor https.
        DownloadError: the file cannot be had or not be written.
        ChecksumError: what came has another size or SHA-256; it is removed.
    """
    job = _Job(path, size, sha256, progress, retries, timeout, dict(headers or {}))
    try:
        for place in filter(None, (path, installed)):
            if _is_right(replace(job, path=place)):
                return place
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(job.lock, lambda: job.say(f"another process downloads {path.name}: waiting for it")):
            if not _is_right(job, report=True):  # another process may have brought it meanwhile
                _fetch_any(job, urls)
    except OSError as error:
        raise DownloadError(_explain(error, job)) from error
    return path


def _is_right(job: _Job, *, report: bool = False) -> bool:
    """Whether the file is there and is the one that is wanted."""
    if job.path.is_dir():
        raise DownloadError(f"{job.path} is a directory: the file cannot be put there")
    if not job.path.exists():
        return False
    found = job.path.stat().st_size
    right = job.size in (None, found) and _sha256(job.path) == job.sha256
    if right:
        job.say(f"{job.path} is there already, SHA-256 checked")
    elif report:
        job.say(f"{job.path} is not the official file ({found} bytes); it is replaced when the new one is complete")
    return right


def _fetch_any(job: _Job, urls: Sequence[str]) -> None:
    """Fetch from the first URL that has the file."""
    missing: list[str] = []
    for url in urls:
        try:
            _fetch_one(job, url)
        except NotFoundError as error:
            missing.append(str(error))
        else:
            return
    raise DownloadError("; ".join(missing))


def _fetch_one(job: _Job, url: str) -> None:
    """Transfer and verify; start over once when the sum of old and new pieces is wrong."""
    resumed = job.arrived > 0
    _transfer(job, url)
    digest = _sha256(job.part)
    if digest != job.sha256 and resumed:
        job.say(f"{job.part.name} was damaged: starting over")
        job.start_over()
        _transfer(job, url)
        digest = _sha256(job.part)
    if digest != job.sha256:
        job.start_over()
        raise ChecksumError(
            f"{url} is not the official file: SHA-256 {digest}, expected {job.sha256}; removed. "
            "A proxy or mirror may have sent something else: try again, or another --mirror"
        )
    move_into_place(job.part, job.path)
    job.tag.unlink(missing_ok=True)


def _transfer(job: _Job, url: str) -> None:
    """Bring the part file to its full size, with as many tries as it takes."""
    pool = make_pool(url, job.timeout)
    most, failures = job.arrived, 0
    try:
        with _progress_bar(job) as bar:
            while True:
                try:
                    return _try(job, url, pool, bar)
                except PassingError as error:
                    arrived = job.arrived
                    failures = 1 if arrived > most else failures + 1
                    most = max(most, arrived)
                    if failures > job.retries:
                        kept = f"; {arrived} bytes are kept, the same command goes on from there"
                        hint = kept if arrived else "; on a closed network set HTTPS_PROXY or use --mirror"
                        raise DownloadError(f"cannot download {url}: {error}{hint}") from error
                    _pause(job, failures, error)
    finally:
        pool.clear()


def _pause(job: _Job, failures: int, error: PassingError) -> None:
    """Wait before the next try: as long as the server asks, else twice as long each time, spread by chance."""
    backoff = spread(min(_LONGEST_WAIT, 2.0 ** (failures - 1)))
    wait = backoff if error.wait is None else min(error.wait, _LONGEST_WAIT)
    job.say(f"{error}: try {failures} of {job.retries} in {wait:.1f} s")
    sleep(wait)


def _try(job: _Job, url: str, pool: urllib3.PoolManager, bar: tqdm[None]) -> None:
    """Ask once for what is missing and append it to the part file."""
    if job.size is not None and job.arrived > job.size:
        job.start_over()
    start = job.arrived
    if start == job.size:
        return
    try:
        response = pool.request("GET", url, headers=_headers(job, start), preload_content=False)
    except HTTPError as error:
        raise classify(error, url) from error
    try:
        if response.status == 416 and start:
            _refuse_range(job, response)
            return
        start = _check_answer(job, url, response, start)
        _append(job, response, start, bar)
    except HTTPError as error:
        raise classify(error, url) from error
    finally:
        response.close()


def _headers(job: _Job, start: int) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "triton-sam", **job.headers}
    if start:
        headers["Range"] = f"bytes={start}-"
        if job.tag.exists():
            headers["If-Range"] = job.tag.read_text(encoding="utf-8")
    return headers


def _refuse_range(job: _Job, response: urllib3.BaseHTTPResponse) -> None:
    """Read 416: nothing comes after what has arrived. Good when that is the whole file, else start over."""
    if response.headers.get("Content-Range") != f"bytes */{job.arrived}":
        job.start_over()
        raise PassingError("the server refused to go on from there (416)", wait=0)


def _check_answer(job: _Job, url: str, response: urllib3.BaseHTTPResponse, start: int) -> int:
    """Check status and announced size; return the position at which the body begins."""
    if response.status not in (200, 206):
        raise bad_status(url, response)
    total = None
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != start:
            job.start_over()
            raise PassingError("the server sent another range than asked for", wait=0)
        total = None if match[2] == "*" else int(match[2])
    else:
        start = 0  # a server without ranges, or the file has changed since
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
    if None not in (total, job.size) and total != job.size:
        raise ChecksumError(f"{url} has {total} bytes, the official file {job.size}: this is something else")
    _check_space(job, total)
    if start == 0:
        job.start_over()
        tag = _version(response)
        if tag:
            job.tag.write_text(tag, encoding="utf-8")
    return start


def _version(response: urllib3.BaseHTTPResponse) -> str | None:
    """Return what If-Range may hold: a strong ETag, else the date of the last change."""
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _check_space(job: _Job, total: int | None) -> None:
    """Refuse a download that cannot fit before it has run for an hour."""
    wanted = total if total is not None else job.size
    if wanted is not None and shutil.disk_usage(job.path.parent).free < wanted - job.arrived:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(job.part))


def _append(job: _Job, response: urllib3.BaseHTTPResponse, start: int, bar: tqdm[None]) -> None:
    """Write the body behind the first ``start`` bytes."""
    bar.n = start
    bar.refresh()
    with job.part.open("ab") as stream:
        for chunk in response.stream(_CHUNK, decode_content=False):
            stream.write(chunk)
            bar.update(len(chunk))
            if job.size is not None and stream.tell() > job.size:
                break
    arrived = job.arrived
    if job.size is not None and arrived < job.size:
        raise PassingError(f"the connection ended after {arrived} of {job.size} bytes")
    if job.size is not None and arrived > job.size:
        job.start_over()
        raise ChecksumError(f"the server sent more than the official file's {job.size} bytes: this is something else")


def _progress_bar(job: _Job) -> tqdm[None]:
    return tqdm(
        total=job.size,
        initial=job.arrived,
        desc=job.path.name,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        file=sys.stderr,
        disable=not job.progress,
        mininterval=0.1 if sys.stderr.isatty() else 10.0,  # in a log file each refresh is a line
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _explain(error: OSError, job: _Job) -> str:
    """Say what a failure of the disk means."""
    directory = job.path.parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        size = f", the file needs {job.size} bytes" if job.size is not None else ""
        return f"no space left in {directory}{size}: free some and run the same command, it goes on where it stopped"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"may not write to {directory}: change its permissions or choose another --directory"
    return f"cannot write to {directory}: {error.strerror or error}"
