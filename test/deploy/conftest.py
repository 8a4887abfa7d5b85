"""Fixtures of the tests of the deployment."""

import pytest


@pytest.fixture(scope="session")
def helm_program() -> str:
    """Return the path of helm; skip the tests that need it where it is missing."""
    from support import helm

    try:
        return helm.program("helm")
    except helm.MissingProgramError as reason:
        pytest.skip(str(reason))
