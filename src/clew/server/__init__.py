"""The checkpoint service: gives any store to many tenants over HTTP. `clew serve` runs it; `create_app` embeds it."""

from __future__ import annotations

from clew.server.app import create_app
from clew.server.auth import Token, new_token, read_tokens
from clew.server.service import Server, serve
from clew.server.settings import Settings

__all__ = ["Server", "Settings", "Token", "create_app", "new_token", "read_tokens", "serve"]
