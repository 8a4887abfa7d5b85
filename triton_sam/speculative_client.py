"""The original import path of the async client. The same names are in `triton_sam` and `triton_sam.client`."""

from .client.paths import queue_multiple_requests, wait_for_latest_result
from .client.speculative import SpeculativeSAM2Client

__all__ = ["SpeculativeSAM2Client", "queue_multiple_requests", "wait_for_latest_result"]
