"""What happens on the long thread of the showroom: a change to a code base, two crashes, a wrong way that is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from clew.log import Entry, MessageAdded, Rewound
from clew.messages import user

__all__ = ["TASK", "Beat", "beats"]

TASK = """Invoices still go out through the billing API v1, which is switched off in December.
Move them to v2, keep the tests green, and do not send any invoice twice."""


class Beat(NamedTuple):
    """A turn: what is said and thought, the calls with their results, the files after it, and how it goes on."""

    words: tuple[str, ...]
    calls: list[tuple[str, dict[str, Any], str]]
    files: dict[str, str] = {}  # noqa: RUF012 - a default that nobody changes
    dies_in: int = -1
    pause: float = 0.0
    goes_on: tuple[str, int] = ("build-2", 4127)
    then: tuple[Entry, ...] = ()


_SEND_V1 = '''"""Sends invoices."""

import requests

from billing.models import Invoice
from billing.settings import API_URL, TOKEN


def send_invoice(invoice: Invoice) -> str:
    answer = requests.post(
        f"{API_URL}/v1/invoices",
        json={"customer": invoice.customer, "cents": invoice.cents},
        headers={"Authorization": TOKEN},
        timeout=10,
    )
    answer.raise_for_status()
    return answer.json()["number"]
'''
_SEND_V2 = '''"""Sends invoices, each of them once."""

import httpx

from billing.models import Invoice
from billing.settings import API_URL, TOKEN


def send_invoice(invoice: Invoice) -> str:
    """The key is the invoice's own, so that a retry is the same invoice to the API, not a second one."""
    answer = httpx.post(
        f"{API_URL}/v2/invoices",
        json={"customer_id": invoice.customer, "amount": {"cents": invoice.cents, "currency": invoice.currency}},
        headers={"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": invoice.key},
        timeout=10,
    )
    answer.raise_for_status()
    return answer.json()["invoice"]["number"]
