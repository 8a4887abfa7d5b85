"""Quotas of tokens, and the lines of the log that name their holders."""

import contextlib
import json
import logging
import math

import pytest
from starlette.testclient import WebSocketDenialResponse
from support.running_service import problem, service_without_triton, upload_in_pieces

from triton_sam.errors import ConfigurationError
from triton_sam.service.budgets import TokenBucket
from triton_sam.service.logs import LOGGER, JsonFormatter, TextFormatter
from triton_sam.service.settings import Quota, ServiceSettings, Token, read_tokens
from triton_sam.service.tracing import read_trace

LAB, CLINIC = {"authorization": "Bearer lab-secret"}, {"authorization": "Bearer clinic-secret"}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def serve():
    """Start a service whose caller "lab" has a quota."""
    with contextlib.ExitStack() as held:

        def start(**quota):
            tokens = (Token("lab", "lab-secret", Quota(**quota)), Token("clinic", "clinic-secret"))
            return held.enter_context(service_without_triton(tokens=tokens))

        yield start


@pytest.fixture
def lines():
    """The lines of the log, as JSON and as text."""
    written = []

    class Keep(logging.Handler):
        def emit(self, record):
            written.append((json.loads(JsonFormatter().format(record)), TextFormatter().format(record)))

    handler, level = Keep(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield written
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


def over_quota(answer):
    members = problem(answer, 429)
    assert members["code"] == "quota"
    assert int(answer.headers["retry-after"]) >= 1
    return members["detail"]


def test_requests_in_a_minute(serve):
    http = serve(requests_per_minute=3)
    assert [http.get("/new_session_id", headers=LAB).status_code for _ in range(3)] == [200] * 3
    assert "'lab' is 3 requests a minute" in over_quota(http.get("/new_session_id", headers=LAB))
    assert http.get("/new_session_id", headers=CLINIC).status_code == 200
    assert http.get("/health", headers=LAB).status_code == 503  # there is no Triton; the quota does not count
    text = http.get("/metrics", headers=CLINIC).text
    assert 'triton_sam_service_over_quota_total{caller="lab",quota="requests_per_minute"} 1.0' in text
    assert 'triton_sam_service_requests_by_caller_total{caller="lab"} 4.0' in text
    assert "secret" not in text


def test_less_than_one_request_in_a_minute(serve):
    http = serve(requests_per_minute=0.5)
    assert http.get("/new_session_id", headers=LAB).status_code == 200
    refused = http.get("/new_session_id", headers=LAB)
    over_quota(refused)
    assert 60 < int(refused.headers["retry-after"]) <= 120


def test_an_upload_that_is_larger_than_the_whole_quota(serve):
    refused = serve(image_mib_per_hour=1).post("/v1/images", files={"image": bytes(1_100_000)}, headers=LAB)
    assert "larger than the whole quota of 'lab'" in problem(refused, 413)["detail"]
    assert "retry-after" not in refused.headers


def test_uploads_in_an_hour(serve):
    http = serve(image_mib_per_hour=1)
    for _ in range(2):
        assert http.post("/v1/images", files={"image": bytes(400_000)}, headers=LAB).status_code in (415, 503)
    assert "1 MiB of uploads an hour" in over_quota(
        http.post("/v1/images", files={"image": bytes(400_000)}, headers=LAB)
    )
    assert http.post("/v1/images", files={"image": bytes(400_000)}, headers=CLINIC).status_code in (415, 503)
    assert http.post("/cancel_pending", data={"session_id": "a"}, headers=LAB).status_code == 200


def test_uploads_without_a_length_count_too(serve):
    http = serve(image_mib_per_hour=1)
    assert upload_in_pieces(http, 3, 1 << 18, **LAB).status_code in (415, 503)
    over_quota(upload_in_pieces(http, 3, 1 << 18, **LAB))


def test_open_pages(serve, lines):
    http = serve(pages=1)
    for _ in range(2):
        with http.websocket_connect("ws://localhost/live", headers=LAB):
            with (
                pytest.raises(WebSocketDenialResponse) as refused,
                http.websocket_connect("ws://localhost/live", headers=LAB),
            ):
                pass
            assert refused.value.status_code == 429
            with http.websocket_connect("ws://localhost/live", headers=CLINIC):
                pass
    closed = [entry for entry, _ in lines if entry["message"] == "page closed"]
    assert [(entry["path"], entry["caller"]) for entry in closed] == [("/live", "clinic"), ("/live", "lab")] * 2
    assert all(entry["ms"] >= 0 for entry in closed)


def test_requests_at_a_time(serve):
    http = serve(requests_at_a_time=1)
    caller = http.app.state.engine.callers.find("lab-secret")
    with caller.request():
        assert "1 requests at a time" in over_quota(http.get("/new_session_id", headers=LAB))
    assert http.get("/new_session_id", headers=LAB).status_code == 200


def test_all_callers_together_where_there_is_no_token():
    with service_without_triton(quota=Quota(requests_per_minute=1)) as http:
        assert http.get("/new_session_id").status_code == 200
        assert "everybody" in over_quota(http.get("/new_session_id"))


def test_a_file_of_tokens(tmp_path):
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"lab": {"token": "a", "pages": 2, "requests_per_minute": None}, "b": {"token": "c\n"}}))
    lab, other = read_tokens(path, Quota(requests_per_minute=60, image_mib_per_hour=9))
    assert (lab.name, lab.secret, lab.quota) == ("lab", "a", Quota(image_mib_per_hour=9, pages=2))
    assert (other.secret, other.quota) == ("c", Quota(requests_per_minute=60, image_mib_per_hour=9))
    assert "'a'" not in repr(lab)
    names = [token.name for token in ServiceSettings(token="s", tokens=(lab, other)).all_tokens]
    assert names == ["default", "lab", "b"]


