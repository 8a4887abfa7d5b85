"""The first place of the async client. The same names are in `triton_sam`."""

from triton_sam import SpeculativeSAM2Client, queue_multiple_requests, wait_for_latest_result

__all__ = ["SpeculativeSAM2Client", "queue_multiple_requests", "wait_for_latest_result"]
