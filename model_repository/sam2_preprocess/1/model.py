"""Images into the input of the SAM2 encoder; see docs/reference/session-models.md."""

try:
    from triton_sam.sessions.image.preprocess_model import TritonPythonModel
except ImportError as error:
    raise ImportError(f"this model needs the triton_sam package: pip install triton-sam ({error})") from error

__all__ = ["TritonPythonModel"]
