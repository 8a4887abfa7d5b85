"""The model that turns images into the encoder's input, the first step of the ``*_encoder_jpeg`` ensembles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ...families import get_family
from ...inputs.formats import FORMATS
from ...inputs.images import encoder_input, open_image
from ...wire import contract
from .. import bls
from ..messages import Reply


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
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        reply = Reply()
        try:
            content = bytes(pb_utils.get_input_tensor_by_name(request, contract.ENCODED_IMAGE).as_numpy()[0])
            image = open_image(content, FORMATS)
            (spec,) = self._family.encoder.inputs
            pixels = encoder_input(image, self._family)
            reply.tensors = {spec.name: pixels, contract.IMAGE_SIZE: np.array(image.size, np.int32)}
        except Exception as error:  # noqa: BLE001 - damaged images make Pillow raise errors of any type
            reply.fail(error)
        return bls.response(reply, reply.tensors)
