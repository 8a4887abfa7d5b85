"""The routes of the service: the 2024 contract (v0), the current API (v1), and the page's WebSocket (live)."""
