"""The engine between the routes and Triton: it holds the clients, the images, and Triton's state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..client.server_models import FIXED_IMAGE, EncoderIdentity, ServerModels, sort_models
from ..client.session_image import SessionImage
from ..client.speculative import SpeculativeSAM2Client
from ..errors import ModelNotReadyError, SamError, ServerUnreachableError
from ..families import FAMILIES, get_family, model_name
from ..families.base import Family
from ..families.tables import ENCODER
from ..inputs.embeddings import ImageEmbeddings
from ..masks.segment import Segment
from ..transport.triton import Transport
from ..transport.url import parse_url
from ..wire.video import video_model
from .budgets import Budgets, work_pixels
from .logs import LOGGER
from .metrics import Metrics
from .problems import Problem, tell
from .quotas import Callers
from .settings import ServiceSettings
from .store import ImageStore, LegacyEmbeddingIndex, Origin, StoredImage, accept_image, id_of, to_jpeg

Result = TypeVar("Result")

IN_FLIGHT = 16
"""Maximum concurrent predictions at Triton. Further ones wait here, where they are cheap to reorder and to drop."""
MODEL_HEADER = "X-Model"
"""The response header that names the model if it differs from the requested one."""
WATCH_SECONDS = 1.0
PROBE_TIMEOUT = 5.0
LEGACY_INDEX_SHARE = 4
"""The index of old-style embeddings may additionally use this share, a quarter, of the images' memory limit."""


@dataclass(frozen=True)
class Pair:
    """An encoder/decoder pair that is ready on Triton.

    Args:
        name: the pair's public name, for example "sam2" or "sam2.1_large".
        keeps_images: whether it has a session model, so that a click sends an id instead of 17 MB.
        finds_concepts: whether it has a session model, and all models that find words and examples.
    """

    name: str
    family: Family
    version: str
    keeps_images: bool
    tracks_videos: bool = False
    finds_concepts: bool = False
    is_demo: bool = False

    @property
    def finds_everything(self) -> bool:
        """Whether it can search for all objects. Without a session model, each click of a search would send 17 MB."""
        return self.keeps_images

    @property
    def origin(self) -> Origin:
        """The origin of embeddings. Weights differ between versions, and a session model keeps embeddings at Triton."""
        return self.name, self.version, self.keeps_images


@dataclass(eq=False)
class _Shared:
    """An encoding that several requests share."""

    task: asyncio.Task[ImageEmbeddings]
    waiters: int = 0


@dataclass(frozen=True)
class State:
    """The last known state of Triton.

    Args:
        pairs: by name, in the order of families; empty if no pair is ready or Triton is unavailable.
    """

    pairs: dict[str, Pair] = field(default_factory=dict)
    error: str | None = "not looked at yet"

    @property
    def is_up(self) -> bool:
        """Whether the service can compute masks."""
        return bool(self.pairs)


