"""Which packages count as installed."""

import sys

import pytest

from triton_sam._common.extras import find_package


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder in the path, as if a program started in it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_package_is_found_without_an_import(elsewhere):
    (elsewhere / "some_package").mkdir()
    (elsewhere / "some_package" / "__init__.py").write_text("raise RuntimeError")
    assert find_package("some_package").origin == str(elsewhere / "some_package" / "__init__.py")
    assert "some_package" not in sys.modules


def test_a_folder_of_the_name_is_no_package(elsewhere):
    (elsewhere / "some_folder").mkdir()
    assert find_package("some_folder") is None
    assert find_package("some_folder.part") is None


def test_a_missing_package_and_a_part_of_it():
    assert find_package("no_such_package") is None
    assert find_package("no_such_package.part") is None
