"""The options of a server that accepts no administrative requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from triton_sam.local_server.closed import closed_options, hide_key


def test_a_log_of_the_options_does_not_contain_the_key(tmp_path: Path) -> None:
    options = closed_options([], [], tmp_path)
    hidden = [hide_key(option) for option in options]
    changed = [option for option in hidden if option not in options]
    assert changed == [
        "--http-restricted-api=shared-memory,trace,logging:triton-sam=***",
        "--grpc-restricted-protocol=shared-memory,trace,logging:triton-sam=***",
    ]


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("--http-restricted-api=model-repository:key=a=b", "--http-restricted-api=model-repository:key=***"),
        ("model-repository,trace:key=secret", "model-repository,trace:key=***"),
        ("--trace-config=opentelemetry,url=http://host:4318/v1?a=b", None),
        ("--backend-config=python,shm-growth-byte-size=5", None),
        ("--model-repository=/a:b=c", None),
    ],
)
def test_keys_of_the_user_are_hidden_as_well(word: str, shown: str | None) -> None:
    assert hide_key(word) == (shown or word)
