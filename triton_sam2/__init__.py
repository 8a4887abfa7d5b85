"""The first name of the package `triton_sam`: programs that import `triton_sam2` keep working.

Every public name of `triton_sam` is here too, and is the same object. New programs import `triton_sam`.

>>> from triton_sam2 import SAM2TritonClient, SpeculativeSAM2Client, queue_multiple_requests, wait_for_latest_result
"""

from triton_sam import *  # noqa: F403 - all public names, and no others
from triton_sam import __all__ as __all__
