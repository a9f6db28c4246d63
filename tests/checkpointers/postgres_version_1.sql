
DO $clew$ BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    PERFORM pg_advisory_xact_lock(1129071959, hashtext('clew'));  -- "CLEW"
    IF to_regnamespace('"clew"') IS NULL THEN
        CREATE SCHEMA "clew";
    END IF;
    IF to_regclass('"clew".clew_meta') IS NULL THEN
        
CREATE TABLE "clew".clew_meta (
    version integer NOT NULL
);

CREATE TABLE "clew".clew_heads (
    id        bigint GENERATED ALWAYS AS IDENTITY,
    created   bigint NOT NULL,            -- microseconds since 1970
    updated   bigint NOT NULL,
    frames    bigint NOT NULL,
    bucket    integer GENERATED ALWAYS AS ((updated >> 28)::integer) STORED,
    ns        bytea NOT NULL,
    key       bytea NOT NULL,             -- blake3 of the thread id
    log_id    bytea NOT NULL,
    thread_id bytea NOT NULL,
    status    bytea NOT NULL,
    agent     bytea NOT NULL,
    parent    bytea,
    title     bytea NOT NULL,             -- case folded
    tags      bytea NOT NULL,             -- FF name FE value FF, one after the other: bytes that UTF-8 never has
    head      bytea NOT NULL,             -- the whole head: msgpack and its CRC-32, little-endian
    PRIMARY KEY (ns, key)
) WITH (fillfactor = 50);
CREATE INDEX clew_heads_updated ON "clew".clew_heads (ns, bucket);
CREATE INDEX clew_heads_created ON "clew".clew_heads (ns, created, key);
CREATE INDEX clew_heads_thread_id ON "clew".clew_heads (ns, thread_id);
CREATE INDEX clew_heads_parent ON "clew".clew_heads (ns, parent) WHERE parent IS NOT NULL;

CREATE TABLE "clew".clew_frames (
    thread bigint NOT NULL,               -- clew_heads.id
    number integer NOT NULL,
    data   bytea STORAGE EXTERNAL NOT NULL,
    PRIMARY KEY (thread, number)
);

CREATE TABLE "clew".clew_refs (
    thread bigint NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (thread, digest)
);

CREATE TABLE "clew".clew_blobs (
    touched bigint NOT NULL,              -- microseconds since 1970, by this server's clock
    ns      bytea NOT NULL,
    digest  bytea NOT NULL,
    data    bytea STORAGE EXTERNAL NOT NULL,
    PRIMARY KEY (ns, digest)
) WITH (fillfactor = 90);

CREATE FUNCTION "clew".clew_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$f$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $f$;

-- Makes this transaction wait for the disk, whatever the default of the server, database or role.
CREATE FUNCTION "clew".clew_durable() RETURNS void LANGUAGE plpgsql VOLATILE AS $f$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $f$;

