"""`clew serve`: offer a store to other machines over HTTP, with the inspector for browsers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from clew.cli.deferred import store_registry
from clew.cli.failures import report_errors
from clew.errors import MissingExtra

__all__ = ["serve"]


@report_errors
def serve(
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="The store to serve. Default: CLEW_STORE, or a file of your own.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on. Without tokens, only a local one.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 is any free port.")] = 8420,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Listen on a unix socket instead, which only your user can open."),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let every user and program of this machine do everything.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The tokens and their rights, from `tokens new`."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second for each token. Default: no limit.")] = None,
    burst: Annotated[
        int | None, typer.Option(help="Requests at once after a pause. Default: as many as in one second.")
    ] = None,
    max_blob_mib: Annotated[int, typer.Option("--max-blob-mib", metavar="MIB", help="The largest blob.")] = 64,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate, with its chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The key of the certificate.")] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="A proxy whose X-Forwarded headers are believed. Repeatable."),
    ] = None,
    tenant_threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads that each namespace may have.")
    ] = None,
    tenant_mib: Annotated[
        int | None, typer.Option("--tenant-mib", metavar="MIB", help="Frames and blobs that each namespace may keep.")
    ] = None,
    tenant_rate: Annotated[
        float | None, typer.Option(metavar="N", help="Requests a second for all tokens of a namespace together.")
    ] = None,
    quota_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to count what each namespace keeps, for such limits.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record who did what, when and from where, as JSON lines.")
    ] = None,
    audit_required: Annotated[
        bool, typer.Option("--audit-required", help="Refuse what cannot be recorded in the audit log.")
    ] = False,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="When it has ended at the latest, once it is told to stop.")
    ] = 30.0,
    max_connections: Annotated[int, typer.Option(metavar="COUNT", help="Connections at a time.")] = 1000,
    max_connections_per_address: Annotated[
        int, typer.Option(metavar="COUNT", help="Those of one address that have not shown a token yet.")
    ] = 100,
    max_connections_per_token: Annotated[int, typer.Option(metavar="COUNT", help="Those that use one token.")] = 500,
    max_streams: Annotated[
        int, typer.Option(metavar="COUNT", help="Long reads and live pages of one token at a time.")
    ] = 256,
    max_bodies_mib: Annotated[
        int | None,
        typer.Option(
            "--max-bodies-mib", metavar="MIB", help="Memory for the bodies of requests. Default: 256, or two blobs."
        ),
    ] = None,
    header_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a client may take to send the head of a request.")
    ] = 10.0,
    body_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="The same for the body; one more for each 16 KiB that came.")
    ] = 30.0,
    send_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a client may take nothing of its response.")
    ] = 60.0,
    idle_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a connection without a request stays open.")
    ] = 75.0,
    access_log: Annotated[bool, typer.Option(help="Write a JSON line for each request to the standard error.")] = True,
    new_token: Annotated[
        bool, typer.Option("--new-token", hidden=True, help="Print a new token and its line for the file, and exit.")
    ] = False,
    namespace: Annotated[
        str, typer.Option(hidden=True, help="With --new-token: the namespace; * is all of them.")
    ] = "",
    scopes: Annotated[str, typer.Option(hidden=True, help="With --new-token: its scopes.")] = "read,write",
    label: Annotated[str, typer.Option(hidden=True, help="With --new-token: its name in the access log.")] = "",
) -> None:
    """Serve a store over HTTP, with an inspector for people.

    Without tokens of yours it makes one, for as long as it runs, and prints the link that signs your browser in.
    Programs open the store as http://host:port with the token in CLEW_TOKEN. `clew tokens` makes and revokes tokens in
    a file, which is read again when it changes. CLEW_SERVE_TOKENS can hold tokens instead.

    \b
    Examples:
      clew serve
      clew serve --socket store.sock
      clew tokens new me --namespace '*' --scopes read,write
      clew serve --token-file tokens.jsonl --host 0.0.0.0
    """
    if new_token:
        _print_token(namespace, scopes, label)
        return
    limits: dict[str, Any] = {
        "max_connections": max_connections,
        "max_connections_per_address": max_connections_per_address,
        "max_connections_per_token": max_connections_per_token,
        "max_streams": max_streams,
        "max_bodies": (max(256, 2 * max_blob_mib) if max_bodies_mib is None else max_bodies_mib) * 2**20,
        "header_timeout": header_timeout,
        "body_timeout": body_timeout,
        "send_timeout": send_timeout,
        "idle_timeout": idle_timeout,
    }
    try:
        from clew.server import Settings
        from clew.server import serve as run
        from clew.server.auth import parse_tokens
    except ImportError:
        raise MissingExtra("clew serve", "server") from None
    settings = Settings(
        store=store or store_registry.default_url(),
        host=host,
        port=port,
        socket=socket,
        tokens=parse_tokens(os.environ.get("CLEW_SERVE_TOKENS", "")),
        token_file=token_file,
        no_token=no_token,
        rate=rate,
        burst=burst,
        max_blob=max_blob_mib * 2**20,
        tls_cert=tls_cert,
        tls_key=tls_key,
        proxies=tuple(proxy or ()),
        tenant_threads=tenant_threads,
        tenant_bytes=None if tenant_mib is None else tenant_mib * 2**20,
        tenant_rate=tenant_rate,
        quota_file=quota_file,
        audit=audit,
        audit_required=audit_required,
        access_log=access_log,
        grace=grace,
        **limits,
    )
    run(settings, _print_link)


def _print_link(url: str, secret: str) -> None:
    """Print the link that signs a browser in to the service at `url`, and the settings with which programs use the
    service. `secret` is that of the token that the service made for itself at its start. If `secret` is empty, because
    no token was made, prints nothing."""
    if secret:
        typer.echo(
            f"Open in a browser: {url}/login?token={secret}\n"
            f"For programs: CLEW_STORE={url} CLEW_TOKEN={secret}\n"
            "Whoever has this token can do everything with this store, until the service ends."
        )
        sys.stdout.flush()


def _print_token(namespace: str, scopes: str, label: str) -> None:
    """Make a token for the service with these rights. `namespace` is the namespace that it is for, `scopes` has its
    scopes with commas between them, and `label` is its name in the access log. Print its line for the token file to the
    standard output, and its secret to the standard error."""
    from clew.server.auth import new_token

    secret, line = new_token(namespace, scopes.split(","), label)
    typer.echo(f"The token, shown this once: {secret}\nIts line for the token file:", err=True)
    typer.echo(line)
