"""`CacheManager` lists, reads, saves and deletes the tasks of Stirrup agents in a store. A task is one prompt and all
the work for it. Stirrup (another agent library) keeps tasks in a cache; Clew keeps each as a thread."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from clew.checkpointers import Checkpointer, HeadQuery, open_checkpointer
from clew.checkpointers.base import is_absent
from clew.errors import InvalidInput, ThreadNotFound
from clew.log import Checkpoint
from clew.threads import Thread
from clew.threads.heads import is_child
from clew.workspace import Workspace

__all__ = ["CacheManager", "check_known", "compute_task_hash", "forget", "thread_of"]

T = TypeVar("T")

_PREFIX = "stirrup:"
"""The beginning of the ids of all threads that hold a task; the task's hash follows."""
_HASH_LENGTH = 12
_INSTEAD = {
    "cache_base_dir": "it is called checkpointer here, and takes the URL of a store, such as 'file:///absolute/folder'",
    "clear_on_success": "it belongs to the session: agent.session(clear_on_success=False)",
}


def compute_task_hash(init_msgs: str) -> str:
    """Return the hash by which the task of the prompt `init_msgs` is known. The same prompt always gives the same hash,
    and this is the one that Stirrup computes, so that an imported task keeps its hash. Raises `InvalidInput` if the
    prompt is empty or not a text."""
    if not isinstance(init_msgs, str) or not init_msgs.strip():
        raise InvalidInput(
            f"a task is a prompt, a text that is not empty, and not {init_msgs!r}. To begin with several messages, save "
            "them with CacheManager().save_state and resume, or use clew.Agent."
        )
    return hashlib.sha256(init_msgs.encode("utf-8", "replace")).hexdigest()[:_HASH_LENGTH]


def thread_of(task_hash: str) -> str:
    """Return the id of the thread that holds the task with this hash. A task is one prompt of a Stirrup agent and all
    the work for it. Raises `InvalidInput` if the hash is empty or not a text."""
    if not isinstance(task_hash, str) or not task_hash:
        raise InvalidInput(f"a task hash is a text such as {compute_task_hash('a prompt')!r}, and not {task_hash!r}")
    return f"{_PREFIX}{task_hash}"


def check_known(what: str, unknown: Collection[str], instead: Mapping[str, str]) -> None:
    """Raise `InvalidInput` if a call gave arguments that do not exist: `unknown` are their names, and `what` is the
    name of what was called. `instead` says, for some arguments that exist in Stirrup (another agent library), what to
    use in Clew; the error quotes it."""
    for name in sorted(unknown):
        hint = instead.get(name, "neither Stirrup's documents nor Clew know it")
        raise InvalidInput(f"{what} has no argument {name}=: {hint}.")


async def forget(store: Checkpointer, thread_id: str) -> None:
    """Delete a thread and the threads of its sub-agents, if the store has them. Raises `ThreadBusy` if a live process
    works on one of these threads."""
    if is_absent(store) or await store.head(thread_id) is None:
        return
    children = [head.thread_id async for head in store.heads(HeadQuery(parent=thread_id)) if is_child(head)]
    async with Thread.open(store, thread_id) as thread:
        await thread.delete()
    for child in children:
        await forget(store, child)


