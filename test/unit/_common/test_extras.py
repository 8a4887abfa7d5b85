"""Which packages count as installed."""

import sys

from triton_sam._common.extras import find_package


def test_packages_are_found_without_an_import_and_folders_are_none(tmp_path, monkeypatch):
    """Programs often start in a folder beside others, which is in their path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "some_package" / "__init__.py"
    package.parent.mkdir()
    package.write_text("raise RuntimeError")
    (tmp_path / "some_folder").mkdir()
    assert find_package("some_package").origin == str(package)
    assert "some_package" not in sys.modules
    for name in ("some_folder", "some_folder.part", "no_such_package", "no_such_package.part"):
        assert find_package(name) is None, name