class Engine:
    """The engine of a service, used on one event loop from ``start()`` to ``stop()``."""

    def __init__(self, settings: ServiceSettings, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.budgets = Budgets(settings, metrics)
        self.callers = Callers(settings.all_tokens, settings.quota, metrics)
        self.images = ImageStore(settings.store_bytes)
        self.legacy_embeddings = LegacyEmbeddingIndex(settings.store_bytes // LEGACY_INDEX_SHARE)
        self.state = State()
        self.changed = asyncio.Event()
        self._clients: dict[tuple[str, bool], SpeculativeSAM2Client] = {}
        self._encodes = asyncio.Semaphore(settings.max_encodes)
        self._shared: dict[tuple[str, Origin], _Shared] = {}
        self._encoders: dict[Origin, EncoderIdentity] = {}
        self._looking: asyncio.Task[None] | None = None
        self._control = Transport(
            parse_url(settings.url),
            timeout=PROBE_TIMEOUT,
            retries=0,
            headers=settings.triton_headers,
            ca_certs=settings.ca_certs,
        )
        self._versions: dict[str, str] = {}
        self._models = ServerModels({}, {}, frozenset())
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.look()
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        self.budgets.workers.close()
        tasks = [task for task in (self._watcher, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.aclose()
        await asyncio.to_thread(self._control.close)

    async def look(self) -> State:
        """Refresh the list of ready models. Concurrent callers share the request to Triton."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)
        return self.state

    async def pair(self, name: str | None) -> Pair:
        """Return the pair of a given name. None or "" returns the default pair, or else the first one."""
        wanted = name or self.settings.model
        if wanted not in self.state.pairs:
            await self.look()
        pairs = self.state.pairs
        if not pairs:
            raise ServerUnreachableError(self.state.error or "Triton has no model ready")
        if wanted in pairs:
            return pairs[wanted]
        # The family's default pair is not served, but a variant is.
        variant = next((pair for pair in pairs.values() if pair.family.name == wanted), None)
        if variant is None and not name:
            variant = next(iter(pairs.values()))
        if variant is None:
            raise Problem(
                404, f"there is no model {wanted[:80]!r}: choose one of {', '.join(pairs)}", code="unknown_model"
            )
        tell(MODEL_HEADER, variant.name)
        return variant

    def client(self, pair: Pair, *, keeps_images: bool) -> SpeculativeSAM2Client:
        """Return the client of a pair, for embeddings at Triton or for embeddings in this process."""
        key = (pair.name, keeps_images)
        if key not in self._clients:
            self._clients[key] = SpeculativeSAM2Client(
                self.settings.url,
                pair.family.name,
                model_name=None if pair.name == pair.family.name else pair.name,
                timeout=self.settings.timeout,
                headers=self.settings.triton_headers,
                ca_certs=self.settings.ca_certs,
                max_in_flight_total=IN_FLIGHT,
                embeddings="server" if keeps_images else "client",
            )
        return self._clients[key]

    def client_of(self, pair: Pair, embeddings: ImageEmbeddings) -> SpeculativeSAM2Client:
        return self.client(pair, keeps_images=isinstance(embeddings, SessionImage))

    async def store(self, content: bytes, *, upright: bool = True) -> StoredImage:
        """Check an image's header and store the image, see accept_image()."""
        workers = self.budgets.workers
        content, size = await accept_image(content, self.settings.max_megapixels, workers, upright=upright)
        image = self.images.add(StoredImage(await asyncio.to_thread(id_of, content), content, size))
        self._count()
        return image

    def image(self, image_id: str) -> StoredImage:
        """Return an uploaded image, or raise a 404 problem."""
        image = self.images.get(image_id)
        if image is None:
            raise Problem(404, "the image is unknown or expired: upload it again", code="unknown_image")
        return image

    async def embed(self, image: StoredImage, pair: Pair) -> ImageEmbeddings:
        """Return an image's embeddings, or their id at Triton. Concurrent calls share one encoding."""
        found = image.embeddings.get(pair.origin)
        if found is not None:
            return found
        key = (image.image_id, pair.origin)
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(asyncio.create_task(self._embed(image, pair)))
        shared.waiters += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiters -= 1
            if shared.waiters == 0:
                shared.task.cancel()  # when the last waiter left before the task ended
                self._shared.pop(key, None)

    async def adopt(self, image: StoredImage, pair: Pair, load: Callable[[], ImageEmbeddings]) -> None:
        """Store embeddings that were computed elsewhere, unless the image has some."""
        if pair.origin not in image.embeddings:
            image.keep(pair.origin, await asyncio.to_thread(load))
            self._grown(image)

    async def encoder(self, pair: Pair) -> EncoderIdentity:
        """Return the identity of the encoder that Triton serves for a pair. The first call encodes a fixed image."""
        if pair.origin not in self._encoders:
            client = self.client(pair, keeps_images=pair.keeps_images)
            image = await self._encode(lambda: client.encode_async(FIXED_IMAGE))
            self._encoders[pair.origin] = EncoderIdentity.of(image)
        return self._encoders[pair.origin]

    async def encode_here(self, content: bytes, pair: Pair) -> ImageEmbeddings:
        """Encode an image and return its embeddings; cancelling the caller's task cancels the call to Triton."""
        client = self.client(pair, keeps_images=False)
        return await self._encode(lambda: client.encode_async(content))

    async def segment(
        self,
        image: ImageEmbeddings,
        pair: Pair,
        prompt: dict[str, Any],
        write: Callable[[Iterator[Segment]], Result],
        *,
        multimask: bool = False,
        at_a_time: int = 1,
        logits: bool = False,
    ) -> Result:
        """Return full-size masks, converted by ``write``.

        Args:
            write: converts the masks, in a thread. Each mask is computed when the iterator reaches it.
        """
        client = self.client_of(pair, image)
        objects = max(len(prompt.get(part) or ()) for part in ("coords", "box"))
        masks = objects * (pair.family.candidates if multimask else 1)
        pixels = work_pixels(image.image_size, at_a_time, masks, pair.family.mask_size, logits=logits)

        async def fetch() -> Iterator[Segment]:
            return await client.segment_each_async(**prompt, multimask_output=multimask, image=image)

        return await self.budgets.workers.run(pixels, fetch, write)

    async def preview(self, image: StoredImage) -> bytes:
        """Return an image as JPEG. Concurrent callers share the conversion."""
        loop = asyncio.get_running_loop()

        def make() -> None:
            if not image.preview:
                image.preview = to_jpeg(image.content)
                loop.call_soon_threadsafe(self._grown, image)  # even if the caller has disconnected

        if not image.preview:
            width, height = image.size
            await self.budgets.workers.call(width * height, make)
        return image.preview

    async def _embed(self, image: StoredImage, pair: Pair) -> ImageEmbeddings:
        client = self.client(pair, keeps_images=pair.keeps_images)
        embeddings = await self._encode(lambda: client.encode_async(image.content))
        image.keep(pair.origin, embeddings)
        image.size = embeddings.image_size
        self._grown(image)
        return embeddings

    def _grown(self, image: StoredImage) -> None:
        self.images.grown(image)
        self._count()

    async def _encode(self, encode: Callable[[], Awaitable[ImageEmbeddings]]) -> ImageEmbeddings:
        async with self._encodes:
            self.metrics.encodes.inc()
            return await encode()

    async def _look(self) -> None:
        try:
            self._set(State(await asyncio.to_thread(self._pairs), None))
        except SamError as error:
            self._set(State({}, str(error)))
        except Exception as error:  # noqa: BLE001 - the watch must continue, whatever a library raises
            LOGGER.exception("looking at Triton failed")
            self._set(State({}, f"looking at Triton failed: {error}"))
        finally:
            self._looking = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self.look()

    def _set(self, state: State) -> None:
        if state == self.state:
            return
        self.state = state
        self.metrics.triton_up.set(int(state.is_up))
        self.changed.set()  # wakes all waiting tasks; later tasks wait for the next change
        self.changed = asyncio.Event()

    def _count(self) -> None:
        self.metrics.stored_bytes.set(self.images.nbytes)
        self.metrics.stored_images.set(len(self.images))

    def _pairs(self) -> dict[str, Pair]:
        """Request the pairs from Triton (blocks). Raises a SamError if Triton is unavailable or has no pair ready."""
        versions = self._control.ready_models()
        if versions != self._versions:  # configurations are read only after a change
            self._models = sort_models(versions, self._control.model_config)
            self._versions = dict(versions)
        pairs = {
            name: Pair(
                *(name, get_family(family), versions[model_name(name, ENCODER)]),
                keeps_images=name in versions,
                tracks_videos=video_model(get_family(family), name) in versions,
                finds_concepts=_finds_concepts(get_family(family), name, versions),
                is_demo=name in self._models.demo,
            )
            for family in FAMILIES
            for name in self._models.variants.get(family, ())
            if model_name(name, ENCODER) in versions
        }
        if not pairs:
            raise ModelNotReadyError(
                f"Triton at {self.settings.url} has no models ready: wait while it loads, or set some up by "
                "`triton-sam setup sam2`"
            )
        return pairs


def _finds_concepts(family: Family, name: str, ready: Mapping[str, str]) -> bool:
    models = [name, *(model_name(name, role) for role in family.concepts)]
    return bool(family.concepts) and all(model in ready for model in models)
