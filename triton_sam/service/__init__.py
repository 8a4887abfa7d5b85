"""The SAM service: a FastAPI application on top of the Triton clients, and a web page. Needs the `service` extra.

- Requests: `api` has the service's own routes (v0 of 2024, v1, live, videos, large), and `adapters` has those of other
  tools, built on `bridge`. `cancellation` stops work when a client disconnects. `problems` and `faults` make every
  error an RFC 9457 problem.
- Limits: `middleware` (id, log, tokens), `budgets` (bytes, pixels and places shared by all requests), `bodies`,
  `quotas`, `connections`, `hosts`, `settings` (defaults, the file of `--limits`, tokens).
- Work: `engine` (clients, images, state of Triton), `store` (uploads), `large`, `videos`, and `public`, which fetches
  all files at URLs. `everything`, `concepts` and `exports` have their routes and messages in the same file.
- `static` is the page: plain ES modules.
"""

from .settings import ServiceSettings

__all__ = ["ServiceSettings"]
