"""The tables and SQL statements of an Oracle store.

Oracle treats an empty text as NULL, so the store compares digests of texts, which are never empty. An empty frame is an
empty BLOB. Each write is one PL/SQL block, hence one round trip and one transaction. Its COMMIT waits for the disk,
whatever the default of the database. All blocks lock blobs before threads, and blobs in the order of their digests, so
that no two blocks deadlock.
"""

from __future__ import annotations

from clew.checkpointers.heads import HeadQuery, micros
from clew.checkpointers.sql.heads import UNLIMITED, after_prefix, text_digest

__all__ = ["VERSION", "Statements"]

VERSION = 2
"""The version of the tables. Version 2 added the column `due`."""

_SINCE = "(SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')"
_NOW = (
    f"TRUNC((EXTRACT(DAY FROM {_SINCE}) * 86400 + EXTRACT(HOUR FROM {_SINCE}) * 3600 "
    f"+ EXTRACT(MINUTE FROM {_SINCE}) * 60 + EXTRACT(SECOND FROM {_SINCE})) * 1000000)"
)
"""An SQL expression for the current time in microseconds since 1970, by the server's clock. Within one statement it
always has the same value."""

_TABLES = (
    """CREATE TABLE {p}heads (
    id NUMBER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space RAW(16) NOT NULL,
    thread_key RAW(32) NOT NULL,
    log_mark RAW(16) NOT NULL,
    frames NUMBER(19) NOT NULL,
    created NUMBER(19) NOT NULL,
    updated NUMBER(19) NOT NULL,
    due NUMBER(19),
    thread_id RAW(1024) NOT NULL,
    status VARCHAR2(16) NOT NULL,
    agent RAW(16) NOT NULL,
    parent RAW(16),
    head BLOB NOT NULL
)""",
    "CREATE UNIQUE INDEX {p}heads_key ON {p}heads (space, thread_key)",
    "CREATE INDEX {p}heads_updated ON {p}heads (space, updated, thread_key)",
    "CREATE INDEX {p}heads_created ON {p}heads (space, created, thread_key)",
    "CREATE INDEX {p}heads_due ON {p}heads (space, due, thread_key)",
    "CREATE INDEX {p}heads_id ON {p}heads (space, thread_id)",
    "CREATE INDEX {p}heads_parent ON {p}heads (space, parent)",
    """CREATE TABLE {p}frames (
    thread NUMBER NOT NULL,
    pos NUMBER(10) NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (thread, pos)
)""",
    "CREATE TABLE {p}refs (thread NUMBER NOT NULL, digest RAW(32) NOT NULL, PRIMARY KEY (thread, digest))",
    """CREATE TABLE {p}blobs (
    space RAW(16) NOT NULL,
    digest RAW(32) NOT NULL,
    touched NUMBER(19) NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (space, digest)
)""",
    "CREATE TABLE {p}meta (id NUMBER(1) PRIMARY KEY, version NUMBER(9) NOT NULL)",
    "INSERT INTO {p}meta (id, version) VALUES (1, 2)",
)
_UPGRADES = (
    "ALTER SESSION SET ddl_lock_timeout = 10",
    "ALTER TABLE {p}heads ADD (due NUMBER(19))",
    "CREATE INDEX {p}heads_due ON {p}heads (space, due, thread_key)",
    "UPDATE {p}meta SET version = 2 WHERE id = 1 AND version < 2",
)
"""The steps that add to tables of version 1 what version 2 has. The first makes the others wait for transactions of
other processes, up to 10 seconds, instead of failing at once."""
_THERE_ALREADY = "-1, -955, -1408, -1430"
"""Oracle's error codes which say that a row, a table, an index or a column already exists, because another process
created it."""

_TOUCH = """
    FOR i IN 1 .. :b_ref_count LOOP
        v_digest := DBMS_LOB.SUBSTR(v_refs, 32, 32 * (i - 1) + 1);
        UPDATE {p}blobs SET touched = v_now WHERE space = :b_space AND digest = v_digest;
        IF SQL%ROWCOUNT = 0 AND NVL(UTL_RAW.LENGTH(v_missing), 0) < 32000 THEN
            v_missing := UTL_RAW.CONCAT(v_missing, v_digest);
        END IF;
    END LOOP;"""

