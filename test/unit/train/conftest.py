"""Fixtures for the tests of the training."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def trainer_module():
    """The module triton_sam.train.trainer, with torch on one thread; the test is skipped without sam2."""
    pytest.importorskip("sam2")
    import torch

    from triton_sam.train import trainer

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with tiny tensors, threads only wait for each other
    yield trainer
    torch.set_num_threads(threads)
