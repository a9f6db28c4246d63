"""Written by `python -m tests.sync.stub`; a test holds it against the async originals."""

import os
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Generic, Literal, Self

from opensearchpy import AsyncOpenSearch

from clew.agent.events import Event, Question
from clew.agent.run import Drain, Emit, T
from clew.agent.run import RunResult as RunResult
from clew.agent.settings import Budget as Budget
from clew.agent.settings import Folder, Overflow
from clew.agent.trajectory import Trajectory
from clew.checkpointers import Head, HeadQuery
from clew.checkpointers.heads import Status
from clew.checkpointers.live import Delta, LiveEvent
from clew.checkpointers.marks import Marks
from clew.checkpointers.objects.oci import Auth
from clew.checkpointers.sqlite.backup import Backup
from clew.errors import LeaseLost
from clew.log import Logged, Present
from clew.log.checkpoint import Checkpoint as Checkpoint
from clew.log.keys import Keyring
from clew.messages.dialects import Loss
from clew.models import Model, Price
from clew.threads.inbox import Post
from clew.threads.leases import Takeover
from clew.threads.ops.copy import Copied
from clew.threads.ops.export import Exported, File
from clew.threads.ops.gc import Collected
from clew.threads.ops.prune import Pruned
from clew.threads.ops.purge import Purged
from clew.threads.ops.rekey import Rekeyed
from clew.threads.ops.verify import Verdict
from clew.threads.redact import Redact
from clew.threads.thread import Durability
from clew.tools import AnyTool
from clew.tools.context import ToolContext as ToolContext
from clew.tools.decorator import tool as tool
from clew.tools.signals import ToolError as ToolError
from clew.workspace.compare import Difference
from clew.workspace.manifest import Limits, Progress
from clew.workspace.manifest import SnapshotRef as SnapshotRef
from clew.workspace.reader import Ref
from clew.workspace.restore import Restored

__all__ = [
    "Agent",
    "Budget",
    "Checkpoint",
    "Checkpointer",
    "FileCheckpointer",
    "HTTPCheckpointer",
    "MemoryCheckpointer",
    "MySQLCheckpointer",
    "OCICheckpointer",
    "ObjectCheckpointer",
    "OpenSearchCheckpointer",
    "OracleCheckpointer",
    "PostgresCheckpointer",
    "RedisCheckpointer",
    "Run",
    "RunResult",
    "SQLiteCheckpointer",
    "SealedCheckpointer",
    "Session",
    "SnapshotRef",
    "Thread",
    "ToolContext",
    "ToolError",
    "Workspace",
    "__version__",
    "open_checkpointer",
    "tool",
]

