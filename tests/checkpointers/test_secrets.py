"""No error and no printed form of a store shows a secret that its URL holds, wherever in the URL it is."""

from __future__ import annotations

import traceback

import pytest

from clew.checkpointers import open_checkpointer
from clew.errors import ClewError, InvalidInput

SECRET = "s3cr3tMARK"
HOSTS = {
    **dict.fromkeys(("postgresql", "postgres", "mysql", "oracle", "redis", "rediss", "opensearch"), "127.0.0.1:1"),
    **dict.fromkeys(("http", "https"), "127.0.0.1:1"),
    **dict.fromkeys(("s3", "gs", "az", "oci"), "bucket"),
    **dict.fromkeys(("sqlite", "file", "memory"), ""),
    "unknown": "host",
}
PLACES = {
    "a password": "{scheme}://u:SECRET@{host}/db",
    "a user": "{scheme}://SECRET@{host}/db",
    "a password with an @": "{scheme}://u:SECRET@x@{host}/db",
    "a password with a ?": "{scheme}://u:a?SECRET@{host}/db",
    "a password with a /": "{scheme}://u:a/SECRET@{host}/db",
    "a password of digits and a /": "{scheme}://u:8/SECRET@{host}/db",
    "a password with a #": "{scheme}://u:a#SECRET@{host}/db",
    "a password with a [": "{scheme}://u:[SECRET@{host}/db",
    "a password and a wrong port": "{scheme}://u:SECRET@h:99999999/db",
    "no slashes": "{scheme}:u:SECRET@{host}",
    "one slash": "{scheme}:/u:SECRET@{host}/db",
    "an option without a name": "{scheme}://{host}/db?SECRET",
}
OPTIONS = (
    *("access_key_id", "account_key", "cluster", "connections", "key", "options", "passfile", "password", "replicas"),
    *("sas_token", "secret_access_key", "session_token", "shards", "ssl", "ssl_server_dn_match", "sslpassword"),
    *("timeout", "tls", "token", "ttl", "unknown_option", "user", "verify", "wait_replicas", "wallet_password"),
)
IS_A_PATH = {("sqlite", "no slashes"), ("file", "no slashes")}
"""Where the secret is a part of a file's name."""


def words(url: str) -> str:
    """All that opening the URL shows."""
    try:
        store = open_checkpointer(url)
    except ClewError as error:
        return "".join(traceback.format_exception(error)) + repr(error)
    return f"{store!r} {store}"


@pytest.mark.parametrize("scheme", HOSTS)
def test_no_error_or_printed_form_shows_a_secret_of_the_url(scheme: str) -> None:
    urls = {place: form.format(scheme=scheme, host=HOSTS[scheme]) for place, form in PLACES.items()}
    urls |= {option: f"{scheme}://{HOSTS[scheme]}/db?{option}=SECRET" for option in OPTIONS}
    shown = {
        place: found
        for place, url in urls.items()
        if SECRET in (found := words(url.replace("SECRET", SECRET))) and (scheme, place) not in IS_A_PATH
    }
    assert shown == {}


@pytest.mark.parametrize(
    "url", ["u:SECRET@host/db", "://u:SECRET@host/db", "u_SECRET@host", "SECRET!:x", "x?key=SECRET"]
)
def test_what_is_not_a_url_at_all_is_not_repeated_if_it_may_hold_a_password(url: str) -> None:
    assert SECRET not in words(url.replace("SECRET", SECRET))


def test_the_path_of_a_local_store_is_still_named() -> None:
    assert "'sqlite:///a@b/x.db'" in words("sqlite:///a@b/x.db?mode=ro")
    assert "'file:///a@b'" in words("file:///a@b?x=y")
    assert "'clew.db' is not the URL of a store. For a SQLite file write sqlite:///clew.db" in words("clew.db")


def test_a_postgres_url_with_a_part_of_a_character_is_refused_in_order() -> None:
    broken = bytes.fromhex(
        "80a3b9c59cfbb6c037daa3e15fe493336 29ec431611c13480ad9ce6e93254541fbc7816e4c5302aace2f6868".replace(" ", "")
    )
    with pytest.raises(InvalidInput):
        open_checkpointer("postgresql://" + broken.decode("utf-8", "replace"))
