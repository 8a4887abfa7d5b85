"""Compare served models with the official predictors: same weights, same image, same prompts."""

from ..export.reference import Answer, Prompt, Reference
from .compare import BARS, Bars, OnnxClient, Row, format_table, verify, verify_sam2

__all__ = [
    "BARS",
    "Answer",
    "Bars",
    "OnnxClient",
    "Prompt",
    "Reference",
    "Row",
    "format_table",
    "verify",
    "verify_sam2",
]
