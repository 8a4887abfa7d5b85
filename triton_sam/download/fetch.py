"""Download one large file, and check its published hash.

A download is retried, resumed and verified. The file ``NAME`` appears only when it is complete. Until then, its folder
contains ``NAME.part`` with the received data, ``NAME.part.etag`` with the server's tag for this version of the file,
and ``NAME.lock``, which makes a second download of the same file wait. Beside a file without a published hash,
``NAME.source`` has the hash of its URL, so that another file of the same name is not taken for it, and the file's size
and time, so that a file put there by hand counts.
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
from typing import Any

import urllib3
from tqdm import tqdm
from urllib3.exceptions import HTTPError

from .._common.backoff import spread
from .._common.extras import missing
from .._common.files import hash_file, locked, move_into_place
from ..errors import ChecksumError, DownloadError
from .http import NetworkError, NotFoundError, TransientError, bad_status, classify, make_pool, split_credentials

_LABELS = {"sha256": "SHA-256", "md5": "MD5", "xxh128": "XXH128"}
_CHUNK = 1 << 18
_MAX_WAIT = 60.0
"""The longest pause before a retry, in seconds, for Retry-After and for the exponential backoff."""


@dataclass(frozen=True)
class _Job:
    """One file to download, with its options.

    Args:
        source: the hash of the URL of a file without a published hash; "" for other files.
    """

    path: Path
    size: int | None
    digest: str
    progress: bool
    retries: int
    timeout: float
    source: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""

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
        """The number of bytes received so far."""
        return self.part.stat().st_size if self.part.exists() else 0

    def start_over(self) -> None:
        """Discard the received data."""
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
    digest: str,
    progress: bool = True,
    retries: int = 5,
    timeout: float = 30.0,
    headers: Mapping[str, str] | None = None,
    installed: Path | None = None,
    advice: str = "on a closed network, set HTTPS_PROXY",
) -> Path:
    """Download a file, unless the correct file already exists.

    An interrupted download resumes where it stopped, in this call or a later one; Ctrl-C keeps the received data. An
    existing file with other content is replaced when the new one is complete. Proxies come from HTTP_PROXY,
    HTTPS_PROXY, ALL_PROXY and NO_PROXY, trusted certificates from the system or from SSL_CERT_FILE.

    Args:
        urls: http or https URLs of the file. If a server does not have it (404, 410), the next URL is tried.
        digest: hash of the file as ALGORITHM:HEXADECIMAL, with sha256, md5 or xxh128. If it is empty, an existing file
            is accepted unless it was downloaded from another URL, and a failed download leaves nothing that a later
            call could resume.
        retries: number of attempts in a row that may fail without receiving new data. The pauses between attempts grow.
        headers: sent with every request, but redirects to another host do not get the Authorization header.

    Returns:
        ``path``, or ``installed`` if the correct file is there.
    """
    _new_hash(digest)  # before the download
    source = "" if digest else hashlib.sha256(urls[0].encode()).hexdigest()
    job = _Job(path, size, digest, progress, retries, timeout, source, dict(headers or {}), advice)
    try:
        for place in filter(None, (path, installed)):
            if _is_right(replace(job, path=place)):
                return place
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(job.lock, lambda: job.say(f"another process is downloading {path.name}: waiting for it")):
            if not _is_right(job, report=True):  # another process may have downloaded it in the meantime
                _fetch_any(job, urls)
    except OSError as error:
        raise DownloadError(_explain_disk_error(error, job)) from error
    return path


def remove(path: Path) -> None:
    path.unlink()
    _source_file(path).unlink(missing_ok=True)


def _source_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.source")


def _version(path: Path) -> str:
    """Return the size and the time of a file, which differ once another file is put in its place."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _is_right(job: _Job, *, report: bool = False) -> bool:
    """Return whether the file exists and has the right size and hash; without a hash, whether it may be the file."""
    if job.path.is_dir():
        raise DownloadError(f"{job.path} is a directory: remove it, or choose another --directory")
    if not job.path.exists():
        return False
    found = job.path.stat().st_size
    right = job.size in (None, found) and digest_of(job.path, job.digest) == job.digest
    if job.source and (source := _source_file(job.path)).exists():
        url, _, downloaded = source.read_text(encoding="utf-8", errors="replace").partition(" ")
        right = right and (url == job.source or downloaded != _version(job.path))
    if right:
        checked = "its hash is correct" if job.digest else "no hash is known to check it by"
        job.say(f"{job.path} exists already, and {checked}")
    elif report:
        job.say(f"{job.path} ({found} bytes) is not the expected file: a complete download will replace it")
    return right


def _fetch_any(job: _Job, urls: Sequence[str]) -> None:
    """Download from the first URL whose server has the file."""
    missing: list[str] = []
    try:
        for given in urls:
            url, credentials = split_credentials(given)
            try:
                return _fetch_one(replace(job, headers={**job.headers, **credentials}), url)
            except NotFoundError as error:
                missing.append(str(error))
    finally:
        if not job.digest:  # a later call could not tell whether the rest belongs to the same file
            job.start_over()
    raise NetworkError("; ".join(missing))


