"""The checkpoint service: offers any store over HTTP to many tenants, each with threads of its own. `clew serve` runs
it; `create_app` returns it as an ASGI application for a program that runs it itself."""

from __future__ import annotations

from clew.server.app import create_app
from clew.server.auth import Token, new_token
from clew.server.service import Server, serve
from clew.server.settings import Settings
from clew.server.token_file import read_tokens

__all__ = ["Server", "Settings", "Token", "create_app", "new_token", "read_tokens", "serve"]
