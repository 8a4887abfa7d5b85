"""SAM2 with the images kept on the server; see docs/reference/session-models.md."""

try:
    from triton_sam.sessions.image.triton_model import TritonPythonModel
except ImportError as error:
    raise ImportError(
        "this model needs the triton_sam package in Triton's Python: use the image of scripts/build_image.sh, "
        f"or install the package there ({error})"
    ) from error

__all__ = ["TritonPythonModel"]