'''
_MODELS_V1 = """from dataclasses import dataclass


@dataclass
class Invoice:
    customer: str
    cents: int
"""
_MODELS_V2 = """from dataclasses import dataclass, field
from uuid import uuid4


@dataclass
class Invoice:
    customer: str
    cents: int
    currency: str = "EUR"
    key: str = field(default_factory=lambda: uuid4().hex)
"""
_TESTS = """from billing.invoices import send_invoice
from billing.models import Invoice


def test_a_retry_sends_the_same_key(api) -> None:
    invoice = Invoice("c-104", 4900)
    send_invoice(invoice)
    send_invoice(invoice)
    assert len(api.invoices) == 1
"""
_GREEN = "42 passed in 38.61s"
_START = {
    "README.md": "# Billing\n\nInvoices, credit notes and reminders.\n",
    "billing/__init__.py": "",
    "billing/invoices.py": _SEND_V1,
    "billing/models.py": _MODELS_V1,
    "billing/settings.py": 'API_URL = "https://billing.internal"\nTOKEN = "set by the environment"\n',
    "tests/test_invoices.py": "from billing.invoices import send_invoice\n",
}


def beats() -> Iterator[Beat]:
    yield Beat(
        (
            "I look at how invoices are sent today, and at what v2 wants.",
            "Two things matter: the shape of the request, and that a retry must not make a second invoice. v2 has "
            "idempotency keys, so the key has to live as long as the invoice does.",
        ),
        [
            (
                "search_code",
                {"text": "send_invoice("},
                "billing/invoices.py:9\nbilling/reminders.py:31\njobs/month_end.py:54",
            ),
            ("read_file", {"path": "billing/invoices.py"}, _SEND_V1),
            ("fetch", {"url": "https://billing.internal/v2/openapi.json"}, '{"paths": {"/v2/invoices": …}}'),
        ],
        _START,
    )
    yield Beat(
        ("v2 takes an idempotency key. I give each invoice its own, and send it along. Then the tests.",),
        [
            (
                "edit_file",
                {"path": "billing/models.py", "what": "a key and a currency for each invoice"},
                "2 lines added",
            ),
            ("run_tests", {"paths": ["tests/"]}, _GREEN),
        ],
        {"billing/models.py": _MODELS_V2},
        dies_in=1,
        pause=347,
        goes_on=("build-5", 918),
    )
    yield Beat(
        ("Green after the restart. Now the request itself.",),
        [
            ("edit_file", {"path": "billing/invoices.py", "what": "v2, with the key"}, "9 lines changed"),
            ("edit_file", {"path": "tests/test_invoices.py", "what": "a retry sends the same key"}, "9 lines added"),
        ],
        {"billing/invoices.py": _SEND_V2, "tests/test_invoices.py": _TESTS},
    )
    yield Beat(
        ("",),
        [
            (
                "run_tests",
                {"paths": ["tests/"]},
                "1 failed, 42 passed\nE   KeyError: 'currency' in billing/reminders.py:31",
            )
        ],
    )
    for number, (words, tool, about, result) in enumerate(_MIDDLE):
        dies = {"dies_in": 0, "pause": 92, "goes_on": ("build-2", 20417)} if number == 9 else {}
        yield Beat((words,), [(tool, about, result)], **dies)  # type: ignore[arg-type] # the three fields above
    wrong = MessageAdded(user("That touches the reminders of last year too. Go back, and leave them alone."))
    yield Beat(
        ("I rewrite the stored reminders as well.",),
        [("run_sql", {"statement": "SELECT count(*) FROM reminders"}, "18,204")],
    )
    yield Beat(("",), [("edit_file", {"path": "jobs/backfill.py"}, "41 lines added")], then=(Rewound(turn=20), wrong))
    yield Beat(
        ("Then only what is sent from now on changes. I take the backfill out of the plan.",),
        [("edit_file", {"path": "docs/plan.md"}, "12 lines removed"), ("run_tests", {"paths": ["tests/"]}, _GREEN)],
    )
    yield Beat(
        ("A dry run against the sandbox: a hundred invoices, each sent twice.",),
        [("run_job", {"job": "month_end", "target": "sandbox", "dry": False}, "200 requests, 100 invoices, 0 doubles")],
    )


_MIDDLE: list[tuple[str, str, dict[str, Any], str]] = [
    ("The reminders build an invoice by hand. I read that.", "read_file", {"path": "billing/reminders.py"}, "…"),
    ("", "edit_file", {"path": "billing/reminders.py"}, "3 lines changed"),
    ("", "run_tests", {"paths": ["tests/test_reminders.py"]}, "11 passed in 6.02s"),
    ("And the job at the end of the month.", "read_file", {"path": "jobs/month_end.py"}, "…"),
    ("It retries five times, without a key.", "edit_file", {"path": "jobs/month_end.py"}, "7 lines changed"),
    ("", "run_tests", {"paths": ["tests/"]}, _GREEN),
    (
        "v2 answers 409 for a key it knows. I check that this is taken for success.",
        "search_code",
        {"text": "409"},
        "none",
    ),
    ("", "edit_file", {"path": "billing/invoices.py"}, "4 lines added"),
    ("", "edit_file", {"path": "tests/test_invoices.py"}, "12 lines added"),
    ("", "run_tests", {"paths": ["tests/"]}, _GREEN),
    ("The types next.", "run_command", {"command": "mypy billing jobs"}, "Success: no issues found"),
    ("", "run_command", {"command": "ruff check ."}, "All checks passed!"),
    ("", "read_file", {"path": "deploy/billing.yaml"}, "…"),
    ("", "edit_file", {"path": "deploy/billing.yaml"}, "2 lines changed"),
    ("", "read_file", {"path": "docs/plan.md"}, "…"),
    ("", "edit_file", {"path": "docs/plan.md"}, "18 lines added"),
]
