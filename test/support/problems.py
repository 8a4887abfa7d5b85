"""Error answers of the service."""


def problem(answer, status):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    members = answer.json()
    assert members["status"] == status
    assert members["title"]
    assert members["detail"]
    assert "Traceback" not in members["detail"]
    assert members["request_id"] == answer.headers["x-request-id"]
    return members