UNUSABLE = (
    ("{", "is not JSON: "),
    ("[" * 99_999, "is not JSON: "),
    ("[]", "JSON object"),
    ('{"lab": {}}', "'lab'"),
    ('{"lab": {"token": " "}}', "not empty"),
    ('{"default": {"token": "a"}}', "another name"),
    ('{"lab": {"token": "a", "speed": 1}}', "no quota 'speed'"),
    ('{"lab": {"token": "a", "pages": 0}}', "above 0"),
    ('{"lab": {"token": "a", "pages": "many"}}', "above 0"),
    ('{"lab": {"token": "a", "pages": 1%s}}' % ("0" * 400), "a finite number above 0"),
)
"""Contents of a file of tokens, and a part of the error."""


def test_files_that_cannot_be_used(tmp_path):
    path = tmp_path / "tokens.json"
    for text, word in UNUSABLE:
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=word) as caught:
            read_tokens(path)
        assert str(path) in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"^--tokens \S+none.json cannot be read: No such file or directory$"):
        read_tokens(tmp_path / "none.json")


def test_two_tokens_must_differ():
    with pytest.raises(ConfigurationError, match="equal"):
        ServiceSettings(token="a", tokens=(Token("lab", "a"),))


def test_a_bucket_fills_again():
    now = [0.0]
    bucket = TokenBucket(2.0, 10.0, clock=lambda: now[0])
    assert bucket.take(10) == 0
    assert bucket.take() == pytest.approx(0.5)
    now[0] = 0.5
    assert bucket.take() == 0
    now[0] = 100
    assert bucket.missing(11) == math.inf
    assert bucket.take(10) == 0


# --- the log ---------------------------------------------------------------------------------------------------------


def test_a_line_names_request_caller_and_trace_but_no_token(serve, lines):
    http = serve()
    headers = {**LAB, "x-request-id": "my-1", "traceparent": TRACE}
    answer = http.get("/new_session_id", headers=headers)
    assert answer.headers["traceparent"] == TRACE
    assert "traceparent" not in http.get("/new_session_id", headers={**LAB, "traceparent": "nonsense"}).headers
    entry, text = lines[0]
    assert (entry["request_id"], entry["caller"], entry["status"]) == ("my-1", "lab", 200)
    assert entry["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert entry["ms"] >= 0
    assert " INFO request request_id=my-1 method=GET path=/new_session_id status=200 ms=" in text
    assert "caller=lab trace_id=4bf9" in text
    assert "trace_id" not in lines[1][0]
    assert http.delete("/v1/images/" + "0" * 32, headers=LAB).status_code == 404
    told = "there is no image with this id"
    assert (lines[2][0]["detail"], lines[1][0].get("detail")) == (told, None)
    assert f"detail={told!r}".replace("'", '"') in lines[2][1]
    assert "secret" not in str(lines)


def test_a_caller_cannot_forge_a_line_of_text(serve, lines):
    serve().get("/nowhere%0A2026 INFO request status=200", headers=LAB)
    _, text = lines[0]
    assert len(text.splitlines()) == 1
    assert r'path="/nowhere\n2026 INFO request status=200"' in text


HEADERS = (
    (TRACE, True),
    (f"01{TRACE[2:]}-more", True),
    (None, False),
    ("", False),
    (f"{TRACE}-more", False),
    (f"ff{TRACE[2:]}", False),
    (TRACE.upper(), False),
    ("00-" + "0" * 32 + TRACE[35:], False),
    (TRACE[:36] + "0" * 16 + "-01", False),
    ("x" * 10_000, False),
)
"""Headers with a trace, and whether it is known."""


def test_which_traces_are_known():
    for header, is_known in HEADERS:
        assert read_trace(header) == (TRACE if is_known else None), header
