"""The first place of the sync client. The same class is `triton_sam.SAM2TritonClient`."""

from triton_sam import SAM2TritonClient

__all__ = ["SAM2TritonClient"]
