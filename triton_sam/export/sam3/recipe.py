"""The exporter of SAM3: it builds the model and traces the graphs for images, videos and concepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._common.extras import missing
from ...concepts.tokenizer import TOKENIZER_NAME
from ...errors import ConfigurationError
from ...families.concepts import CONCEPT_ENCODER, DETECTOR, MASK_HEAD, TEXT_ENCODER
from ...families.sam3 import SAM3, TRACKING
from ...families.tables import ENCODER, ModelSpec
from ..exporter import Exporter
from ..reference import Frames, VideoReference, VideoWordsReference
from ..settings import Settings
from .checkpoints import NO_MEMORY_PLACEMENTS, checkpoint_folder, config_name, metadata_of, placement
from .model import configuration, detector_configuration, load_official, video_configuration
from .reference import Sam3ConceptReference, Sam3Reference

try:
    import onnx
    import torch
    from transformers import (
        Sam3Model,
        Sam3TrackerModel,
        Sam3TrackerVideoInferenceSession,
        Sam3TrackerVideoModel,
    )

    from .. import tracing
    from ..weights import randomise, seeded
    from .concept_graphs import ConceptEncoder, Detector, MaskHead, TextEncoder
    from .graphs import EncoderWithStates, Sam3Decoder
    from .tokenizer import open_tokenizer, tokenizer_text
except ImportError as error:
    raise missing("exporting and verifying SAM3 needs", "export", error, "export,local") from error


class Sam3Exporter(Exporter):
    """Exports SAM3's tracker from a folder with facebook/sam3 in transformers' format, or from a file in that folder.

    Names, shapes and ranges are those of onnx-community/sam3-tracker-ONNX. The name of the model's configuration is a
    size, "full" or "reduced", and only random weights use it. The option ``no_memory`` controls no_memory_embedding:
    "published" leaves it out, as transformers and the published ONNX files do; "meta" adds it to the coarsest feature
    map, as Meta's code does. The option ``text_encoder`` replaces the text encoder for concepts with that of
    SAM3-LiteText (see lite_text.check_choice()).
    """

    name = "sam3"
    stride = SAM3.image_size

    def prepare(self, settings: Settings) -> Settings:
        """Check the image size: the position embeddings and the wire contract allow only one."""
        if settings.image_size != SAM3.image_size:
            raise ConfigurationError(f"image size {settings.image_size}: SAM3 supports {SAM3.image_size} only")
        if placement(settings) not in NO_MEMORY_PLACEMENTS:
            known = ", ".join(NO_MEMORY_PLACEMENTS)
            raise ConfigurationError(f"no_memory has no value {placement(settings)!r}: choose one of {known}")
        if settings.checkpoint is not None:
            settings = replace(settings, checkpoint=checkpoint_folder(settings.checkpoint))
        if choice := _text_encoder(settings):
            from .lite_text import check_choice

            check_choice(choice, is_random=settings.checkpoint is None, concepts=settings.concepts)
        return super().prepare(settings)

    def load(
        self,
        checkpoint: str | Path | None,
        model: str | None = None,
        *,
        image_size: int | None = None,
        random_seed: int | None = None,
    ) -> torch.nn.Module:
        if checkpoint is None or random_seed is not None:
            return super().load(checkpoint, model, image_size=image_size, random_seed=random_seed)
        tracker: torch.nn.Module = load_official(Path(checkpoint), Sam3TrackerModel)
        return tracker.requires_grad_(False)

    def choose(self, checkpoint: str | Path | None, model: str | None) -> str:  # noqa: ARG002
        return model or "full"

    def build(self, model: str, image_size: int) -> torch.nn.Module:  # noqa: ARG002 - prepare() accepts one size only
        built: torch.nn.Module = Sam3TrackerModel(configuration(model))
        return built

    def add_video(self, model: Any, settings: Settings) -> None:
        """Attach transformers' Sam3TrackerVideoModel to the tracker as ``video``; see Exporter.add_video()."""
        official: Any = Sam3TrackerVideoModel
        if settings.checkpoint is not None:
            video = load_official(settings.checkpoint, official, remove_vision_encoder=True)
        else:
            config = video_configuration(self.choose(None, settings.model))
            video = seeded(lambda: official(config, remove_vision_encoder=True), settings.random_seed)
            randomise_memory(video, settings.random_seed or 0)
            video.load_state_dict(model.state_dict(), strict=False)
        video.vision_encoder = model.vision_encoder
        model.video = video.eval().requires_grad_(False)

    def state(self, model: Any) -> Mapping[str, Any]:
        """Return the tensors of the tracker and of its video model; names of both are equal for equal tensors."""
        video = model.video.state_dict() if hasattr(model, "video") else {}
        tensors = {**model.state_dict(), **video}
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("video.")}

    def add_concepts(self, model: Any, settings: Settings) -> None:
        """Attach transformers' Sam3Model to the tracker as ``concepts``; see Exporter.add_concepts()."""
        if settings.checkpoint is not None:
            detector: Any = load_official(settings.checkpoint, Sam3Model)
        else:
            official: Any = Sam3Model
            size = self.choose(None, settings.model)
            detector = seeded(lambda: official(detector_configuration(size)), settings.random_seed)
            randomise(detector, settings.random_seed or 0)
            if settings.video:
                # Logits reach the 0.5 of a prompt's pixels. Objects with empty prompts would have equal masks.
                for parameter in detector.mask_decoder.mask_embedder.layers[-1].parameters():
                    parameter.data *= 128
                for tracker in (model, model.video):
                    sharpen(tracker.mask_decoder)
        # The checkpoint has only one set of backbone weights, so sharing them saves memory without changing results.
        detector.vision_encoder.backbone = model.vision_encoder.backbone
        model.concepts = detector.eval().requires_grad_(False)
        if choice := _text_encoder(settings):
            from .lite_text import replace_text_encoder

            replace_text_encoder(model.concepts, choice, settings.model, settings.random_seed)

    def concept_reference(self, model: Any, settings: Settings) -> Sam3ConceptReference:
        self.add_concepts(model, settings)
        if _text_encoder(settings):
            from .lite_text import official_model

            return Sam3ConceptReference(official_model(model.concepts), settings.checkpoint)
        return Sam3ConceptReference(model.concepts, settings.checkpoint)

    def trace(self, model: Any, spec: ModelSpec, options: Mapping[str, Any]) -> onnx.ModelProto:
        """Trace one model, with all batch dimensions dynamic; see Exporter.trace()."""
        add_no_memory = options.get("no_memory") == "meta"
        if spec.role in TRACKING.models:
            from ..sam2.video_graphs import trace_video
            from .video_graphs import graphs, sam2_of

            base = sam2_of(model.video, add_no_memory)
            return trace_video(base, spec, graphs=graphs(add_no_memory), tracking=TRACKING)
        if spec.role == ENCODER:
            module: torch.nn.Module = EncoderWithStates(model, add_no_memory)
        elif spec.role == CONCEPT_ENCODER:
            module = ConceptEncoder(model.concepts)
        elif spec.role == TEXT_ENCODER:
            module = TextEncoder(model.concepts)
        elif spec.role == DETECTOR:
            module = Detector(model.concepts)
        elif spec.role == MASK_HEAD:
            module = MaskHead(model.concepts)
        else:
            module = Sam3Decoder(model)
        return _trace(module, spec, model)

    def companions(self, role: str, settings: Settings) -> Mapping[str, str]:
        """Return the tokenizer for the text encoder."""
        if role != TEXT_ENCODER:
            return {}
        length = SAM3.concepts[TEXT_ENCODER].inputs[0].shape[1]
        return {TOKENIZER_NAME: tokenizer_text(settings.checkpoint, int(length))}

    def config(self, settings: Settings) -> str:
        return config_name(settings)

    def metadata(self, settings: Settings) -> Mapping[str, str]:
        lite = {"triton_sam.text_encoder": Path(choice).name} if (choice := _text_encoder(settings)) else {}
        return {**metadata_of(settings), **lite}

    def reference(self, model: Any) -> Sam3Reference:
        return Sam3Reference(model)

    def video_reference(self, model: Any, frames: Frames) -> VideoReference:
        from ..sam2.video_reference import TransformersVideoReference

        return TransformersVideoReference(self.family, model.video, Sam3TrackerVideoInferenceSession, frames)

    def video_words_reference(self, model: Any, frames: Frames, settings: Settings) -> VideoWordsReference:
        from .video_words_reference import Sam3VideoWordsReference, video_model_of

        whole = video_model_of(model.video, model.concepts, model.vision_encoder.neck)
        return Sam3VideoWordsReference(whole, frames, open_tokenizer(settings.checkpoint))


