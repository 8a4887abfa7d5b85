"""Files of arrays: NumPy reads them, and a failure leaves nothing open."""

import gc
import io
from pathlib import Path

import numpy as np
import pytest

from triton_sam._common.npz import write_npz

FULL = Path("/dev/full")


def test_numpy_reads_what_was_written():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b:c": np.array("text"), "empty": np.zeros((0, 2))}
    stream = io.BytesIO()
    write_npz(stream, arrays)
    stream.seek(0)
    with np.load(stream, allow_pickle=False) as archive:
        assert archive.files == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(archive[name], array)
            assert archive[name].dtype == array.dtype


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_full_disk_is_one_error_at_once(size):
    """An archive that is left open would fail once more when it is collected, which pytest reports as an error."""
    with pytest.raises(OSError, match="No space left"), FULL.open("wb", buffering=0) as stream:
        write_npz(stream, {"a": np.zeros(size)})
    gc.collect()


def test_objects_are_refused():
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_npz(io.BytesIO(), {"a": np.array([None])})
