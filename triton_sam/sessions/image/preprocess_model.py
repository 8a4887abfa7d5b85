"""The model that turns images into the encoder's input, the first step of the ``*_encoder_jpeg`` ensembles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..._common.text import one_line
from ...errors import ImageError
from ...families import get_family
from ...inputs.formats import FORMATS
from ...inputs.images import encoder_input, open_image
from ...wire import contract


class TritonPythonModel:
    """``encoded_image`` BYTES [1] -> the encoder's input and ``image_size`` INT32 [2], width and height."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameter ``family``, and the side of the encoder's input."""
        config = json.loads(args["model_config"])
        official = get_family(config["parameters"]["family"]["string_value"].lower())
        (pixels,) = official.encoder.input_names
        (side,) = (int(tensor["dims"][-1]) for tensor in config["output"] if tensor["name"] == pixels)
        self._family = official.at(side)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request separately."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            content = bytes(pb_utils.get_input_tensor_by_name(request, contract.ENCODED_IMAGE).as_numpy()[0])
            image = open_image(content, FORMATS)
            (spec,) = self._family.encoder.inputs
            pixels = pb_utils.Tensor(spec.name, encoder_input(image, self._family))
            size = pb_utils.Tensor(contract.IMAGE_SIZE, np.array(image.size, np.int32))
            return pb_utils.InferenceResponse([pixels, size])
        except Exception as error:  # noqa: BLE001 - damaged images make Pillow raise errors of any type
            bad_input = isinstance(error, ImageError)
            code = pb_utils.TritonError.INVALID_ARG if bad_input else pb_utils.TritonError.INTERNAL
            message = f"{contract.code_of(error)}: {one_line(error)}"
            return pb_utils.InferenceResponse([], error=pb_utils.TritonError(message, code))