class CacheManager:
    """Lists and manages the tasks of Stirrup agents in a store. A task is one prompt and all the work for it. The
    methods block until they are done, so a script can call them anywhere.

    What Stirrup calls a cache is a thread of Clew here. The id of the thread is `stirrup:` and the task's hash. The
    thread is written as the agent works, so it is there after a kill too. `clew ls`, `clew show` and all other commands
    work on it.
    """

    def __init__(self, *, checkpointer: str | None = None, **unknown: Any) -> None:
        """`checkpointer` is the URL of the store that the agents use; by default the URL in the environment variable
        `CLEW_STORE`, or a local file. Any argument in `unknown` raises `InvalidInput`."""
        check_known("CacheManager", unknown, _INSTEAD)
        if checkpointer is not None and not isinstance(checkpointer, str):
            raise InvalidInput(
                f"checkpointer={checkpointer!r} is not the URL of a store, such as 'sqlite:///clew.db'. This manager opens "
                "the store for each call, because its methods block."
            )
        self._url = checkpointer

    def list_caches(self) -> list[str]:
        """Return the hashes of all tasks that the store holds, those that were changed last first."""

        async def listed(store: Checkpointer) -> list[str]:
            found = Thread.list(store, HeadQuery(prefix=_PREFIX))
            return [head.thread_id.removeprefix(_PREFIX) async for head in found if not is_child(head)]

        return self._on_store(listed, [])

    def get_cache_info(self, task_hash: str) -> dict[str, Any] | None:
        """Return a dict with what is on record of a task, or None if the store does not have the task.

        The keys are Stirrup's: `task_hash`; `turn`, the number of responses of the model in the conversation;
        `timestamp`, when the task was changed last; `agent_name`; `has_files`. In addition there is `status`:
        `interrupted`, `failed`, `waiting`, `running` or `done`.
        """

        thread_id = thread_of(task_hash)

        async def info(store: Checkpointer) -> dict[str, Any] | None:
            head = await store.head(thread_id)
            if head is None:
                return None
            state = await Thread.load(store, thread_id)
            return {
                "task_hash": task_hash,
                "turn": state.turns,
                "timestamp": head.updated_at.isoformat(),
                "agent_name": state.agent,
                "has_files": state.workspace is not None,
                "status": state.status,
            }

        return self._on_store(info, None)

    def clear_cache(self, task_hash: str) -> None:
        """Delete a task from the store. Does nothing if the store does not have it. Raises `ThreadBusy` if an agent works
        on it now."""
        thread_id = thread_of(task_hash)
        self._on_store(lambda store: forget(store, thread_id), None)

    def load_state(self, task_hash: str) -> Checkpoint | None:
        """Return the state of a task, or None if the store does not have it. The state has the conversation in
        `messages`, and what tools recorded about each turn in `metadata`."""

        thread_id = thread_of(task_hash)

        async def load(store: Checkpointer) -> Checkpoint | None:
            try:
                return await Thread.load(store, thread_id)
            except ThreadNotFound:
                return None

        return self._on_store(load, None)

    def save_state(self, task_hash: str, state: Checkpoint, exec_env_dir: str | os.PathLike[str] | None = None) -> None:
        """Make `state` the state of a task. With `exec_env_dir`, the files of that folder become the task's files.

        An agent saves its work by itself: use this method to change a conversation, or to begin one with several
        messages. Only what differs from the stored state is written. Raises `InvalidInput` if a part of the state
        cannot be recorded, and `ThreadBusy` if an agent works on the task now.
        """
        thread_id = thread_of(task_hash)
        folder = None if exec_env_dir is None else Path(exec_env_dir)
        if folder is not None and not folder.is_dir():
            raise InvalidInput(f"exec_env_dir={str(folder)!r} is not a folder, so there are no files to save.")

        async def save(store: Checkpointer) -> None:
            async with Thread.open(store, thread_id) as thread:
                await thread.save(state)
                if folder is not None:
                    await thread.append((await Workspace(folder, store).snapshot()).entry())

        self._on_store(save, None, makes=True)

    def restore_files(self, task_hash: str, dest_dir: str | os.PathLike[str]) -> bool:
        """Copy the files that were recorded with a task (a prompt and all work for it) into the folder `dest_dir`,
        which is made if it does not exist. Other files in the folder stay; those with the same name are replaced.
        Returns True, or False if the store does not have the task or any record of its files."""
        thread_id, target = thread_of(task_hash), Path(dest_dir)

        async def restore(store: Checkpointer) -> bool:
            if await store.head(thread_id) is None:
                return False
            files = (await Thread.load(store, thread_id)).workspace
            if files is None:
                return False
            with tempfile.TemporaryDirectory() as folder:
                await Workspace(folder, store).restore(files)
                await asyncio.to_thread(shutil.copytree, folder, target, symlinks=True, dirs_exist_ok=True)
            return True

        return self._on_store(restore, False)

    def _on_store(self, work: Callable[[Checkpointer], Awaitable[T]], absent: T, *, makes: bool = False) -> T:
        """Open the store, call `work` with it, close the store, and return what `work` has returned. If the store does
        not exist yet, return `absent` and make nothing, unless `makes` is set."""

        async def opened() -> T:
            async with open_checkpointer(self._url) as store:
                return absent if is_absent(store) and not makes else await work(store)

        return _blocking(opened())


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine `work` to its end and return its result. If an event loop is already running in this OS thread,
    `work` runs in another OS thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
