"""The files of a video model besides its weights: config.pbtxt, written from the wire contract, and model.py."""

from __future__ import annotations

from ...families.base import Family
from ...repository.config import QUEUE, tensor_list
from ...wire import video
from ..config_text import checked, explained, parameter_lines, program

MODEL_TEXT = program(
    "video", "Objects are followed through videos, which are kept on the server; see docs/reference/video.md."
)
"""The text of model.py in the folder of every video model."""


def video_config(family: Family, variant: str | None = None) -> str:
    """Return the config.pbtxt of a video model.

    Args:
        family: the SAM family; Family.at() gives it another image size.
        variant: name of the models that it uses, for example "sam2.1_large"; None for the default ones.
    """
    subject = f"{family.name.upper()} for videos, with frames and memory on the server: a prompt, then frame by frame."
    return checked(
        [
            f"# {subject} See docs/reference/video.md.",
            f'name: "{video.video_model(family, variant)}"',
            'backend: "python"',
            "# One request is one operation on one session; all objects of a session are one batch inside the model.",
            "max_batch_size: 0",
            *QUEUE,
            f"input {tensor_list([explained(tensor) for tensor in video.inputs()])}",
            f"output {tensor_list([explained(tensor) for tensor in video.outputs(family)])}",
            "# One instance keeps all sessions; it works on many requests at a time.",
            "instance_group [{ count: 1, kind: KIND_AUTO }]",
            *parameter_lines(video.parameters(family, variant)),
        ]
    )