_APPEND = """
DECLARE
    v_data BLOB := :b_data;
    v_refs BLOB := :b_refs;
    v_head BLOB := :b_head;
    v_stored BLOB;
    v_thread NUMBER;
    v_ends NUMBER;
    v_log RAW(16);
    v_now NUMBER;
    v_digest RAW(32);
    v_missing RAW(32064);
    v_same NUMBER := 0;
    v_done NUMBER := 0;
    v_write BOOLEAN := FALSE;
    v_offset NUMBER := 1;
    v_size NUMBER;
BEGIN
    SELECT {now} INTO v_now FROM dual;{touch}
    BEGIN
        SELECT id, frames, log_mark INTO v_thread, v_ends, v_log FROM {p}heads
        WHERE space = :b_space AND thread_key = :b_key FOR UPDATE;
        IF v_log = :b_log THEN
            v_same := 1;
        END IF;
    EXCEPTION
        WHEN NO_DATA_FOUND THEN
            v_ends := NULL;
    END;
    IF v_missing IS NULL AND v_ends IS NULL AND :b_at = 0 AND :b_count > 0 THEN
        INSERT INTO {p}heads
            (space, thread_key, log_mark, frames, created, updated, due, thread_id, status, agent, parent, head)
        VALUES (:b_space, :b_key, :b_log, :b_count, :b_created, :b_updated, :b_due, :b_thread_id, :b_status, :b_agent,
            :b_parent, v_head)
        RETURNING id INTO v_thread;
        v_write := TRUE;
    ELSIF v_missing IS NULL AND v_same = 1 AND v_ends = :b_at THEN
        UPDATE {p}heads SET frames = :b_at + :b_count, created = :b_created, updated = :b_updated, due = :b_due,
            status = :b_status, agent = :b_agent, parent = :b_parent, head = v_head
        WHERE id = v_thread;
        v_write := TRUE;
    ELSIF v_same = 1 AND :b_count > 0 AND :b_at + :b_count <= v_ends THEN
        v_done := 1;
    END IF;
    FOR i IN 1 .. :b_count LOOP
        EXIT WHEN NOT v_write AND v_done = 0;
        v_size := UTL_RAW.CAST_TO_BINARY_INTEGER(DBMS_LOB.SUBSTR(v_data, 4, v_offset));
        IF v_write THEN
            INSERT INTO {p}frames (thread, pos, data) VALUES (v_thread, :b_at + i - 1, EMPTY_BLOB())
            RETURNING data INTO v_stored;
            IF v_size > 0 THEN
                DBMS_LOB.COPY(v_stored, v_data, v_size, 1, v_offset + 4);
            END IF;
        ELSE
            SELECT MAX(pos) INTO v_done FROM {p}frames WHERE thread = v_thread AND pos = :b_at + i - 1;
            IF v_done IS NOT NULL THEN
                SELECT data INTO v_stored FROM {p}frames WHERE thread = v_thread AND pos = :b_at + i - 1;
                v_done := CASE WHEN DBMS_LOB.GETLENGTH(v_stored) = v_size THEN 1 ELSE 0 END;
            END IF;
            IF v_done = 1 AND v_size > 0 THEN
                v_done := CASE WHEN DBMS_LOB.COMPARE(v_stored, v_data, v_size, 1, v_offset + 4) = 0 THEN 1 ELSE 0 END;
            END IF;
            v_done := NVL(v_done, 0);
        END IF;
        v_offset := v_offset + 4 + v_size;
    END LOOP;
    IF v_write THEN
        FOR i IN 1 .. :b_ref_count LOOP
            v_digest := DBMS_LOB.SUBSTR(v_refs, 32, 32 * (i - 1) + 1);
            INSERT INTO {p}refs (thread, digest) SELECT v_thread, v_digest FROM dual
            WHERE NOT EXISTS (SELECT 1 FROM {p}refs WHERE thread = v_thread AND digest = v_digest);
        END LOOP;
        v_done := 1;
        COMMIT WRITE IMMEDIATE WAIT;
    ELSE
        ROLLBACK;
    END IF;
    :b_done := v_done;
    :b_ends := v_ends;
    :b_same := v_same;
    :b_missing := v_missing;
END;
"""