def randomise_memory(video: Any, seed: int) -> None:
    """Give the memory random weights. Most keep the size of a signal, so that masks depend on the memory."""
    randomise(video, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, module in video.named_modules():
        if name.startswith("memory_") and isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            weight = module.weight.data
            weight.normal_(generator=generator).mul_(weight[0].numel() ** -0.5)


def sharpen(decoder: Any) -> None:
    """Make the objects of a tracker's random mask decoder visible, with logits above rounding errors."""
    decoder.pred_obj_score_head.proj_out.bias.data += 10
    for head in decoder.output_hypernetworks_mlps:
        for parameter in head.proj_out.parameters():
            parameter.data *= 300


def _text_encoder(settings: Settings) -> str:
    """Return the value of --text-encoder, which may be unchecked; empty for SAM3's own."""
    return str(settings.options.get("text_encoder") or "")


def _trace(module: torch.nn.Module, spec: ModelSpec, model: Any) -> onnx.ModelProto:
    channels = model.config.vision_config.backbone_config.hidden_size  # of the states of the backbone
    free = {name: torch.export.Dim(name, min=1) for name in ("images", "prompts", "instances")}
    free |= {name: torch.export.Dim(name, min=0) for name in ("points", "boxes")}
    # The sizes differ from each other, so that torch does not treat two dimensions as equal.
    sizes = {"images": 2, "prompts": 3, "points": 4, "boxes": 5, "instances": 6}
    example, dynamic = [], {}
    for tensor in spec.inputs:
        shape = [sizes[side] if isinstance(side, str) else side or channels for side in tensor.shape]
        value = torch.rand(shape, device=model.device)
        example.append(value.to(torch.int64) if tensor.dtype == "INT64" else value)
        dynamic[tensor.name] = {axis: free[side] for axis, side in enumerate(tensor.shape) if isinstance(side, str)}
    return tracing.trace(module, replace(spec, outputs=spec.graph_outputs), example, dynamic)


EXPORTER = Sam3Exporter()
