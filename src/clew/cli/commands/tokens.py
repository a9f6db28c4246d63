"""`clew tokens`: list, make, rotate and revoke the tokens of a service."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clew._runtime.text import ago, one_line
from clew.cli.failures import report_errors
from clew.cli.options import Json
from clew.cli.output.console import errors, print_json, say
from clew.cli.output.tables import Cell, Column, print_table
from clew.cli.quantities import duration
from clew.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from clew.server import Token

__all__ = ["tokens"]

_ACTIONS = ("list", "new", "rotate", "revoke")


@report_errors
def tokens(
    action: Annotated[str, typer.Argument(help="list, new, rotate or revoke.")] = "list",
    name: Annotated[str | None, typer.Argument(help="The token: its name, or the id from the list.")] = None,
    file: Annotated[Path, typer.Option(metavar="FILE", help="The file, for --token-file of the service.")] = Path(
        "tokens.jsonl"
    ),
    namespace: Annotated[
        str | None, typer.Option(help="With new: the namespace it is for; * is all of them. Default: its name.")
    ] = None,
    scopes: Annotated[
        str, typer.Option(help="With new: some of read, append, write, delete, admin and metrics.")
    ] = "read,append",
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="With new: how long it is valid, such as 90d. Default: for ever.")
    ] = None,
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="With rotate: how long the old secret stays valid, such as 1h.")
    ] = "0",
    json: Json = False,
) -> None:
    """List, make, rotate and revoke tokens of a service.

    A token is for one namespace, and its scopes say what it may do there. With read,append it can do an agent's work
    and cannot destroy what is on record; write can also replace and delete threads. The secret is printed once, alone,
    to the standard output; the file has only its hash. A running service takes up each change by itself.

    \b
    Examples:
      clew tokens new ci --namespace team-a --expires 90d
      clew tokens
      clew tokens rotate ci --keep 1h
      clew tokens revoke ci
    """
    try:
        from clew.server.token_file import add_token, read_tokens, revoke_token, rotate_token
    except ImportError:
        raise MissingExtra("clew tokens", "server") from None
    if action not in _ACTIONS:
        raise InvalidInput(f"{action!r} is not one of {', '.join(_ACTIONS)}")
    if action == "list":
        _list([token for token in read_tokens(file) if name in (None, token.label, token.id)], json)
        return
    if not name:
        raise InvalidInput(f"name the token: {action} NAME")
    if action == "new":
        made = add_token(file, namespace or name, scopes.split(","), name, _later(expires, "--expires"))
        _print_secret(*made, json)
    elif action == "rotate":
        _print_secret(*rotate_token(file, name, _later(keep, "--keep") if keep != "0" else None), json)
    else:
        for token in revoke_token(file, name):
            if json:
                print_json(_object(token))
            else:
                errors().print(f"Revoked {token.label or token.id}.")


def _later(length: str | None, option: str) -> datetime | None:
    if length is None:
        return None
    try:
        return (datetime.now(UTC) + duration(length, option)).replace(microsecond=0)
    except OverflowError:
        raise InvalidInput(f"{option} {length} is too long. Give a shorter time.") from None


def _print_secret(secret: str, token: Token, json: bool) -> None:
    if json:
        print_json({"secret": secret, **_object(token)})
        return
    until = f", until {token.expires:%Y-%m-%d %H:%M} UTC" if token.expires else ""
    where = "all namespaces" if token.namespace == "*" else f"the namespace {token.namespace}"
    errors().print(f"{token.label}: {', '.join(token.scopes)} in {where}{until}. Its secret, shown this once:")
    say(secret)


def _list(found: list[Token], json: bool) -> None:
    if json:
        for token in found:
            print_json(_object(token))
        return
    columns = [
        Column("name", gives_way=True),
        Column("id"),
        Column("namespace", gives_way=True),
        Column("scopes"),
        Column("age", right=True, spare=1),
        Column("expires", right=True),
    ]
    print_table(columns, [_row(token) for token in found])


def _row(token: Token) -> list[Cell]:
    expires = "never" if token.expires is None else f"{token.expires.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return [
        Cell(one_line(token.label), "cyan"),
        Cell(token.id, "dim"),
        Cell(token.namespace),
        Cell(",".join(token.scopes)),
        Cell("" if token.created is None else ago(token.created)),
        Cell("expired" if token.has_expired else expires, "red" if token.has_expired else ""),
    ]


def _object(token: Token) -> dict[str, Any]:
    """Return a token as the object that --json prints."""
    return {
        "name": token.label,
        "id": token.id,
        "namespace": token.namespace,
        "scopes": list(token.scopes),
        "created_at": token.created,
        "expires_at": token.expires,
    }