-- Touches these blobs and returns the positions in the list of the blobs that do not exist.
CREATE FUNCTION "clew".clew_touch(p_ns bytea[], p_digests bytea[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $f$
DECLARE
    v_now bigint := "clew".clew_now();
    v_missing bigint[] := '{}';
BEGIN
    PERFORM "clew".clew_durable();
    FOR i IN 1 .. cardinality(p_digests) LOOP
        UPDATE "clew".clew_blobs b SET touched = v_now WHERE b.ns = p_ns[i] AND b.digest = p_digests[i];
        IF NOT FOUND THEN
            v_missing := v_missing || i::bigint;
        END IF;
    END LOOP;
    RETURN v_missing;
END $f$;

-- Appends to different threads. Each append is written whole or not at all. Returns NULL if all were written. Otherwise
-- returns an outcome for each append: -1 written, -2 no such log, -3 another log, -4 missing blobs, else where the log ends;
-- then the positions in p_refs of the missing blobs.
CREATE FUNCTION "clew".clew_append(
    p_ns bytea[], p_keys bytea[], p_logs bytea[], p_at bigint[], p_counts bigint[], p_ids bytea[], p_status bytea[],
    p_agent bytea[], p_parent bytea[], p_created bigint[], p_updated bigint[], p_title bytea[], p_tags bytea[],
    p_heads bytea[], p_frames bytea[], p_ref_of bigint[], p_refs bytea[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $f$
DECLARE
    v_missing bigint[] := '{}';
    v_outcomes bigint[] := '{}';
    v_refused boolean := false;
    v_lacks boolean := false;
    v_first bigint := 1;
    v_outcome bigint;
    v_written boolean;
    v_thread bigint;
    v_ends bigint;
    v_log bytea;
BEGIN
    IF cardinality(p_refs) > 0 THEN
        v_missing := "clew".clew_touch(
            ARRAY(SELECT p_ns[u.owner] FROM unnest(p_ref_of) WITH ORDINALITY u (owner, n) ORDER BY u.n), p_refs
        );
    ELSE
        PERFORM "clew".clew_durable();
    END IF;
    FOR i IN 1 .. cardinality(p_keys) LOOP
        v_outcome := -1;
        IF cardinality(v_missing) > 0 THEN
            v_lacks := EXISTS (SELECT 1 FROM unnest(v_missing) u (place) WHERE p_ref_of[u.place] = i);
        END IF;
        LOOP
            v_written := false;
            IF NOT v_lacks THEN
                UPDATE "clew".clew_heads h
                SET created = p_created[i], updated = p_updated[i], frames = p_at[i] + p_counts[i], status = p_status[i],
                    agent = p_agent[i], parent = p_parent[i], title = p_title[i], tags = p_tags[i], head = p_heads[i]
                WHERE h.ns = p_ns[i] AND h.key = p_keys[i] AND h.log_id = p_logs[i] AND h.frames = p_at[i]
                RETURNING h.id INTO v_thread;
                v_written := FOUND;
                EXIT WHEN v_written;
            END IF;
            SELECT h.id, h.frames, h.log_id INTO v_thread, v_ends, v_log
            FROM "clew".clew_heads h WHERE h.ns = p_ns[i] AND h.key = p_keys[i];
            IF NOT FOUND THEN
                IF p_at[i] > 0 OR p_counts[i] = 0 THEN
                    v_outcome := -2;
                    EXIT;
                ELSIF v_lacks THEN
                    v_outcome := -4;
                    EXIT;
                END IF;
                INSERT INTO "clew".clew_heads
                    (ns, key, log_id, thread_id, frames, status, agent, parent, created, updated, title, tags, head)
                VALUES (p_ns[i], p_keys[i], p_logs[i], p_ids[i], p_counts[i], p_status[i], p_agent[i], p_parent[i],
                        p_created[i], p_updated[i], p_title[i], p_tags[i], p_heads[i])
                ON CONFLICT DO NOTHING RETURNING id INTO v_thread;
                v_written := FOUND;
                EXIT WHEN v_written;
            ELSIF v_log <> p_logs[i] THEN
                v_outcome := -3;
                EXIT;
            ELSIF v_ends <> p_at[i] THEN
                IF p_counts[i] = 0 OR p_at[i] + p_counts[i] > v_ends OR (
                    SELECT count(*) FROM unnest(p_frames[v_first : v_first + p_counts[i] - 1]) WITH ORDINALITY u (data, n)
                    JOIN "clew".clew_frames f ON f.thread = v_thread AND f.number = p_at[i] + u.n - 1 AND f.data = u.data
                ) <> p_counts[i] THEN
                    v_outcome := v_ends;
                END IF;
                EXIT;
            ELSIF v_lacks THEN
                v_outcome := -4;
                EXIT;
            END IF;
        END LOOP;
        IF v_written THEN
            IF p_counts[i] = 1 THEN
                INSERT INTO "clew".clew_frames VALUES (v_thread, p_at[i], p_frames[v_first]);
            ELSIF p_counts[i] > 1 THEN
                INSERT INTO "clew".clew_frames SELECT v_thread, p_at[i] + u.n - 1, u.data
                FROM unnest(p_frames[v_first : v_first + p_counts[i] - 1]) WITH ORDINALITY u (data, n);
            END IF;
            IF cardinality(p_refs) > 0 THEN
                INSERT INTO "clew".clew_refs SELECT v_thread, u.digest
                FROM unnest(p_ref_of, p_refs) u (owner, digest) WHERE u.owner = i ON CONFLICT DO NOTHING;
            END IF;
        END IF;
        v_refused := v_refused OR v_outcome <> -1;
        v_outcomes := v_outcomes || v_outcome;
        v_first := v_first + p_counts[i];
    END LOOP;
    IF v_refused THEN
        RETURN v_outcomes || v_missing;
    END IF;
    RETURN NULL;
END $f$;

-- The same for one append of one frame without refs to an existing thread: a third less work for client and server.
CREATE FUNCTION "clew".clew_append_one(
    p_ns bytea, p_key bytea, p_log bytea, p_at bigint, p_id bytea, p_status bytea, p_agent bytea, p_parent bytea,
    p_created bigint, p_updated bigint, p_title bytea, p_tags bytea, p_head bytea, p_frame bytea
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $f$
DECLARE
    v_thread bigint;
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    UPDATE "clew".clew_heads h
    SET created = p_created, updated = p_updated, frames = p_at + 1, status = p_status,
        agent = p_agent, parent = p_parent, title = p_title, tags = p_tags, head = p_head
    WHERE h.ns = p_ns AND h.key = p_key AND h.log_id = p_log AND h.frames = p_at
    RETURNING h.id INTO v_thread;
    IF FOUND THEN
        INSERT INTO "clew".clew_frames VALUES (v_thread, p_at, p_frame);
        RETURN NULL;
    END IF;
    RETURN "clew".clew_append(
        ARRAY[p_ns], ARRAY[p_key], ARRAY[p_log], ARRAY[p_at], ARRAY[1::bigint], ARRAY[p_id], ARRAY[p_status],
        ARRAY[p_agent], ARRAY[p_parent], ARRAY[p_created], ARRAY[p_updated], ARRAY[p_title], ARRAY[p_tags],
        ARRAY[p_head], ARRAY[p_frame], ARRAY[]::bigint[], ARRAY[]::bytea[]
    );
END $f$;

CREATE FUNCTION "clew".clew_delete(p_ns bytea, p_key bytea) RETURNS void LANGUAGE plpgsql VOLATILE AS $f$
DECLARE
    v_thread bigint;
BEGIN
    PERFORM "clew".clew_durable();
    DELETE FROM "clew".clew_heads h WHERE h.ns = p_ns AND h.key = p_key RETURNING h.id INTO v_thread;
    IF FOUND THEN
        DELETE FROM "clew".clew_refs r WHERE r.thread = v_thread;
        DELETE FROM "clew".clew_frames f WHERE f.thread = v_thread;
    END IF;
END $f$;

CREATE FUNCTION "clew".clew_put(p_ns bytea, p_digests bytea[], p_data bytea[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $f$
DECLARE
    v_now bigint := "clew".clew_now();
BEGIN
    PERFORM "clew".clew_durable();
    FOR i IN 1 .. cardinality(p_digests) LOOP
        INSERT INTO "clew".clew_blobs (ns, digest, touched, data) VALUES (p_ns, p_digests[i], v_now, p_data[i])
        ON CONFLICT (ns, digest) DO UPDATE SET touched = excluded.touched;
    END LOOP;
END $f$;

CREATE FUNCTION "clew".clew_sweep(p_ns bytea, p_digests bytea[], p_grace bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $f$
DECLARE
    v_before bigint := "clew".clew_now() - p_grace;
BEGIN
    PERFORM "clew".clew_durable();
    FOR i IN 1 .. cardinality(p_digests) LOOP
        DELETE FROM "clew".clew_blobs b WHERE b.ns = p_ns AND b.digest = p_digests[i] AND b.touched <= v_before;
    END LOOP;
END $f$;

INSERT INTO "clew".clew_meta VALUES (1);

    END IF;
END $clew$
