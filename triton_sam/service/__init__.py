"""The SAM service: a FastAPI application over the Triton clients, and a web page. Needs the `service` extra.

- Requests: `api` has the routes (v0 of 2024, v1, live, videos, large), `adapters` those of other tools over
  `bridge`, `cancellation` ends work when a caller leaves, `problems` and `faults` make every error an RFC 9457
  problem.
- Limits: `middleware` (id, log, tokens), `budgets` (bytes, pixels, places of all requests), `bodies`, `quotas`,
  `connections`, `hosts`, `limits` (the file of `--limits`).
- Work: `engine` (clients, images, state of Triton), `store` (uploads), `everything`, `concepts`, `large`, `videos`,
  `exports`, and `public`, the only fetcher of files at URLs.
- `static` is the page: plain ES modules.
"""

from .settings import ServiceSettings

__all__ = ["ServiceSettings"]