def _fetch_one(job: _Job, url: str) -> None:
    """Download and verify; if a resumed download has the wrong hash, start over once."""
    if not job.digest:
        job.start_over()
    resumed = job.arrived > 0
    _transfer(job, url)
    digest = digest_of(job.part, job.digest)
    if digest != job.digest and resumed:
        job.say(f"{job.part.name} was damaged: starting over")
        job.start_over()
        _transfer(job, url)
        digest = digest_of(job.part, job.digest)
    if digest != job.digest:
        job.start_over()
        algorithm, _, wanted = job.digest.partition(":")
        raise ChecksumError(
            f"{url} is not the expected file: its {_LABELS[algorithm]} is {digest.partition(':')[2]}, not {wanted}. "
            "The download was removed. "
            "A proxy or mirror may have sent another file: try again, or check the URL"
        )
    _source_file(job.path).unlink(missing_ok=True)
    move_into_place(job.part, job.path)
    job.tag.unlink(missing_ok=True)
    if job.source:
        _source_file(job.path).write_text(f"{job.source} {_version(job.path)}", encoding="utf-8")


def _transfer(job: _Job, url: str) -> None:
    """Complete the part file, in as many attempts as ``retries`` allows."""
    pool = make_pool(url, job.timeout)
    most_arrived, failures = job.arrived, 0
    try:
        with _progress_bar(job) as bar:
            while True:
                try:
                    return _attempt(job, url, pool, bar)
                except TransientError as error:
                    arrived = job.arrived
                    failures = 1 if arrived > most_arrived else failures + 1
                    most_arrived = max(most_arrived, arrived)
                    if failures > min(job.retries, job.retries if error.retries is None else error.retries):
                        kept = f"; {arrived} bytes are kept, and the same command continues from there"
                        hint = kept if arrived and job.digest else f"; {job.advice}"
                        raise NetworkError(f"cannot download {url}: {error}{hint}") from error
                    _pause(job, failures, error)
    finally:
        pool.clear()


def _pause(job: _Job, failures: int, error: TransientError) -> None:
    """Wait before the next attempt: for the server's Retry-After, or with a randomised exponential backoff."""
    backoff = spread(min(_MAX_WAIT, 2.0 ** (failures - 1)))
    wait = backoff if error.wait is None else min(error.wait, _MAX_WAIT)
    job.say(f"{error}: retry {failures} of {job.retries} in {wait:.1f} s")
    sleep(wait)


def _attempt(job: _Job, url: str, pool: urllib3.PoolManager, bar: tqdm[None]) -> None:
    """Send one request for the missing data and append it to the part file."""
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
        start = _check_response(job, url, response, start)
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
    """Handle status 416, "Range Not Satisfiable": return if the part file is complete, else discard it and raise."""
    if response.headers.get("Content-Range") != f"bytes */{job.arrived}":
        job.start_over()
        raise TransientError("the server refused to resume the download (416)", wait=0)


def _check_response(job: _Job, url: str, response: urllib3.BaseHTTPResponse, start: int) -> int:
    """Check the status and the stated size; return the file position at which the body begins."""
    if response.status not in (200, 206):
        raise bad_status(url, response)
    total = None
    if response.status == 206:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != start:
            job.start_over()
            raise TransientError("the server sent a range that was not requested", wait=0)
        total = None if match[2] == "*" else int(match[2])
    else:
        start = 0  # the server does not support ranges, or the file has changed
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
    if None not in (total, job.size) and total != job.size:
        raise ChecksumError(f"{url} has {total} bytes instead of {job.size}: it is not the expected file")
    _check_space(job, total)
    if start == 0:
        job.start_over()
        tag = _version_tag(response)
        if tag:
            job.tag.write_text(tag, encoding="utf-8")
    return start


def _version_tag(response: urllib3.BaseHTTPResponse) -> str | None:
    """Return a value for If-Range: a strong ETag, or else the Last-Modified date."""
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _check_space(job: _Job, total: int | None) -> None:
    """Refuse a download that does not fit on the disk, before it starts."""
    wanted = total if total is not None else job.size
    if wanted is not None and shutil.disk_usage(job.path.parent).free < wanted - job.arrived:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(job.part))


def _append(job: _Job, response: urllib3.BaseHTTPResponse, start: int, bar: tqdm[None]) -> None:
    """Append the response body to the part file, which has ``start`` bytes."""
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
        raise TransientError(f"the connection ended after {arrived} of {job.size} bytes")
    if job.size is not None and arrived > job.size:
        job.start_over()
        raise ChecksumError(f"the server sent more than {job.size} bytes: it is not the expected file")


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
        mininterval=0.1 if sys.stderr.isatty() else 10.0,  # in a log file, every refresh is a new line
    )


def digest_of(path: Path, like: str) -> str:
    """Return the hash of a file in the form and algorithm of ``like``; an empty string if ``like`` is empty."""
    digest = _new_hash(like)
    return "" if digest is None else f"{like.partition(':')[0]}:{hash_file(path, digest)}"


def _new_hash(digest: str) -> Any:
    """Return a hash object for a digest's algorithm; None for an empty digest."""
    algorithm = digest.partition(":")[0]
    if algorithm != "xxh128":
        return hashlib.new(algorithm, usedforsecurity=False) if algorithm else None
    try:
        import xxhash
    except ImportError as error:
        raise missing("checking this file needs", "local", error) from error
    return xxhash.xxh128()


def _explain_disk_error(error: OSError, job: _Job) -> str:
    """Return a message with a remedy for an error of the file system."""
    directory = job.path.parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        size = f" (the file needs {job.size} bytes)" if job.size is not None else ""
        place = f"no space left in {directory} for {job.path.name}{size}"
        return f"{place}: free some, then run the same command{', which continues from there' if job.digest else ''}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission to write to {directory}: change its permissions, or choose another --directory"
    return f"cannot write to {directory}: {error.strerror or error}"
