"""Compare served models with the official predictors: same weights, same image, same prompts.

`compare` is for images, `video` for videos, `everything` for mask generators, `concepts` for words, `video_words` for
words in videos, and `accelerated` compares OpenVINO with FP32.
"""

from ..export.reference import Answer, Prompt, Reference
from .compare import THRESHOLDS, OnnxClient, Row, Thresholds, verify, verify_sam2
from .report import format_table

# The names in version 0.1.
BARS = THRESHOLDS
Bars = Thresholds

__all__ = [
    "BARS",
    "THRESHOLDS",
    "Answer",
    "Bars",
    "OnnxClient",
    "Prompt",
    "Reference",
    "Row",
    "Thresholds",
    "format_table",
    "verify",
    "verify_sam2",
]
