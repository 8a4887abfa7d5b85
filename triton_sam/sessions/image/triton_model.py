"""The entry of the session model in Triton. It calls the encoder and the decoder by BLS (Business Logic Scripting).

Requests with an image have separate threads because they may wait for the encoder; a click never waits behind them.
Searches have their own threads.

Parameters in config.pbtxt: ``family``, ``encoder``, ``decoder`` (names of models), ``cache_bytes``, ``threads``,
``max_pending``, ``max_jobs``, and ``decoder_in_session`` ("true": this process runs the decoder itself, decoder.py).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from ..._common.text import one_line
from ...errors import ConfigurationError, SamError
from ...everything.parameters import thresholds_in
from ...families import variant_of
from ...families.tables import DECODER, ENCODER
from ...repository.config import DECODER_IN_SESSION
from ...wire import contract
from ...wire.pair import ModelPair
from .. import bls
from ..concept_models import ConceptModels
from ..concepts import Concepts
from ..messages import Tensors
from ..python_model import COUNTERS, GAUGES, PythonModel
from ..tasks import Pool, Task
from .decoder import Decoder, is_asked_for
from .messages import wants_json, write_json_error
from .session import SessionModel


class TritonPythonModel(PythonModel):
    """One session model. Triton requires this class name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        super().initialize(args)
        encoder, decoder = self.parameters[ENCODER], self.parameters[DECODER]
        self._names = {ENCODER: encoder, DECODER: decoder}
        limit = self.number("cache_bytes", contract.DEFAULT_CACHE_BYTES)
        threads = self.number("threads", contract.DEFAULT_THREADS)
        pending = self.number("max_pending", contract.DEFAULT_MAX_PENDING)
        jobs = self.number("max_jobs", contract.DEFAULT_MAX_JOBS)
        self._decoder = _open_decoder(args, self.parameters)
        self._model = SessionModel(
            ModelPair(self.family, variant_of(encoder)),
            self._run,
            1 if self.gpu is None else contract.MAX_OBJECTS,
            bls.fitting(limit, contract.embedding_bytes(self.family), in_shared_memory=self.gpu is None),
            bls.weights_identity(self.repository / encoder),
            self._concepts(),
            _thresholds(self.repository / decoder, self.family.decoder.filename),
        )
        self._clicks = Pool("click", threads, pending)
        self._images = Pool("image", threads, pending)
        self._searches = {
            contract.EVERYTHING: (Pool("everything", jobs, jobs), self._model.find_everything),
            contract.EVERYTHING_PART: (Pool("part", jobs, pending), self._model.find_part),
            contract.FIND: (Pool("find", threads, pending), self._model.find_concepts),
        }
        pools = [*(pool for pool, _ in self._searches.values()), self._clicks, self._images]
        self.measure(pools, COUNTERS, GAUGES, self._model.images.gauges)

    def admit(
        self, request: Any, inputs: Mapping[str, Any], sender: Any, wanted: Container[str]
    ) -> Future[None] | None:
        """Pass a request to a thread; see PythonModel."""
        search = next((self._searches[name] for name in self._searches if name in inputs), None)
        brings_image = contract.IMAGE in inputs or contract.IMAGE_B64 in inputs
        pool = search[0] if search else self._images if brings_image else self._clicks
        pool.check_room()
        tensors = {name: tensor.as_numpy() for name, tensor in inputs.items()}
        if search is None:
            task = Task(pool.name, self.waiting, sender, wanted, bls.trace_of(request))
            return self.start(task, pool, partial(self._model.answer, tensors))
        # A search runs without its trace. The Python backend frees each request with its trace when `execute` returns,
        # so that later calls would pass on a pointer to freed memory; otherwise `execute`, and with it every click,
        # would wait for the end of the search. Python cannot open its own trace: a trace has only `get_context`.
        task = Task(pool.name, self.waiting, sender, wanted)
        return self.start(task, pool, partial(search[1], tensors, partial(self.is_stopped, sender)))

    def error_tensors(self, error: Exception, inputs: Mapping[str, Any]) -> Tensors:
        """Return ``result_json`` with the error, if the request expects its answer there."""
        return write_json_error(error) if wants_json(inputs) else {}

    def finalize(self) -> None:
        """Wait for the running requests. Searches end before their next decode."""
        super().finalize()
        if self._decoder is not None:
            self._decoder.close()

    def _run(
        self,
        role: str,
        held: Mapping[str, Any],
        arrays: Mapping[str, npt.NDArray[Any]],
        outputs: tuple[str, ...],
        is_kept: bool,
    ) -> Mapping[str, Any]:
        """Run a model; see images.Run. Kept outputs are Triton tensors, which stay where the model put them."""
        if role == DECODER and self._decoder is not None:  # as_numpy() does not copy
            return self._decoder.run({**{name: tensor.as_numpy() for name, tensor in held.items()}, **arrays}, outputs)
        return bls.run(self._names[role], held, arrays, outputs, self.memory if is_kept else None)

    def _concepts(self) -> Concepts | None:
        """Return the settings of searches for concepts; None if the parameters name no models for them."""
        names = self.parameters.get(contract.CONCEPT_MODELS, "").split()
        if not names:
            return None
        if len(names) != len(self.family.concepts):
            roles = ", ".join(self.family.concepts)
            raise pb_utils.TritonModelException(f"parameter {contract.CONCEPT_MODELS} must name the models {roles}")
        self._names |= dict(zip(self.family.concepts, names, strict=True))
        self.concept_models = ConceptModels(self.repository, self.family, self._names)
        return self.concept_models.settings(self.gpu is not None)


def _thresholds(folder: Path, filename: str) -> dict[str, float]:
    """Return the thresholds of searches that fit the weights of the decoder; unreadable thresholds are ignored."""
    try:
        return thresholds_in(folder, filename)
    except (OSError, ValueError) as error:
        pb_utils.Logger.log_warn(f"no thresholds of {folder.name}: {one_line(error)}")
        return {}


def _open_decoder(args: Mapping[str, str], parameters: Mapping[str, str]) -> Decoder | None:
    """Return the decoder that this process runs itself; None if it calls the decoder through Triton."""
    name = parameters["decoder"]
    asked: bool | None = True
    try:
        asked = is_asked_for(parameters)
        is_on_gpu = args["model_instance_kind"] != "CPU"
        if asked is False or (asked is None and is_on_gpu):
            return None
        if is_on_gpu:
            raise ConfigurationError(
                f"{DECODER_IN_SESSION} is for CPUs, and Triton runs this session model on a GPU, where embeddings "
                "are not copied for each click: leave the option out"
            )
        own = Path(args["model_repository"])
        opened = Decoder(own.parent / name, like=None if asked else own)
    except SamError as error:
        if asked:
            raise pb_utils.TritonModelException(one_line(error)) from error
        pb_utils.Logger.log_info(f"{args['model_name']} calls {name} through Triton: {one_line(error)}")
        return None
    pb_utils.Logger.log_info(f"{args['model_name']} runs {name} itself, from {opened.file}")
    return opened
