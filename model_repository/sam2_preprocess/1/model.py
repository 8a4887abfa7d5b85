"""Images into the input of the SAM2 encoder; see docs/reference/session-models.md."""

try:
    from triton_sam.sessions.image.preprocess_model import TritonPythonModel
except ImportError as error:
    raise ImportError(
        "this model needs the triton_sam package in Triton's Python: use the image of scripts/build_image.sh, "
        f"or install the package there ({error})"
    ) from error

__all__ = ["TritonPythonModel"]
