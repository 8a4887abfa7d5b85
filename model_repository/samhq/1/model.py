"""SAM-HQ with the images kept on the server; see docs/reference/session-models.md."""

try:
    from triton_sam.sessions.image.triton_model import TritonPythonModel
except ImportError as error:
    raise ImportError(f"this model needs the triton_sam package: pip install triton-sam ({error})") from error

__all__ = ["TritonPythonModel"]
