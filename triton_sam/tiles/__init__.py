"""Images that are too large for one request: microscope slides, aerial photographs, maps.

They are read part by part, at the best level of their pyramid. Results are in pixels of the whole image. `opening`
opens files (tifffile, zarr, rasterio), `pyramid` has levels and windows, `segmenting` cuts out parts around prompts,
`joining` joins objects of several tiles, and `stored` and `precomputing` store embeddings in micro-sam's layout.
"""

from .joining import LargeObject
from .opening import open_large_image
from .precomputing import precompute
from .pyramid import LargeImage
from .segmenting import LargeImageClient

__all__ = ["LargeImage", "LargeImageClient", "LargeObject", "open_large_image", "precompute"]