class Agent:
    """Runs a conversation between a model and tools. Each step is on record before the next one depends on it.

        agent = Agent("anthropic:claude-opus-4-7", tools=[send_invoice], checkpointer="sqlite:///clew.db")
        result = agent.run("Send the invoices of May.", thread_id="user-42")

    If the process is killed at any point, the same call in a new process goes on where it stopped. The model is not asked
    again for a response that is on record, and a tool that must not run twice is not run twice.
    """

    def __init__(
        self,
        model: str | Model | Mapping[str, str] = "",
        *,
        provider: str | Sequence[str] | None = None,
        name: str = "",
        system_prompt: str = "",
        tools: Iterable[AnyTool | Agent | Callable[..., Any]] = (),
        checkpointer: Checkpointer | str | EllipsisType | None = ...,
        workspace: Folder | Callable[[str], Folder] | EllipsisType | None = ...,
        max_turns: int = 50,
        budget: Budget | None = None,
        durability: Durability = "sync",
        snapshot_every: int = 1,
        max_tokens: int | None = None,
        options: Mapping[str, Any] | Sequence[str] | None = None,
        prices: Mapping[str, Price] | None = None,
        output: Any = None,
        finish: bool | AnyTool | Callable[..., Any] = False,
        warn_turns: int = 5,
        context_window: int | None = None,
        compact_at: float | None = 0.8,
        on_overflow: Overflow = "compact",
        restore_files: bool = False,
        redact: Redact | None = None,
        takeover: Takeover = False,
        label: str = "",
        allow_repeats: bool = False,
        handle_signals: bool | Callable[[str], str] = False,
        data_dir: str | os.PathLike[str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        permissions: Literal["read", "edit", "full"] | None = None,
        timeout: float | None = None,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def aclose(self) -> None:
        """Stop all runs, and close the store and the model's connections if this agent opened them. Does nothing in a
        forked child process."""

    def check_thread(self, thread_id: str) -> None:
        """Raise `ThreadNotFound` unless the store has this thread. Creates nothing."""

    @property
    def checkpointer(self) -> Checkpointer:
        """The store in which this agent keeps its threads. Opens it if nothing was run yet; the agent closes it."""

    @property
    def name(self) -> str: ...
    def new_id(self) -> str:
        """Return a new random thread id that begins with the agent's name."""

    def questions(self, thread_id: str) -> list[Question]:
        """Return the questions to a person that a thread waits for. Raises `ThreadNotFound` if there is no such thread."""

    def resume(
        self,
        prompt: str | None = None,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        turns: int | None = None,
        timeout: float | None = None,
    ) -> RunResult:
        """Go on with a thread. `answer` answers the question that the thread asked a person; for several questions, give
        a dict by question id. A `prompt` is asked after that. The other arguments mean the same as for `run`.
        Without a `thread_id`, this resumes the thread that this agent object ran last, in the same folder and store. If
        the object has run none, this resumes the newest thread of an agent with this agent's name, and `RunStarted`, the
        first event, says which. If several such threads are unfinished, raises a `UsageError` that lists them."""

    def resume_session(self, handle: str, *, key: str | bytes | None = None, trust: bool = False) -> Session:
        """Return the session that a handle (the string from `session.resume_handle`) or a thread id names, in any
        process that reaches the store. With a `key`, only a handle that was signed with it is accepted. A store that a
        handle names as a hint is used only with `trust=True`, and only if this agent was given no store.

        A session of a provider can go on here too, with the same conversation, if the store has its thread. If the
        store does not have the thread, the first prompt raises `ThreadNotFound` and creates nothing."""

    def run(
        self,
        prompt: str,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        max_turns: int | None = None,
        turns: int | None = None,
        timeout: float | None = None,
    ) -> RunResult:
        """Ask the agent, on the thread `thread_id` or else a new one. Unfinished work of the thread is finished first.

        With a `prompt_id` the prompt is asked only once on its thread. Given again, the run goes on with that prompt or
        returns its answer, even if other prompts came later. Another id with the same words is a new prompt. Without an
        id, a prompt is new unless the thread's last prompt has the same words and is unfinished, as after a crash: then
        the run goes on with that one.

        If the earlier work waits for a person, this prompt is recorded but not asked yet. The result then has the
        status `waiting`, the open questions, and a `reason` that says so. The prompt is asked after `resume(answer=…)`.
        `max_turns` replaces the agent's own limit for this run. After `timeout` seconds the run is interrupted. After
        `turns` turns it ends too, but the model is not told that it should come to an end, and the next run goes on as
        if nothing had happened."""

    def session(
        self,
        *,
        thread_id: str | None = None,
        resume: bool = False,
        workspace: str | os.PathLike[str] | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        delete_when_done: bool = True,
        keep_when_stopped: bool = True,
    ) -> Session:
        """Return a session, in which several prompts are asked on one thread:

            with agent.session(...) as session:
                session.run(...)

        With `resume=True`, a program that is run again goes on where it stopped: each prompt is recognized by its
        position in the session, and an answer on record is returned at once. Without a `thread_id`, the thread's id is
        then a hash of the agent's name, the first prompt and the folder. Such a thread is deleted when the session is
        left and its last run is done, unless `delete_when_done=False`; with `keep_when_stopped=False` it is also
        deleted if that run was interrupted or failed. Other threads are never deleted. `workspace` (or `output_dir`,
        another name for it) is the folder for the tools of this session, in place of the agent's own."""

    def start_session(self, *, thread_id: str | None = None) -> Session:
        """Return a session on a new thread or, with `thread_id`, on the thread with this id, which is made if it does
        not exist. The session's handle, a string with which any process can continue it, can be taken before the first
        prompt, and works once that prompt is on record."""

    @property
    def store_url(self) -> str:
        """The URL of the store if it was given as a URL; else empty."""

    def stream(
        self,
        prompt: str | None = None,
        *,
        thread_id: str | None = None,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Ask a prompt, on the thread `thread_id` or else a new one, and return a run whose events can be iterated:
        `for event in agent.stream("…")`. The run's `result` is there after the last event. Without a prompt, the
        run resumes the thread, with `answer` if given. The arguments mean the same as for `run` and `resume`."""

    def task_id(self, task: str, *, workspace: str | os.PathLike[str] | None = None) -> str:
        """Return the thread id that `session(resume=True)` makes for a session whose first prompt is `task`. Runs nothing.

        The id contains a hash of the agent's name, the task and the path of the folder. `workspace` is the folder that the
        session is given. Without it, the folder is the agent's own, or else the current one."""

    def trajectory(self, thread_id: str) -> Trajectory:
        """Read what was done on a thread, prompt by prompt. Raises `ThreadNotFound` if the store does not have it."""

class Checkpointer:
    """A store of threads. Each thread has a log, which is a list of frames (bytes that the store never looks inside),
    and a head, which is a small summary. Blobs are larger values, each stored under its digest. A ref is the digest of
    a blob that a thread refers to.

    Every store keeps these promises, and `clew.testing.CheckpointerContract` tests them:

    - **Absent, unreachable and corrupt are three different results.** Absent is `None`, `[]` or an empty set; unreachable
      raises `Unavailable`; corrupt raises `Corrupt`. A store never reports one of them as another.
    - **Every call ends.** Without progress (no answer, no byte) for some seconds, 10 by default in the stores of this
      package, it raises `Unavailable`. That includes the time in which it waits for other calls, and the time in which a
      cancelled append finishes.
    - **Ids** are any text of 1 to 1024 bytes of UTF-8 without NUL. Two different ids never name the same thread.
    - **Namespaces** divide a store. They share nothing, not even blobs.
    - Bad input raises `InvalidInput`. Use after `close`, in a forked child or on a second event loop raises `UsageError`.

    Blobs are deleted only by garbage collection (gc), and only if they were not touched for a grace period. A blob is
    touched when it is put, given as a ref to an append, or asked for with `missing_blobs`. A store connects on first
    use, so constructing one does not need a running server.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def append(
        self, thread_id: str, frames: Sequence[bytes], *, at: int, head: Head, refs: Collection[str] = ()
    ) -> None:
        """Add frames to the end of a thread's log, add refs, and replace its head, in one atomic step. `refs` are the
        digests of the blobs that the frames refer to; `at` is the number of frames before the append.

        - **Durable**: when the call returns, everything written survives a power cut. A partial append is never visible.
        - **Conditional**: the log must have exactly `at` frames, and the id that the head names as `log_id` (random, chosen
          at the first append). Otherwise the call raises `Conflict` and writes nothing. A thread that does not exist has
          0 frames and takes the `log_id` it is given. `at=0` on a log that has frames is a conflict.
        - **Idempotent**: a repeated append is no conflict. If the log with this `log_id` already holds exactly these
          frames at `at`, the call succeeds and changes nothing. So after `Unavailable` the same call can always be
          repeated.
        - **No frames** is a legal append to a thread that exists: it replaces only the head, under the same condition.
        - **A broken connection**: the store may repeat the append by itself within the call. So `Conflict` says that the
          append is not in the log when the call ends. It may have been there until another call deleted the thread or
          replaced the head. An append without frames may replace the head twice. An append that creates a thread may
          create it again if another call deletes the thread before the append has ended.
        - A ref to a blob that the store does not have raises `MissingBlob`, and nothing is written. Each ref touches its
          blob: the blob's time of last use is set to now.
        - **Cancelling** an awaited append does not abandon it: the append finishes first, then the cancellation is raised."""

    def blobs(self, *, untouched_for: timedelta) -> Iterator[str]:
        """Yield the digests of blobs that were not touched for at least this time. A blob is touched when it is put,
        given as a ref to an append, or asked for with `missing_blobs`.

        Garbage collection then reads `heads`, and deletes the yielded blobs to which no listed thread refers. So if a
        store lists threads from an index apart from the threads themselves, this method first makes sure that no thread
        is missing from the index, and raises an error if it cannot."""

    def close(self) -> None:
        """Wait for calls under way, then close files and connections. Closing twice does nothing."""

    def delete(self, thread_id: str) -> None:
        """Delete a thread: its log, its head and its references to blobs. When the call returns, the deletion survives
        a power cut. The blobs themselves stay until garbage collection deletes them. Does nothing if the thread does
        not exist."""

    def delete_blobs(self, digests: Collection[str], *, untouched_for: timedelta) -> None:
        """Delete these blobs, except those that were touched within the time `untouched_for`, counted back from now. A
        blob is touched when it is put, given as a ref to an append, or asked for with `missing_blobs`. So a blob that
        is touched after the method `blobs` has listed it stays."""

    def get_blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        """Return the stored blobs by digest. Blobs that the store does not have are left out. Raises `Corrupt` if stored
        bytes do not match their digest."""

    def head(self, thread_id: str) -> Head | None:
        """Return the head that the last append wrote, or None if the thread does not exist."""

    def heads(self, query: HeadQuery = ...) -> Iterator[Head]:
        """Yield the heads that match the query, sorted by the time that `query.order` names, newest first;
        in the order `due`, earliest first.

        While others write, these promises hold:

        - Each thread is yielded at most once.
        - A thread that exists and matches during the whole listing is yielded, even if it is written meanwhile.
        - Each head that is yielded was written by an append, and matches the query. If the thread is written during the
          listing, its head may be the one from before or the one from after.
        - **With a limit**, all heads are in order. So `query.after(last)`, where `last` is the last head of a page,
          goes on right after that page: no thread is in two pages, and a thread that is not written meanwhile is in
          one. A thread that is written between two pages moves to the front in the order `updated`, and may then be in
          neither page; in the order `created`, no thread is missed. In the order `due`, a thread that is queued again or
          whose lease is renewed between two pages may be in neither page, too.
        - **Without a limit**, a store may read the heads in parts, each of 500 or more and each in order. A thread that
          is written meanwhile may come in a later part than its new time would put it. All other heads are in order.
        - **In the order `due`**, a listing costs in proportion to the queued threads that it looks at, and not to all
          threads: workers ask for it about once a second.

        A damaged head raises `Corrupt`, where possible only after all sound heads have been yielded."""

    @property
    def is_hasty(self) -> bool: ...
    @property
    def keys(self) -> Keyring | None:
        """The keys that encrypt threads in this store; None if they are not encrypted. Frames and blobs are encrypted
        before they are given to the store, which never looks inside them. `SealedCheckpointer` gives a store its keys."""

    def missing_blobs(self, digests: Collection[str]) -> set[str]:
        """Return the digests of the given blobs that the store does not have. The blobs that it has are touched: their
        time of last use is set to now, so that garbage collection spares them for its grace period."""

    @property
    def own_files(self) -> tuple[Path, ...]: ...
    @property
    def place(self) -> str: ...
    def put_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Store blobs under their digests. When the call returns, they survive a power cut. Raises `InvalidInput` and
        stores nothing if a digest is not the blake3 of its bytes. A blob that is already stored is touched: its time of
        last use is set to now."""

    def read(self, thread_id: str, *, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Return the frames from number `start` up to, not including, `stop`, in order; without `stop`, up to the end
        of the log. Frames are numbered from 0; numbers past the end are ignored. Returns an empty list if the thread
        does not exist."""

    def refs(self, thread_id: str) -> set[str]:
        """Return the digests of all blobs that this thread refers to: all that were given as `refs` to its appends.
        Returns an empty set if the thread does not exist."""

class FileCheckpointer(Checkpointer):
    """A store in a folder of plain files, which can be copied and backed up with ordinary tools.

    Each append is one write and one sync of the thread's own file. Several processes may use one folder; a lock on each file
    makes its writers wait for each other. An append that a crash cut short is ignored by readers and removed by the next
    append. Damaged bytes raise `Corrupt` and are never removed. `timeout` is how many seconds a call waits while another
    process has locked a file and writes nothing to it.
    """

    def __init__(self, path: str | os.PathLike[str], namespace: str = "", *, timeout: float = 10.0) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> FileCheckpointer:
        """Open the folder that the URL names: `file:///absolute/dir` or `file:relative/dir`, perhaps with
        `?timeout=30`. The path is used as written, so `%20` is not decoded. Raises `InvalidInput` for a URL of any other
        form."""

class HTTPCheckpointer(Checkpointer):
    """Keeps threads in the store behind a server that runs `clew serve`, within the namespace that belongs to the
    token. It also passes live events on (`LiveChannel`): words of a response while a model writes it.

    `token`, by default the value of the environment variable `CLEW_TOKEN`, is sent with every call and never shown.
    Appends, reads and puts that get no answer are repeated up to `retries` times, because that does no harm; deletes
    are not repeated. A call without progress for `timeout` seconds, 10 by default, raises `Unavailable`; `timeout` may
    also be an option of the URL. `tls` replaces the default TLS settings, which trust the authorities that the system
    trusts.

    The size of an answer is limited: a blob may have `max_blob` bytes (256 MiB by default), a frame 4 MiB, a head 1
    MiB, the list of a thread's refs 128 MiB. If a server sends more, the call raises `Unavailable`.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        token: str | None = None,
        timeout: float | None = None,
        retries: int = 3,
        tls: ssl.SSLContext | None = None,
        max_blob: int = 268435456,
    ) -> None: ...
    def follow(self, thread_id: str, *, after: int = -1, log_id: str = "") -> Iterator[LiveEvent]:
        """Yield live events of a thread: `Changed` at once and after each change, and deltas as they come. Ends if the
        thread is gone or is another than the one with this `log_id`; empty is any.

        `after` is the number of the last frame that the caller knows. Raises `Unavailable` when the connection breaks:
        look at the thread, then call this again. Raises `NoLiveEvents` if the service does not know live events."""

    @staticmethod
    def from_url(url: str, namespace: str = "") -> HTTPCheckpointer:
        """Open the store at a URL of the form `http://host:port` or `https://host:port/base?timeout=30`, where the path
        `/base` is put before all paths of requests; or, at a unix socket, `http://localhost?socket=/path`. The token
        comes from the environment variable `CLEW_TOKEN`."""

    def publish(self, thread_id: str, deltas: Sequence[Delta]) -> int:
        """Pass pieces of a response on to those who follow the thread now, and return how many they are. Nothing is
        stored, and nothing is tried again. Raises `NoLiveEvents` if the service does not know live events, and
        `Unavailable` if it cannot be reached."""

class MemoryCheckpointer(Checkpointer):
    """A store in the memory of this process, for tests, notebooks and short-lived work. It is lost when the process
    ends.

    `beside` is another memory checkpointer whose threads and blobs the new one shares, as two connections to one server
    share its data.
    """

    def __init__(self, namespace: str = "", *, beside: MemoryCheckpointer | None = None) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> MemoryCheckpointer: ...

class MySQLCheckpointer(Checkpointer):
    """Keeps threads in tables of one MySQL or MariaDB database. The tables are created on first use.

    An append is one round trip and one transaction. It takes two or more round trips if it names blobs, or has more
    than 16 frames or 256 KiB. Appends that many asyncio tasks make at the same time share a transaction. All
    checkpointers of one event loop on the same store share connections. An append is durable once it returns if the
    server has `innodb_flush_log_at_trx_commit` at 1, its default; otherwise a warning is logged. If the server
    restarts, calls wait for it. A call without progress for `timeout` seconds raises `Unavailable`.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        prefix: str | None = None,
        connections: int | None = None,
        timeout: float | None = None,
    ) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> MySQLCheckpointer:
        """Open the store at a URL of the form `mysql://user:password@host:3306/database?prefix=clew_&connections=8`.

        For TLS add `ssl=true`, and `ssl_ca`, `ssl_cert`, `ssl_key` or `ssl_verify` where needed. `unix_socket=path`
        connects to a Unix socket instead of the host."""

class OCICheckpointer(Checkpointer):
    """A store in a bucket of OCI Object Storage. The URL is `oci://namespace/bucket/prefix`.

    The namespace in the URL is the tenancy's Object Storage namespace; the argument `namespace` is Clew's own, which
    keeps the threads of several users of one store apart. `auth` selects the credentials: `config` takes them from a
    profile of the SDK's configuration file; `instance` and `resource` use the principal that OCI gives to the machine
    or the function in which this runs. Alternatively pass a configured `ObjectStorageClient` as `client`. A call
    without progress for `timeout` seconds, 10 by default, raises `Unavailable`. The progress of an upload cannot be
    seen, so it gets one more second for each MiB.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        auth: Auth = "config",
        profile: str = "DEFAULT",
        config_file: str = "~/.oci/config",
        region: str | None = None,
        endpoint: str | None = None,
        timeout: float | None = None,
        client: Any = None,
    ) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> OCICheckpointer:
        """Open the bucket that the URL names, for example
        `oci://namespace/bucket/prefix?auth=instance&region=eu-frankfurt-1`. Further options are `profile`,
        `config_file`, `endpoint` and `timeout`. The namespace in the URL is Oracle's name for the tenancy's storage; the
        argument `namespace` is Clew's own, which keeps the threads of several users of one store apart."""

class ObjectCheckpointer(Checkpointer):
    """A store in a bucket of S3, Google Cloud Storage or Azure, through the package obstore.

    The URL is `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. Each append is one conditional
    put: a write that is refused if the object has changed. On first use the bucket is tested: a server that ignores the
    conditions of a put, as some S3-compatible servers do, raises `InvalidInput`.

    Credentials are given as arguments, or come from the environment variables of the cloud's own tools or the machine's
    metadata service. `endpoint` is the address of a server other than the cloud's own. Plain http is allowed only to this
    machine, unless `allow_http=True`. `options` are passed unchanged to obstore's `S3Store`, `GCSStore` or `AzureStore`.
    A call without progress for `timeout` seconds, 10 by default, raises `Unavailable`. The progress of an upload
    cannot be seen, so it gets one more second for each MiB.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        account: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        virtual_hosted: bool | None = None,
        allow_http: bool | None = None,
        timeout: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> ObjectCheckpointer:
        """Open the bucket that the URL names, for example
        `s3://bucket/prefix?endpoint=http://127.0.0.1:8333&region=us-east-1`.

        Options are `endpoint`, `region`, `account`, `virtual_hosted`, `allow_http` and `timeout`. Keys in the URL raise
        `InvalidInput`, because URLs end up in logs and process lists; keys come from the environment."""

class OpenSearchCheckpointer(Checkpointer):
    """A store in an OpenSearch cluster, version 2.4 or later.

    The URL is `opensearch://[user:password@]host[:9200][/index-prefix]`. Options are given in the URL or as arguments;
    arguments take precedence:

    - `prefix`: start of the names of the three indices, `clew` by default. In the URL it is the path.
    - `tls=true` uses HTTPS; `ca_file` has the certificates to trust; `verify=false` trusts any. A password is sent to
      another machine without TLS only with `tls=false`.
    - `timeout`: seconds without progress after which a call raises `Unavailable`, 10 by default.
    - `shards` and `replicas` of the indices when they are created. The default is 1 shard, and 1 replica if there is a
      second node.
    - `index_messages=true` allows `index_text`.
    - `client`: an `opensearchpy.AsyncOpenSearch` to use, for several hosts or for signed requests, as Amazon's service
      needs them. The client is not closed with the checkpointer. It should not retry conditional writes, but if it
      does, nothing is lost.

    An acknowledged append is durable, because the cluster syncs its write-ahead log, the translog, for each request.
    Indices with `index.translog.durability: async` are refused on first use. Reads get documents by id and see every
    write. Listings and searches refresh the index first, so that they see everything appended before; appends never
    wait for a refresh.

    An append checks that the blobs it refers to exist, and sets their time of last use to now, in a request before the
    write. Garbage collection spares a blob for a grace period after its last use, so that period must be longer than an
    append takes.
    """

    def __init__(
        self,
        url: str = "opensearch://localhost:9200",
        namespace: str = "",
        *,
        prefix: str | None = None,
        tls: bool | None = None,
        ca_file: str | None = None,
        verify: bool | None = None,
        timeout: float | None = None,
        shards: int | None = None,
        replicas: int | None = None,
        index_messages: bool | None = None,
        client: AsyncOpenSearch | None = None,
    ) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> OpenSearchCheckpointer:
        """Open a store in the cluster that the URL names, for example
        `opensearch://user:password@host:9200/prefix?tls=true&ca_file=/etc/ssl/ca.pem`."""

    def index_text(self, thread_id: str, text: str) -> None:
        """Set the text by which `search` finds this thread, for example its messages. Replaces the text of an earlier
        call.

        The store cannot take the text from the frames itself, because they are opaque to it. The text is stored
        unencrypted and is deleted with the thread. Raises `UsageError` if the store was opened without
        `index_messages=True` or the thread is encrypted, and `ThreadNotFound` if there is no such thread."""

    def search(self, text: str, *, limit: int = 20) -> list[Head]:
        """Return the heads of at most `limit` threads, best matches first. A thread matches if at least one word of
        this text is in its title or in the text that was given to `index_text`. Raises `InvalidInput` for an empty
        text, or if `limit` is not from 1 to 1000. Only the OpenSearch store has this method."""

class OracleCheckpointer(Checkpointer):
    """Keeps threads in the tables of one user of an Oracle Database, 12c or later. The tables are created on first use.

    An append is one PL/SQL block and one round trip, or three round trips with more than 32 KB of frames. If a
    connection breaks, a new one is opened and the call is repeated once; if that fails too, it raises `Unavailable`. A
    round trip that takes longer than `timeout` seconds raises `Unavailable` too.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        prefix: str | None = None,
        connections: int | None = None,
        timeout: float | None = None,
    ) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> OracleCheckpointer:
        """Open the store at a URL of the form `oracle://user:password@host:1521/service`.

        With a wallet: `oracle://user:password@/?dsn=alias&config_dir=…&wallet_location=…`. Other options are `prefix`
        (the start of the names of all tables), `connections` (the most connections), `timeout` (the seconds without
        progress after which a call fails), and the driver's `protocol=tcps`, `wallet_password` and
        `ssl_server_dn_match`. `namespace` selects a separate part of the store."""

class PostgresCheckpointer(Checkpointer):
    """Keeps threads in one schema of a PostgreSQL database. The schema is created on first use.

    An append is one round trip and one transaction. Its `synchronous_commit` is on, even if the server's default is
    off. Appends that many asyncio tasks make at the same time share a transaction. All checkpointers of one event loop
    on the same store share connections. No state is kept in a database session, so a pooler in transaction mode may
    stand between Clew and the server. If the server restarts, calls wait for it. A call without progress for `timeout`
    seconds raises `Unavailable`.
    """

    def __init__(
        self,
        url: str,
        namespace: str = "",
        *,
        schema: str | None = None,
        connections: int | None = None,
        timeout: float | None = None,
    ) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> PostgresCheckpointer:
        """Open the store at a URL of the form `postgresql://user:password@host:5432/database?schema=clew`. All options
        of libpq (PostgreSQL's client library) may be added to the URL. `namespace` selects a separate part of the
        store."""

    def hear(self) -> Iterator[None]:
        """Yield once when the connection stands, because something may have been missed before, and then after each
        ring. Raises any error when the connection breaks. Ends by itself if the bell cannot be heard from here."""

    def ring(self) -> None:
        """Tell all who listen now. May raise any error, or tell nobody."""

class RedisCheckpointer(Checkpointer):
    """Keeps threads in a Redis or Valkey server, or in a cluster of them.

    The URL is `redis://[user:password@]host[:6379][/db]`, or `rediss://` for TLS. These options may be in the URL or given
    as arguments; arguments override the URL:

    - `prefix`: the start of all keys, default `clew:`. It separates this store from others in the same database.
    - `ttl`: seconds without an append after which a thread is deleted. An append through a checkpointer without a `ttl`
      makes the thread permanent. Blobs do not expire, because an append cannot renew blobs that it does not name, such as
      those that other blobs point at. gc (garbage collection) removes the blobs that expired threads leave behind.
    - `cluster=true`: the server is part of a cluster. Clew asks it for the addresses of the others.
    - `wait_replicas`: an append, with the blobs it needs, returns only once this many replicas have it, and raises
      `Unavailable` if they do not confirm that in time.
    - `timeout`: seconds without progress after which a call raises `Unavailable`, default 10.

    How durable an append is depends on the server's settings. `appendonly yes` and `appendfsync always` keep the promise
    of `Checkpointer.append`. With other settings, a warning says once what to change.

    An append first checks that the blobs it names exist, and marks them as just used. This is a step of its own, because
    blobs live in other slots of a cluster. gc keeps blobs that were used within a certain time, by default a day, so it
    cannot delete such a blob in between as long as the append takes less time than that.

    The lists by which threads are listed are Redis keys of their own. If one is lost, the next call of `heads` makes it
    again from the keys of the threads. gc does not rely on these lists alone: before it deletes blobs, all keys of
    the server are looked through for threads.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        namespace: str = "",
        *,
        prefix: str | None = None,
        ttl: float | timedelta | None = None,
        cluster: bool | None = None,
        wait_replicas: int | None = None,
        timeout: float | None = None,
    ) -> None: ...
    @staticmethod
    def from_url(url: str, namespace: str = "") -> RedisCheckpointer:
        """Open the store at a URL of the form `redis://host:6379/0?prefix=clew:&ttl=86400`. Use `rediss://` for TLS and
        `?cluster=true` for a cluster. All keys start with `prefix`, and a thread without appends is deleted after `ttl`
        seconds. `namespace` selects a separate part of the store."""

    def hear(self) -> Iterator[None]:
        """Yield once when the connection stands, because something may have been missed before, and then after each
        ring. Raises any error when the connection breaks. Ends by itself if the bell cannot be heard from here."""

    def ring(self) -> None:
        """Tell all who listen now. May raise any error, or tell nobody."""

class Run(Generic[T]):
    """A run of an agent. Await it for its result, or iterate it for its events. It runs once.

        result = agent.run("Send the invoices.")

        run = agent.stream("Send the invoices.")
        for event in run:
            print(event)
        print(run.result.output)

    Nothing happens before it is awaited or iterated. If it is dropped before that, a warning says that nothing was run.

    A run that is iterated and then dropped, for instance by `break`, is cancelled: it records that it was interrupted,
    gives its lease back, and can be resumed. `run.aclose()` does the same and returns once that is on record. A
    run that is iterated only in part and then awaited goes on to its end.
    """

    def __init__(self, work: Callable[[Emit], Awaitable[T]], drain: Drain | None = None) -> None: ...
    def __iter__(self) -> Iterator[Event]: ...
    def __next__(self) -> Event: ...
    def aclose(self) -> None:
        """Stop the run, and return once everything that it did is on record."""

    def drain(self) -> None:
        """Ask the run to end after its open turn: when the tool calls under way have ended and are on record. Await the
        run for its result, which then has the status `interrupted` and the reason `drained`. A sub-agent that is at work
        ends after its own open turn. The thread goes on with the next run, as if nothing had happened.

        A provider's program cannot be stopped between turns: it works until it has answered its prompt. A run that has
        ended already, or finishes with this turn, is not changed."""

    @property
    def result(self) -> T:
        """The result of a run that has finished. Reading it does not start the run, and does not wait.

        Raises `UsageError` if the run has not finished or was stopped, and the run's own error if it failed."""

class SQLiteCheckpointer(Checkpointer):
    """A store in one SQLite file, in WAL mode with `synchronous = FULL`: an acknowledged append is on the disk.

    All checkpointers that a process opens on the same file with the same `timeout` share one OS thread that writes, so
    appends that are made at the same time share one fsync. Several processes may use the same file. Network file
    systems are refused, because SQLite's WAL is not safe on them. `timeout` is how many seconds a call waits while
    another process has locked the file and writes nothing.
    """

    def __init__(self, path: str | os.PathLike[str], namespace: str = "", *, timeout: float = 10.0) -> None: ...
    def backup(
        self, target: str | os.PathLike[str], progress: Callable[[int, int | None], None] | None = None
    ) -> Backup:
        """Copy the whole store, with all namespaces, to a new file while the store is in use. Returns the path and the
        size of the copy.

        The copy is the store as it was at one moment, and has every append acknowledged before the call. Raises
        `InvalidInput` if `target` exists. `progress` is called from time to time, on another OS thread, with two
        numbers: the pages copied so far, and the pages in total, which are never None here."""

    @staticmethod
    def from_url(url: str, namespace: str = "") -> SQLiteCheckpointer:
        """Open the file that the URL names: `sqlite:///relative.db` or `sqlite:////absolute.db`, perhaps with
        `?timeout=30`, the seconds to wait while another process has locked the file. `namespace` selects a separate
        part of the store. Raises `InvalidInput` for a URL of any other form."""

class SealedCheckpointer(Checkpointer):
    """A store whose threads are encrypted with `keys`. `open_checkpointer` returns one if it is given a key.

    The caller encrypts and decrypts frames and blobs, with `keys`. This class signs heads: each head carries a seal (a
    signature) over all its fields, among them the thread's id, the number of frames, the digest of the last one, the
    log's id and the lease. Every head that is read is checked. A head that was changed without a key raises `Corrupt`;
    a head without a seal raises `NotSealed`, unless the keys allow plain data.

    An older head of the same thread has a valid seal too. So somebody who can write to the store, and kept a copy of
    it, can put back a thread as it once was. Only a record outside the store shows that: `marks`, the newest state that
    this machine has seen of each thread. A thread that is older than its mark raises `Corrupt`.

    Closing this closes `store`.
    """

    def __init__(self, store: Checkpointer, keys: Keyring, *, marks: Marks | None = None) -> None: ...

class Session:
    """Asks an agent several prompts on one thread. Made by `agent.session`, `start_session` and `resume_session`.

    Everything is recorded as it happens, so a session needs no saving. Any process can go on with it from its handle,
    the string in `resume_handle`.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def cancel(self) -> None:
        """Stop the work that is under way, as Ctrl+C does, and return once it is on record that the work was
        interrupted. The session can go on afterwards."""

    def end(self) -> None:
        """The same as `cancel`: stop the work that is under way. The session stays on record, and can be resumed from
        its handle."""

    def handle(
        self, *, key: str | bytes | None = None, expires_in: timedelta | None = None, hints: bool = False
    ) -> str:
        """Return a handle, a string from which any process can go on with this session, with options: signed with
        `key`, refused once `expires_in` has passed, or with `hints`.

        Hints help the process that resumes the session. They are the folder, and the URL of the store without its
        credentials."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What was lost when the session was moved to its present provider: the parts of the conversation that this
        provider could not be given in full."""

    def move_to(self, provider: str, **settings: Any) -> Session:
        """Go on with the whole conversation at another provider. Stops the work that is under way, and returns the
        session to use from now on.

        `settings` are the arguments of `Agent(provider=…)` that are to change. `move_to("clew", model=…)` goes on with
        the built-in agent."""

    @property
    def provider(self) -> str:
        """Who works on the session now: `clew` (the built-in agent) or the name of an outside agent."""

    def resume(
        self,
        prompt: str | None = None,
        *,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> RunResult:
        """Go on with work that was stopped, and then ask the `prompt`, if given. `answer` answers the question that the
        work waits for; for several questions, give a dict by question id. A prompt whose `prompt_id` is on record
        already is not asked again: the session goes on with it or returns its answer.

        `max_turns` replaces the agent's own limit for this run. After `timeout` seconds the run is interrupted. A
        provider's session refuses `answer` and `max_turns`."""

    @property
    def resume_handle(self) -> str:
        """A string from which any process can go on: `agent.resume_session(handle)`.

        It can be taken before the first prompt. Until that prompt is on record, going on from the handle raises
        `ThreadNotFound`. Everybody who has the handle can go on with the conversation, so keep it as you would a
        password."""

    def run(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> RunResult:
        """Ask a prompt, and work until the agent has answered, or for at most `timeout` seconds. With a `prompt_id` the
        prompt is asked only once: if the id is given again, the session goes on with that prompt or returns its answer.
        `run` and `send` are two names for the same method."""

    def send(self, prompt: str, *, prompt_id: str | None = None, timeout: float | None = None) -> RunResult:
        """Ask a prompt, and work until the agent has answered, or for at most `timeout` seconds.

        With a `prompt_id` the prompt is asked once: if the same id is given again, the session goes on with that prompt
        or returns its answer. A prompt with another id is a new one, even if its words are the same."""

    @property
    def session_id(self) -> str:
        """The id of the thread that holds this session. The same as `thread_id`."""

    def stream(
        self,
        prompt: str | None = None,
        *,
        prompt_id: str | None = None,
        answer: Any = None,
        max_turns: int | None = None,
        timeout: float | None = None,
    ) -> Run[RunResult]:
        """Ask a prompt, and return a run whose events can be iterated: `for event in session.stream("…")`. The
        `result` of the run is available after the last event.

        Without a prompt the run goes on with work that was stopped, as `resume` does, and takes the same arguments as
        that method. Raises `UsageError` if `answer` or `max_turns` is given together with a prompt."""

    @property
    def thread_id(self) -> str:
        """The id of the thread that holds this session."""

    def trajectory(self) -> Trajectory:
        """Read from the store what was done so far, prompt by prompt: `(session.trajectory()).exchanges`."""

class Thread:
    """A thread that this process holds: `with Thread.open(checkpointer, "user-42") as thread: ...`

    While it is open, no other process can append to it. Leaving the block gives the lease back. If the process dies,
    another process can take over at once on the same machine. On another machine it can do so once it has seen, for 30
    seconds by its own clock, that the lease is not renewed. A process whose lease was taken over gets `LeaseLost` at its
    next append and changes nothing. If the store is `Unavailable` when the block is left, the thread stays open with all
    its entries: call `flush`, or let the lease expire.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        thread_id: str,
        *,
        takeover: Takeover,
        durability: Durability,
        label: str,
        redact: Redact | None,
        wait: float | None,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def abandon(self) -> None:
        """Close the thread without writing: drop entries that are not durable yet, and let the lease expire.

        For a thread that could not be closed because the store was `Unavailable`. Does nothing if the thread is not
        open."""

    def append(self, *entries: Logged) -> None:
        """Record these entries together, after all earlier ones. The `durability` given to `open` says when they are
        durable.

        After `Unavailable` they are kept and are sent with the next append or `flush`: do not append them again. Raises
        `LeaseLost` if another process has taken over."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The thread's state with everything appended so far, whether it is durable yet or not."""

    @staticmethod
    def copy(
        source: Checkpointer,
        target: Checkpointer,
        thread_id: str,
        *,
        new_id: str | None = None,
        progress: Progress | None = None,
    ) -> Head:
        """Copy one thread to another store, to another namespace (part) of a store, or to another id, and return the head
        of the copy.

        The copy gets the id `new_id`, by default the same id. Its entries and their times do not change.

        - **Hidden until complete.** The copy is written in parts; its last frame makes it visible. Of two copies with the
          same id that are written at once, at most one is completed; the other raises `Conflict`.
        - **Resumable.** Run again after a crash, it continues from what the target has. A finished copy is left alone; a
          copy whose source has grown since is brought up to date. Any other thread of that id raises `Conflict`.
        - **Verified.** Before the copy becomes visible it is read back, all but its last frame, and its entries must give
          the same state as those of the source. The last frame is read back afterwards.
        - **Encrypted again** if the target has another encryption key: reading the copy does not need the source's key. In
          a target with a key, no frame is left unencrypted.

        What was posted to the thread's inbox and is not taken in yet is in the inbox of the copy too, and is asked there.
        A thread that is being worked on is copied as it was when the copy began. Leases are never copied: a running thread
        is interrupted in the copy. `progress` is called with the number of frames copied so far and the number of all
        frames."""

    @staticmethod
    def copy_all(
        source: Checkpointer, target: Checkpointer, query: HeadQuery = ..., progress: Progress | None = None
    ) -> Copied:
        """Copy every thread that the query lists, by default all.

        Run again after a crash or later, it leaves finished copies alone. A thread that cannot be copied is reported in the
        result and does not stop the others. Raises `Unavailable` if a store does not answer. `progress` is called with the
        number of threads done and the number of all threads."""

    def delete(self, *, purge: bool = False) -> None:
        """Delete the thread from the store and close this object.

        With `purge`, also deletes at once the blobs that no other thread needs. Otherwise they stay until the next gc."""

    @property
    def durability(self) -> Durability: ...
    @staticmethod
    def export(
        checkpointer: Checkpointer,
        thread_id: str,
        file: File,
        *,
        plain: bool = False,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> Exported:
        """Write one thread to a `.clew` file: its whole log, its inbox, and every blob they refer to. The file is a tar
        archive.

        Frames are written as they are in the store: an encrypted thread stays encrypted, needs its key for an import, and
        needs no key for the export. With `plain=True` it is decrypted, and anyone who has the file can read it.

        `file` is a path or an open file. A path gets the complete file or nothing: the file is written under another name,
        synced and renamed, and only its owner can read it. If the path exists, `InvalidInput` is raised unless
        `overwrite=True`. The thread is written piece by piece, so it need not fit in memory as a whole. `progress` is
        called with the number of frames and blobs written so far and their total; with `plain=True`, it counts frames only."""

    def fence(self) -> None:
        """Return once the store has confirmed, by an append begun after this call, that this process still holds the
        thread. Raises `LeaseLost` if another process has taken over.

        No process takes the thread within the next 30 seconds, unless it asks for a takeover."""

    def flush(self) -> None:
        """Return once everything appended is durable, whichever durability the thread was opened with."""

    def fork(self, new_id: str, *, at_turn: int | None = None) -> Head:
        """Create the thread `new_id`, which continues from the end of turn `at_turn` of this thread, by default the
        current turn. Returns the new thread's head.

        Raises `Conflict` if a thread with that id exists, and `InvalidInput` if there is no such turn."""

    @staticmethod
    def gc(
        checkpointer: Checkpointer, *, grace: timedelta = ..., dry_run: bool = False, progress: Progress | None = None
    ) -> Collected:
        """Delete the blobs that no thread reaches and that nobody has touched during the grace period.

        `grace` is the length of that period. To touch a blob is to renew the time from which its grace period counts. A
        thread's refs are the blobs that it lists as needed. A tree is a blob that points at others. With `dry_run`, nothing
        is deleted, and the result says what would be.

        Safe while any number of processes write, fork and delete. Why no order of events can delete a blob that a thread
        reaches:

        1. Every writer touches a blob before a thread points at it. `put_blobs` touches it, whether or not it was there;
           `append` touches each of its refs, in one step with checking that they exist; `missing_blobs` touches too.
        2. First the blobs that nobody has touched for a grace period are listed, and after that the refs of all threads are
           read. The cutoff is the moment one grace period before this run began. `delete_blobs` checks again, in one step
           with the deletion, that nobody has touched the blob since the cutoff. A store counts back from the time of the
           deletion, so the time that this run has taken is added to the grace period. Otherwise a run that takes longer
           than the grace period could delete a blob that was touched during the run.
        3. Suppose that a blob is deleted and a thread points at it. The append that made the thread point at it touched the
           blob, and by (2) did so before the cutoff. So the append was made before the refs were read, the thread was
           listed (a thread that exists throughout is listed), its refs were read, and the blob was kept: a contradiction.
           If the thread was deleted meanwhile, it points at nothing. If it was forked before it was deleted, the fork put
           its blobs again, which is a touch.
        4. If more than the grace period passes between a touch and its append, the blob may be gone. Then the append raises
           `MissingBlob` and writes nothing. So every writer in Clew puts values again before it appends them elsewhere.
        5. A tree protects the blobs below it; they are read from the tree without any key. A writer that points at a tree
           that it did not just write must touch all blobs below it before it appends (`missing_blobs` touches the blobs
           that `below` returns). Trees are deleted before the blobs they point at, and a tree that was touched meanwhile
           keeps them. So every tree in the store is complete.

        A store must show an append in listings within the grace period after touching its refs. In the stores in memory, in
        SQLite and in files, the two are one step. If a single `delete_blobs` takes longer than the grace period,
        reachability is computed again, and deleted blobs that a thread reaches by then are put back from memory.

        Hidden threads that are still being copied, and inboxes, count like all others. Inboxes of threads that are gone are
        deleted first, if nothing was posted to them during the grace period. Raises `Corrupt` and deletes nothing if a thread
        or tree cannot be read, since it is unknown what it reaches. `progress` is called with the number of threads and
        blobs examined so far, and None because their total is unknown."""

    @property
    def has_run_out(self) -> bool:
        """Whether this process has not renewed its lease in time, by the clock of this machine, so that another process
        may have taken the thread. Then nothing may be done that cannot be undone before `renew` has succeeded."""

    @property
    def head(self) -> Head:
        """The thread's head as it was last written to the store."""

    def hold(self, *entries: Logged) -> None:
        """Take these entries into the thread's state now, and write them to the store with the next append or flush.

        Use this for entries that another append follows at once, so that both cost one write. Raises `UsageError` for
        file snapshots, because `append` must check first that the store has them."""

    @staticmethod
    def import_(
        checkpointer: Checkpointer,
        file: File,
        *,
        thread_id: str | None = None,
        trust: bool = False,
        progress: Progress | None = None,
    ) -> Head:
        """Import a thread from a `.clew` file, under its own id or the id `thread_id`. Returns its head.

        Everything is checked before anything becomes visible: the file's members, sizes and digests, the chain of frames,
        the state that their entries add up to, and the head. A damaged or hostile file raises `Corrupt` or `InvalidInput`
        that names the member. What was posted to the thread's inbox and not taken in is in the inbox of the imported thread.
        To read an encrypted file, the checkpointer's keyring must have the file's key; otherwise
        `WrongKey` is raised. If the id is another, or the checkpointer encrypts with another key, the thread is encrypted
        again. A checkpointer without a key accepts only plain files.

        Raises `InvalidInput` if the import would take more memory than 50 times the file's size plus 8 MiB, because a few
        kilobytes can be made to fill any machine. `trust=True` allows it, for a file of your own with highly repetitive
        values.

        If an equal thread of that id exists, nothing is written. Any other thread of that id raises `Conflict`. `progress`
        is called with the number of frames imported so far and the number of all frames."""

    @property
    def lease_left(self) -> float:
        """For how many seconds the lease is certain to last on if it is not renewed, by the clock of this machine. 0.0 if
        it may have ended."""

    @staticmethod
    def list(checkpointer: Checkpointer, query: HeadQuery = ...) -> Iterator[Head]:
        """Yield the heads of the threads that match the query, newest first.

        A thread that was running when its process died is shown as interrupted."""

    @staticmethod
    def load(checkpointer: Checkpointer, thread_id: str, *, at_turn: int | None = None) -> Checkpoint:
        """Return the state of a thread, now or at the end of turn `at_turn`. Takes no lease and changes nothing.

        Raises `ThreadNotFound` if there is no such thread, and `InvalidInput` if there is no such turn."""

    @property
    def lost(self) -> LeaseLost | None:
        """The `LeaseLost` error if it is known that another process has taken over, else None. It becomes known at the
        next append or renewal of the lease."""

    @property
    def messages(self) -> int:
        """Number of messages in the history, which is also the index that the next message will have there. Cheap to
        read."""

    @property
    def on_lost(self) -> set[Callable[[], None]]:
        """Functions that are called, without arguments, as soon as it is known that another process has taken over."""

    @staticmethod
    def open(
        checkpointer: Checkpointer,
        thread_id: str,
        *,
        takeover: Takeover = False,
        durability: Durability = "sync",
        label: str = "",
        redact: Redact | None = None,
        wait: float | None = None,
    ) -> Thread:
        """Open a thread to work on it, and create it if it does not exist. Use it as a context manager.

        Raises `ThreadBusy` if a live process holds the thread. If the lease of another process has expired by the clock
        of this machine, but the process may still be alive, entering the block first waits to see whether it renews the
        lease. That takes at most as long as a lease lasts, 30 seconds, and logs a warning. `wait` is the most seconds
        to wait: if more could be needed, raises `ThreadBusy` at once. With None, waits as long as needed.

        `takeover=True` takes the lease at once, even from a live holder. `takeover` can also be a function that gets the
        lease and decides. `label` says what this process does; errors and listings show it with the process's pid.

        `durability` says when entries are durable. With `"sync"`, when `append` returns. With `"async"`, `append` waits
        only for entries that something is about to depend on (the start of a model call, a response, the start and the
        outcome of a tool call or of a step in it, a status), and a power cut may lose the last other entries. With
        `"exit"`, everything stays in memory until the block is left or `flush` is called.

        `redact` removes text that must not be on record: a function from text to text, or patterns whose matches are
        replaced. It is applied before anything is recorded."""

    def outwait_predecessor(self) -> bool:
        """If the thread was taken from another process without waiting (`takeover=True`), wait until the lease of that
        process must have ended. By then that process has noticed the takeover, unless it is frozen. Return True after
        such a wait.

        The takeover may have been made by this process, or by an earlier holder that was stopped since. Returns False
        at once if there was no takeover, if the thread had no lease at the takeover, if the holder of that lease was
        certainly gone, or if that lease must have ended by now."""

    @property
    def position(self) -> int:
        """The number of frames (appends) in the thread's log after the last append of this process, also once the
        thread is closed."""

    @staticmethod
    def post(
        checkpointer: Checkpointer,
        thread_id: str,
        prompt: str | None = None,
        *,
        prompt_id: str | None = None,
        answer: Any = None,
        redact: Redact | None = None,
    ) -> str:
        """Post a prompt, an answer, or both to a thread, also while another process runs it. Takes no lease.

        The agent that runs the thread takes the post in at the end of its turn: the model sees the prompt together with the
        results of its tool calls. If no process runs the thread, the next run or resume takes it in. `answer` answers the
        questions to a person for which the thread waits, as `resume(answer=…)` does. An answer to a thread that asks nothing
        once the post is taken in is dropped, with a warning in the log of the program.

        Returns the prompt's id: `prompt_id`, or one that is made. Every post is taken in exactly once. If the same
        `prompt_id` is posted again with the same words, nothing is posted; with other words, `InvalidInput` is raised. So
        after `Unavailable`, post again with the same id. `redact` removes text that must not be on record: a function from
        text to text, or patterns whose matches are replaced.

        Raises `ThreadNotFound` if there is no such thread."""

    def posts(self) -> tuple[Post, ...]:
        """Return what others have posted to the thread's inbox and is not on record here yet, oldest first. To take a
        post in, append what it says together with its `read`, so that it is never taken in twice."""

    @property
    def present(self) -> Present:
        """The part of the state that a run needs for its next model or tool call, such as the messages that the model
        sees, the tool calls of a turn that is not done, the newest snapshot of the files, usage and cost. Making it
        does not take longer as the log grows."""

    @staticmethod
    def prune(
        checkpointer: Checkpointer,
        *,
        older_than: timedelta | None = None,
        keep: int | None = None,
        status: Status | tuple[Status, ...] | None = None,
        tags: Mapping[str, str] | None = None,
        prefix: str = "",
        dry_run: bool = False,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> Pruned:
        """Delete the threads that meet all given conditions. Raises `InvalidInput` if no condition is given.

        `status`, `tags` and `prefix` (of the thread's id) select threads. Of these, the newest `keep` stay, and so do those
        that changed within `older_than`. A thread that was running when its process died counts as interrupted. With
        `dry_run`, nothing is deleted, and the result says what would be. `progress` is called with the number of threads
        handled so far and the number of threads to delete.

        A thread with a live lease is never deleted. If it is unknown whether a holder is alive, for example on another
        machine, this waits 30 seconds to see whether it renews its lease. One such wait serves for all threads. With
        `dry_run` there is no wait: a lease counts as live until the time that is written in it, unless its holder is
        certainly gone. Before a thread is deleted, its lease is taken, which fails if the thread was opened or changed
        since it was listed; such a thread stays. Hidden threads that are still being copied are neither counted nor
        deleted. The inbox of a thread goes with the thread. Blobs stay until `gc`. Raises `Corrupt` and deletes nothing if a
        damaged thread cannot be listed."""

    @staticmethod
    def purge(checkpointer: Checkpointer, thread_id: str) -> Purged:
        """Delete a thread, and at once every blob that only this thread reaches, however recently it was touched.

        To touch a blob is to store it or to ask for it as a writer, which keeps it from gc for a time. The thread is
        deleted first. So an interruption leaves blobs that no thread reaches, which `gc` deletes later, and never a thread
        that lacks blobs. Raises `ThreadNotFound` if there is no such thread. A blob that another process touches meanwhile
        is left to `gc`. A blob that another process has put but not yet pointed at may be deleted: then its append raises
        `MissingBlob`, writes nothing, and can be made again after another put.

        Takes no lease: a process that holds the thread gets `LeaseLost` at its next append. The inbox of the thread and the
        copy that an interrupted `purge_rewound` left are deleted too. Forks and copies are separate threads and stay. Raises
        `Corrupt` and deletes nothing if the blobs of this thread cannot be determined. If that fails for another thread,
        this one is deleted and its blobs are left to `gc`."""

    @staticmethod
    def purge_rewound(checkpointer: Checkpointer, thread_id: str) -> Purged:
        """Rewrite a thread without the messages that the model can no longer see, not even after a rewind to an earlier
        turn, and erase the old log at once.

        The state stays: the messages that the model sees, those at the end of any turn, usage, values and pending calls.
        Every other message goes, and with the old log every earlier version of everything else. If the title came from a
        message that goes, it is taken from the first user message that stays. Messages move up in the history, so their
        places change.

        Raises `ThreadBusy` if a live process holds the thread; its lease is taken meanwhile. No store can replace a log in
        one step, so this takes four, and two copies exist whenever an interruption could do harm:

        1. The new log is written under a hidden id, and lists all blobs of the old log as needed.
        2. The old log is deleted.
        3. The new log is written under the thread's own id.
        4. The posts in the inbox that are not taken in yet are brought to the inbox of the new log. The old inbox and the
           blobs of the old log that nobody else reaches are deleted, and then the hidden copy.

        If this is interrupted, call it again. The hidden copy names the old and the new log, so it is known which steps are
        done. If the old log exists (after 1), it may have grown, so the copy is dropped and everything starts over. If
        neither exists (after 2), the new log is written from the copy. If the new log exists (after 3), step 4 remains; then
        everything starts over if the thread has messages to erase, whatever the copy says.
        Between 2 and 3 the thread is not found. If someone creates a thread of this id then, `Conflict` is raised and
        nothing is lost: the copy stays until that thread is deleted and this is called again."""

    def redacted(self, entries: Sequence[Logged]) -> Sequence[Logged]:
        """Return these entries as they would be recorded: changed by the `redact` that the thread was opened with."""

    @staticmethod
    def rekey(checkpointer: Checkpointer, progress: Progress | None = None) -> Rekeyed:
        """Encrypt again, with the first key of the checkpointer's keyring, every thread that has a frame which is plain or
        encrypted with another key. If only a thread's head has no seal, or that of another key, only the head is written
        again, with a seal. A seal is a code in the head that only somebody with the key can make; it shows that nobody else
        has changed the head. Returns which threads were changed.

        Plain threads and heads without a seal are accepted only if the keyring allows plain data. Otherwise `NotSealed` is
        raised: a seal on what somebody without a key has written would make it look genuine.

        A thread keeps its id, entries and times. What was posted to its inbox and is not taken in yet is encrypted again with
        it. No store can replace a log in one step, so a complete copy exists at every
        moment: the thread is copied to an id that listings leave out, its lease is taken, it is deleted and copied back,
        and then the hidden copy is deleted. If `rekey` is interrupted, run it again: it continues where it was. A thread
        that claims to be such a copy, but has another id or no seal, is left alone. Blobs of the old key are left to gc.
        Threads that a process works on are left out and reported. `progress` is called with the number of threads looked at
        so far and the number of all threads. Raises `InvalidInput` if the checkpointer has no key."""

    def renew(self) -> None:
        """Extend the lease. Raises `LeaseLost` if another process has taken over.

        Call this after a pause that may have outlasted the lease, such as the machine's sleep, before doing anything
        that cannot be undone."""

    @staticmethod
    def repair(checkpointer: Checkpointer, thread_id: str, new_id: str) -> Head:
        """Save a thread up to its last good frame as a new thread, and return the new thread's head.

        The damaged thread is not touched. The saved part ends with the last frame whose state can still be computed: a
        frame with an unbroken chain back to the beginning, or back to a folded state, which is the thread's whole state at
        some point and stands for everything before it. Entries and their times are kept. Frames are encoded again, so that
        they follow each other and, in an encrypted store, open under the new id. The new thread has no lease, and its
        status is that of its last frame.

        A long thread is written in parts and stays hidden until the last part is written. If this is interrupted, call it
        again with the same ids: it starts over. Raises `Conflict` if any other thread has the id `new_id`.

        What was posted to the thread's inbox and is not taken in yet is in the inbox of the new thread too.

        Intact frames that cannot be read here are not damage: then `WrongKey` or `NewerFormat` is raised and nothing is
        written. Raises `Corrupt` if nothing can be saved. A sound thread is simply copied."""

    def rewind(self, to_turn: int) -> None:
        """Continue from the end of turn `to_turn`. Later messages stay in the history, and what was spent stays spent.
        Raises `InvalidInput` if there is no such turn."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Make this checkpoint the state of the thread, by appending entries for what differs.

        If the checkpoint lacks messages of the conversation, the thread is first taken back (rewound) to the last
        message that both have. Raises `InvalidInput`, and saves nothing, if a part of the checkpoint cannot be
        recorded; the error names that part. What the log has in addition to the checkpoint stays: rewound messages are
        still part of the history, and spend does not shrink. If the checkpoint's status is `running`, the thread's
        status becomes `interrupted` once it is closed."""

    @property
    def thread_id(self) -> str: ...
    @property
    def unreachable_since(self) -> float | None:
        """Since when the store has been `Unavailable`, as a time of `time.monotonic`: the time at which the first
        failed write began. None if no write has failed in this way since the last one that succeeded."""

    def until_named(self) -> None:
        """Wait until the `LeaseLost` error in the attribute `lost` names the process that has taken over, or until it
        is certain that the name cannot be found out."""

    @staticmethod
    def verify(checkpointer: Checkpointer, thread_id: str) -> Verdict:
        """Check everything that a store holds of a thread, and return what is wrong. Takes no lease and changes nothing.

        Checks that each frame is intact and follows the one before it. Checks each folded state (the thread's whole state,
        stored in its log) against the state that the frames before it add up to, and the head against the log, except its
        `log_id`, lease and times. Checks that the thread's list of needed blobs names all blobs that its frames refer to,
        and that these, and all blobs that they point at, exist, are intact and can be unpacked.

        The thread's inbox is checked too: its problems are in the result, and say that they are in the inbox.

        Damage is reported in the result, and never raised. Raises `Unavailable` and `ThreadNotFound`. If the key of an
        encrypted thread is missing, all is checked that can be checked without it."""

    @staticmethod
    def verify_all(
        checkpointer: Checkpointer, query: HeadQuery = ..., *, progress: Callable[[int, int | None], None] | None = None
    ) -> Iterator[Verdict]:
        """Verify the threads that the query lists one after the other, newest first. Yields a verdict for each. Inboxes
        are checked with their threads.

        `progress` is called with the number of threads verified so far and the number of all. If some threads are too
        damaged to be listed, a last verdict with an empty `thread_id` holds the store's own error."""

class Workspace:
    """A folder of files, and a store that keeps its snapshots. Nothing is mounted, and Clew adds no files of its own to
    the folder.

    A snapshot holds files with their holes, hard links, symbolic links as links, empty folders, modes and times, and
    names of any bytes. It leaves out and reports sockets, FIFOs and devices, files over the limit, and names that
    `.clewignore` or `ignore` lists in the syntax of `.gitignore`. The store's own files are never part of it, wherever
    they lie. Owners, extended attributes and access lists are not kept.

    Files are cut into chunks, and each chunk is stored once for all threads of the store. A file that has not changed
    since the last snapshot is not read again. For a folder in which nothing has changed, nothing new is stored: the new
    snapshot refers to what the last one stored.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        checkpointer: Checkpointer,
        *,
        ignore: Iterable[str] | str = (),
        limits: Limits | None = None,
    ) -> None: ...
    @property
    def checkpointer(self) -> Checkpointer: ...
    def diff(self, a: Ref | None, b: Ref | None = None, *, text: bool = False) -> Difference:
        """Return what changed from snapshot `a` to snapshot `b`. If one is None, the folder as it is now takes its
        place: a snapshot of it is taken first. With `text`, changes of text files come with a unified diff."""

    @property
    def ignore(self) -> tuple[str, ...]:
        """The patterns that were given as `ignore`, without those of `.clewignore` files."""

    @property
    def limits(self) -> Limits: ...
    @property
    def path(self) -> Path: ...
    def restore(
        self,
        ref: Ref,
        into: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        *,
        setuid: bool = False,
    ) -> Restored:
        """Make the folder equal to a snapshot. With `into`, make that folder equal to the snapshot instead and leave
        the workspace's own folder alone.

        A snapshot of the folder to change is taken first; the result has it as `before_restore`. Only names that differ
        are touched. Files that were never part of a snapshot, such as ignored ones, stay. After an interruption at any
        point, make the same call again: it completes the restore. `progress` is called with the number of files
        written so far and the number of files to write.

        Setuid and setgid bits are not restored, because with them a program runs with its owner's rights, no matter who
        starts it. For a snapshot that you trust, pass `setuid=True`."""

    def snapshot(self, progress: Progress | None = None) -> SnapshotRef:
        """Take a snapshot of the folder. All of it is durable when this returns, so that an entry of a log may name it.

        If the folder changes meanwhile, the snapshot may hold some files from before the change and some from after.
        Each file is whole, or is reported in `skipped` of the result. `progress` is called with the number of files
        read so far and the number of files to read. Cancelling does no harm."""

__version__: str

def open_checkpointer(
    url: str | None = None,
    namespace: str = "",
    *,
    key: str | bytes | Iterable[str | bytes] | None = None,
    allow_plain: bool | None = None,
    marks: str | Path | None = None,
) -> Checkpointer:
    """Open the checkpointer that a URL names. Without a URL, open the one that the environment variable `CLEW_STORE`
    names, or else a SQLite file in the user's data folder. The checkpointer connects when it is first used. `namespace`
    selects a part of the store that shares nothing with its other namespaces.

    URLs are, for example, `sqlite:///relative.db`, `sqlite:////absolute.db`, `file:///absolute/dir`,
    `file:relative/dir` and `memory://`. Servers and object storage have schemes of their own, and installed packages
    add more.

    With `key`, or else the environment variable `CLEW_KEY`, all that is written is encrypted, and reading anything
    unencrypted raises an error. A key is 32 bytes, or these bytes as hex or base64 text. Of several keys the first
    encrypts and all decrypt. With `allow_plain`, or `CLEW_ALLOW_PLAIN=1`, data that was written without a key is read
    too. `marks`, or `CLEW_MARKS`, is a folder outside the store that remembers how long each thread was, so that an
    older copy is recognised. `allow_plain` and `marks` can only be used with a key."""