_TOUCH_BLOCK = """
DECLARE
    v_refs BLOB := :b_refs;
    v_now NUMBER;
    v_digest RAW(32);
    v_missing RAW(32064);
BEGIN
    SELECT {now} INTO v_now FROM dual;{touch}
    COMMIT WRITE IMMEDIATE WAIT;
    :b_missing := v_missing;
END;
"""

_DELETE = """
DECLARE
    v_thread NUMBER;
BEGIN
    SELECT id INTO v_thread FROM {p}heads WHERE space = :b_space AND thread_key = :b_key FOR UPDATE;
    DELETE FROM {p}frames WHERE thread = v_thread;
    DELETE FROM {p}refs WHERE thread = v_thread;
    DELETE FROM {p}heads WHERE id = v_thread;
    COMMIT WRITE IMMEDIATE WAIT;
EXCEPTION
    WHEN NO_DATA_FOUND THEN
        ROLLBACK;
END;
"""

_PUT = """
DECLARE
    v_data BLOB := :b_data;
    v_now NUMBER;
BEGIN
    SELECT {now} INTO v_now FROM dual;
    IF v_data IS NULL THEN
        v_data := EMPTY_BLOB();
    END IF;
    UPDATE {p}blobs SET touched = v_now WHERE space = :b_space AND digest = :b_digest;
    IF SQL%ROWCOUNT = 0 THEN
        INSERT INTO {p}blobs (space, digest, touched, data) VALUES (:b_space, :b_digest, v_now, v_data);
    END IF;
    COMMIT WRITE IMMEDIATE WAIT;
END;
"""

_SWEEP = """
DECLARE
    v_refs BLOB := :b_refs;
    v_now NUMBER;
    v_digest RAW(32);
BEGIN
    SELECT {now} INTO v_now FROM dual;
    FOR i IN 1 .. :b_ref_count LOOP
        v_digest := DBMS_LOB.SUBSTR(v_refs, 32, 32 * (i - 1) + 1);
        DELETE FROM {p}blobs WHERE space = :b_space AND digest = v_digest AND touched <= v_now - :b_grace;
    END LOOP;
    COMMIT WRITE IMMEDIATE WAIT;
END;
"""


