"""The SAM service: a FastAPI application over the Triton clients, and a web page. Needs the `service` extra."""

from .settings import Settings

__all__ = ["Settings"]
