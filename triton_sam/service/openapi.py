"""The parts of the OpenAPI document that routes do not define: texts, tags, schemas, the WebSocket, the token."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from .concepts import FindAnswer
from .everything import EverythingAnswer
from .schemas import ProblemDetails, SegmentAnswer, problem_responses

SUMMARY = "You click, and the service answers with a mask."
DESCRIPTION = """Segment Anything on NVIDIA Triton.

With `/v1`, you upload an image once, and then ask for masks by its id. The other routes keep the contract of the
service of 2024. Errors are problem+json (RFC 9457). Every answer carries the header `X-Request-ID`.
"""
SERVICE = "service"
"""The tag of the routes that concern the service itself."""
TAGS = [
    {"name": "v1", "description": "Images: upload an image once, then request masks by its id."},
    {"name": "v1 videos", "description": "Videos: upload a video, prompt objects in any frame, and track them."},
    {"name": "2024 contract", "description": "The routes of the service of 2024, for programs that were made for it."},
    {"name": SERVICE, "description": "The service itself: its metrics, and the WebSocket of its page."},
]
LARGE_TAG = {
    "name": "v1 large images",
    "description": "Slides and maps in a folder of the service: look at parts, and segment by clicks.",
}
"""The tag of the routes of a service with `--large-images`."""


def _problem(description: str) -> dict[str, Any]:
    reference = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
    return {"description": description, "content": {"application/problem+json": reference}}


LIVE: dict[str, Any] = {
    "get": {
        "tags": [SERVICE],
        "summary": "Open the WebSocket of the page",
        "operationId": "live",
        "description": "Upgrade the connection to a WebSocket, on which the page sends positions of the mouse and gets "
        "masks. Other programs use `/v1`.\n\nThe page sends `hello` with its `version` first, and then `segment` and "
        "`cancel`. The service sends `status`, `masks` and `error`. `masks` is binary, and the others are JSON. "
        "triton_sam/service/messages.py defines their members.\n\nA browser names a token as the subprotocol "
        "`triton-sam.token.` with the token in base64url behind it, and also offers the subprotocol `triton-sam`.",
        "parameters": [
            {
                "name": "Sec-WebSocket-Protocol",
                "in": "header",
                "required": False,
                "description": "The subprotocols that the page offers.",
                "schema": {"type": "string", "examples": ["triton-sam, triton-sam.token.c2VjcmV0"]},
            }
        ],
        "responses": {
            "101": {"description": "The WebSocket is open."},
            **{str(status): each for status, each in problem_responses().items() if status in (401, 421, 429, 503)},
            "403": _problem("Pages of this origin may not use the service: see `--cors`."),
            "404": _problem("The request is not a WebSocket handshake."),
        },
    }
}


def complete(app: FastAPI, *, with_token: bool, root_path: str = "") -> None:
    """Complete FastAPI's document, and replace its error form by ours."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            document["paths"]["/live"] = LIVE
            parts = document.setdefault("components", {})
            schemas = parts.setdefault("schemas", {})
            for model in (ProblemDetails, SegmentAnswer, EverythingAnswer, FindAnswer):
                schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            if root_path:
                document["servers"] = [{"url": root_path}]
            if with_token:
                parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"token": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