class Statements:
    """The SQL statements of a store whose table names start with `prefix`."""

    def __init__(self, prefix: str) -> None:
        def make(sql: str) -> str:
            return sql.strip().replace("{touch}", _TOUCH).replace("{now}", _NOW).replace("{p}", prefix)

        self.definitions = tuple(make(table) for table in _TABLES)
        self.upgrades = tuple(make(step) for step in _UPGRADES)
        self.version = make("SELECT version FROM {p}meta WHERE id = 1")
        self.append = make(_APPEND)
        self.touch = make(_TOUCH_BLOCK)
        self.delete = make(_DELETE)
        self.put = make(_PUT)
        self.sweep = make(_SWEEP)
        self.read = make(
            "SELECT h.id, h.log_mark, h.frames, f.pos, f.data FROM {p}heads h LEFT JOIN {p}frames f ON f.thread = h.id "
            "AND f.pos >= :b_first AND f.pos < :b_last WHERE h.space = :b_space AND h.thread_key = :b_key ORDER BY f.pos"
        )
        self.head = make("SELECT head FROM {p}heads WHERE space = :b_space AND thread_key = :b_key")
        self.refs = make(
            "SELECT r.digest FROM {p}refs r JOIN {p}heads h ON h.id = r.thread "
            "WHERE h.space = :b_space AND h.thread_key = :b_key"
        )
        self.untouched = make(
            "SELECT digest FROM {p}blobs WHERE space = :b_space AND digest > :b_last "
            "AND touched <= {now} - :b_grace ORDER BY digest FETCH FIRST 500 ROWS ONLY"
        )
        self._heads = make("SELECT thread_key, head, thread_id FROM {p}heads WHERE space = :b_space AND thread_key IN")
        self._blobs = make("SELECT digest, data FROM {p}blobs WHERE space = :b_space AND digest IN")
        self._keys = make("SELECT thread_key FROM {p}heads WHERE")
        self._queued_keys = make("SELECT /*+ INDEX_DESC({p}heads {p}heads_due) */ thread_key FROM {p}heads WHERE")

    def definition(self, sql: str) -> str:
        """Return a PL/SQL block that runs `sql`, which is one of the statements in the attributes `definitions` and
        `upgrades`. Most of these create a table, an index, a column or a row. The block does nothing if that exists
        already."""
        quoted = sql.replace("'", "''")
        return (
            f"BEGIN EXECUTE IMMEDIATE '{quoted}'; COMMIT; EXCEPTION WHEN OTHERS THEN "
            f"IF SQLCODE NOT IN ({_THERE_ALREADY}) THEN RAISE; END IF; END;"
        )

    def heads(self, count: int) -> str:
        """Return the query for the heads of `count` threads. The caller binds the threads' keys as `b_k0`, `b_k1` and
        so on."""
        return f"{self._heads} {_places(count)}"

    def blobs(self, count: int) -> str:
        """Return the query that reads the digests and bytes of `count` blobs. The caller binds their digests as `b_k0`,
        `b_k1` and so on."""
        return f"{self._blobs} {_places(count)}"

    def listed_keys(self, space: bytes, query: HeadQuery) -> tuple[str, dict[str, object]]:
        """Return an SQL query that selects the keys (hashes of the ids) of threads whose heads match `query`, and a
        dict of the values to bind, by name. `space` is the digest of the namespace to search.

        The SQL does not test titles and tags, so the caller has to. If `query` asks for a title or tags, the SQL does
        not apply the limit on the number of heads either.
        """
        where = ["space = :b_space"]
        binds: dict[str, object] = {"b_space": space}

        def add(condition: str, **given: object) -> None:
            where.append(condition)
            binds.update(given)

        if query.order == "due":
            add("due <= :b_never", b_never=UNLIMITED)  # unlike IS NOT NULL, Oracle reads only this part of the index
        if query.prefix:
            start, stop = after_prefix(query.prefix)
            add("thread_id >= :b_start AND thread_id < :b_stop", b_start=start, b_stop=stop)
        if (statuses := query.statuses()) is not None:
            names = {f"b_status{place}": status for place, status in enumerate(statuses)}
            add(f"status IN ({', '.join(f':{name}' for name in names)})" if names else "1 = 0", **names)
        if query.agent is not None:
            add("agent = :b_agent", b_agent=text_digest(query.agent))
        if query.parent is not None:
            add("parent = :b_parent", b_parent=text_digest(query.parent))
        if query.updated_after is not None:
            add("updated >= :b_after", b_after=micros(query.updated_after))
        if query.updated_before is not None:
            add("updated < :b_before", b_before=micros(query.updated_before))
        if (position := query.start()) is not None:
            moment, key = position
            add(
                f"{query.order} <= :b_moment AND ({query.order} < :b_moment OR thread_key < :b_key)",
                b_moment=moment,
                b_key=bytes.fromhex(key),
            )
        keys = self._queued_keys if query.order == "due" else self._keys
        sql = f"{keys} {' AND '.join(where)} ORDER BY {query.order} DESC, thread_key DESC"
        if query.limit is not None and not query.title and not query.tags:
            sql += " FETCH FIRST :b_limit ROWS ONLY"
            binds["b_limit"] = min(query.limit, UNLIMITED)
        return sql, binds


def _places(count: int) -> str:
    return f"({', '.join(f':b_k{place}' for place in range(count))})"
