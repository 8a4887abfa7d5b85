"""Objects are followed through videos, which are kept on the server; see docs/reference/video.md."""

try:
    from triton_sam.sessions.video.triton_model import TritonPythonModel
except ImportError as error:
    raise ImportError(f"this model needs the triton_sam package: pip install triton-sam ({error})") from error

__all__ = ["TritonPythonModel"]
