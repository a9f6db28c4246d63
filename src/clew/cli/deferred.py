"""Gives commands the names of modules that they need only when they run, and not for their help. Each module is
imported when one of its names is first used.

To print a command's help, or to complete its words in a shell, only its signature is needed. If these modules were
imported for that, it would take more than twice as long: `asyncio`, the stores and the threads take as long as Python,
Typer and the signature together.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "agent_questions",
    "agent_rewind",
    "agent_settings",
    "agent_trust",
    "agent_workspace",
    "asyncio",
    "checkpointers",
    "entry_lines",
    "exchanges",
    "handles",
    "importers",
    "leases",
    "live",
    "log",
    "maintenance",
    "messages",
    "msgspec",
    "opensearch",
    "prompts",
    "provider_registry",
    "provider_settings",
    "providers",
    "render",
    "rich_text",
    "sealed",
    "store_base",
    "store_registry",
    "thread_copy",
    "thread_fork",
    "thread_heads",
    "thread_inbox",
    "thread_purge",
    "thread_reader",
    "thread_search",
    "thread_sketch",
    "thread_totals",
    "timeline_stream",
    "timelines",
    "way_forward",
    "worker_places",
    "worker_retries",
    "workers",
    "workspace_compare",
    "workspace_reader",
    "workspaces",
]

if TYPE_CHECKING:
    import asyncio as asyncio

    import msgspec as msgspec
    from rich import text as rich_text

    from clew import checkpointers as checkpointers
    from clew import log as log
    from clew import messages as messages
    from clew import providers as providers
    from clew import workers as workers
    from clew import workspace as workspaces
    from clew.agent import exchanges as exchanges
    from clew.agent import handles as handles
    from clew.agent import prompts as prompts
    from clew.agent import questions as agent_questions
    from clew.agent import rewind as agent_rewind
    from clew.agent import settings as agent_settings
    from clew.agent import trust as agent_trust
    from clew.agent import way_forward as way_forward
    from clew.agent import workspace as agent_workspace
    from clew.checkpointers import base as store_base
    from clew.checkpointers import live as live
    from clew.checkpointers import registry as store_registry
    from clew.checkpointers import sealed as sealed
    from clew.checkpointers.opensearch import store as opensearch
    from clew.compat import importers as importers
    from clew.providers import registry as provider_registry
    from clew.providers import settings as provider_settings
    from clew.threads import heads as thread_heads
    from clew.threads import inbox as thread_inbox
    from clew.threads import leases as leases
    from clew.threads import maintenance as maintenance
    from clew.threads import reader as thread_reader
    from clew.threads import sketch as thread_sketch
    from clew.threads.ops import copy as thread_copy
    from clew.threads.ops import fork as thread_fork
    from clew.threads.ops import purge as thread_purge
    from clew.threads.views import entries as entry_lines
    from clew.threads.views import render as render
    from clew.threads.views import search as thread_search
    from clew.threads.views import timeline as timelines
    from clew.threads.views import timeline_stream as timeline_stream
    from clew.threads.views import totals as thread_totals
    from clew.workers import places as worker_places
    from clew.workers import retries as worker_retries
    from clew.workspace import compare as workspace_compare
    from clew.workspace import reader as workspace_reader
else:

    class _Deferred:
        """Stands for a module until one of its names is used, and imports it then."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._module), name)

    agent_questions = _Deferred("clew.agent.questions")
    agent_rewind = _Deferred("clew.agent.rewind")
    agent_settings = _Deferred("clew.agent.settings")
    agent_trust = _Deferred("clew.agent.trust")
    agent_workspace = _Deferred("clew.agent.workspace")
    asyncio = _Deferred("asyncio")
    checkpointers = _Deferred("clew.checkpointers")
    entry_lines = _Deferred("clew.threads.views.entries")
    exchanges = _Deferred("clew.agent.exchanges")
    handles = _Deferred("clew.agent.handles")
    importers = _Deferred("clew.compat.importers")
    leases = _Deferred("clew.threads.leases")
    live = _Deferred("clew.checkpointers.live")
    log = _Deferred("clew.log")
    maintenance = _Deferred("clew.threads.maintenance")
    messages = _Deferred("clew.messages")
    msgspec = _Deferred("msgspec")
    opensearch = _Deferred("clew.checkpointers.opensearch.store")
    prompts = _Deferred("clew.agent.prompts")
    provider_registry = _Deferred("clew.providers.registry")
    rich_text = _Deferred("rich.text")
    provider_settings = _Deferred("clew.providers.settings")
    providers = _Deferred("clew.providers")
    render = _Deferred("clew.threads.views.render")
    sealed = _Deferred("clew.checkpointers.sealed")
    store_base = _Deferred("clew.checkpointers.base")
    store_registry = _Deferred("clew.checkpointers.registry")
    thread_copy = _Deferred("clew.threads.ops.copy")
    thread_fork = _Deferred("clew.threads.ops.fork")
    thread_heads = _Deferred("clew.threads.heads")
    thread_inbox = _Deferred("clew.threads.inbox")
    thread_purge = _Deferred("clew.threads.ops.purge")
    thread_reader = _Deferred("clew.threads.reader")
    thread_search = _Deferred("clew.threads.views.search")
    thread_totals = _Deferred("clew.threads.views.totals")
    thread_sketch = _Deferred("clew.threads.sketch")
    timelines = _Deferred("clew.threads.views.timeline")
    timeline_stream = _Deferred("clew.threads.views.timeline_stream")
    way_forward = _Deferred("clew.agent.way_forward")
    worker_places = _Deferred("clew.workers.places")
    worker_retries = _Deferred("clew.workers.retries")
    workers = _Deferred("clew.workers")
    workspace_compare = _Deferred("clew.workspace.compare")
    workspace_reader = _Deferred("clew.workspace.reader")
    workspaces = _Deferred("clew.workspace")
