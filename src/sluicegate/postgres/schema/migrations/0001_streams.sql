-- Streams: an append-only log, and the subscriptions that read it.
--
-- In this file {schema} is the quoted name of the schema, and {class} a number below 32768 that no
-- other schema of the database uses.
--
-- The appender mark. A transaction takes a shared advisory lock on the last position that was handed
-- out, and takes positions only then. A commit is visible before its locks go, so nothing becomes
-- visible any more at or below the least mark in pg_locks: that is the horizon of readers. The mark
-- is taken by the default of message.position, so that a plain INSERT or COPY takes it, too.
-- The sequence must keep CACHE 1, and readers must read in a later statement than the horizon.

CREATE SEQUENCE {schema}.position AS bigint MINVALUE 1 MAXVALUE 281474976710655 CACHE 1;

-- Each transaction takes the mark once. A rollback to a savepoint undoes the lock and the note of it.
CREATE FUNCTION {schema}.next_position() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF coalesce(current_setting('sluicegate.mark_{class}', true), '') = '' THEN
    PERFORM pg_advisory_xact_lock_shared(
      ({class}::bigint << 48) | (SELECT last_value - (NOT is_called)::int FROM {schema}.position));
    PERFORM set_config('sluicegate.mark_{class}', 'taken', true);
  END IF;
  RETURN nextval('{schema}.position');
END $$;

CREATE FUNCTION {schema}.slot_of(stream text) RETURNS smallint LANGUAGE sql IMMUTABLE STRICT
PARALLEL SAFE AS $$ SELECT get_byte(sha256(convert_to(stream, 'UTF8')), 0)::smallint $$;

CREATE TABLE {schema}.message (
  position bigint NOT NULL DEFAULT {schema}.next_position() PRIMARY KEY,
  stream text NOT NULL CHECK (stream <> ''),
  version bigint NOT NULL CHECK (version >= 0),
  slot smallint NOT NULL GENERATED ALWAYS AS ({schema}.slot_of(stream)) STORED,
  category text NOT NULL GENERATED ALWAYS AS (split_part(stream, '-', 1)) STORED,
  type text NOT NULL CHECK (type <> ''),
  data jsonb NOT NULL,
  metadata jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
  id uuid NOT NULL DEFAULT gen_random_uuid(),
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT message_version UNIQUE (stream, version),
  CONSTRAINT message_id UNIQUE (id)
);
CREATE INDEX message_slot ON {schema}.message (slot, position);
CREATE INDEX message_category ON {schema}.message (category, position);
CREATE INDEX message_at ON {schema}.message USING brin (at)
WITH (pages_per_range = 16, autosummarize = on);

-- The last version of a stream whose messages have all been deleted, so that versions go on.
CREATE TABLE {schema}.stream_end (stream text PRIMARY KEY, version bigint NOT NULL);

-- Not in SQL: PostgreSQL before 18 would plan it again in each transaction.
CREATE FUNCTION {schema}.last_version(p_stream text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(
    (SELECT version FROM {schema}.message WHERE stream = p_stream ORDER BY version DESC LIMIT 1),
    (SELECT version FROM {schema}.stream_end WHERE stream = p_stream),
    -1);
END $$;

-- Appends messages, [{"type": ..., "data": ..., "metadata": {...}, "id": ...}, ...], behind the last
-- one of the stream, and returns a row for each. Messages whose ids are in the log already, all of
-- them and with the same contents, are returned as they are there, with is_new false.
CREATE FUNCTION {schema}.append(p_stream text, p_messages jsonb, p_expected bigint DEFAULT NULL)
RETURNS TABLE (r_position bigint, r_version bigint, r_id uuid, r_at timestamptz, r_is_new boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  -- In lax mode "$" stands for the elements of the array, but not for those of an array among them.
  v_wrong CONSTANT jsonpath := 'lax $ ? (@.type() != "object" || !(@."type".type() == "string")
    || @."type" == "" || !exists(@."data") || @."metadata".type() != "object")'::jsonpath;
  v_given boolean;
  v_last bigint;
BEGIN
  IF coalesce(p_stream, '') = '' THEN
    RAISE EXCEPTION 'the name of a stream must not be empty' USING ERRCODE = 'PS003';
  END IF;
  IF p_messages IS NULL OR jsonb_typeof(p_messages) <> 'array' OR p_messages = '[]' THEN
    RAISE EXCEPTION 'messages must be a JSON array of at least one object' USING ERRCODE = 'PS003';
  END IF;
  IF jsonb_path_exists(p_messages, v_wrong) THEN
    RAISE EXCEPTION 'message % must have a type, which is a text, data, and metadata that are an object if there are any',
        (SELECT min(n) - 1 FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS t (e, n)
         WHERE jsonb_path_exists(jsonb_build_array(e), v_wrong))
      USING ERRCODE = 'PS003';
  END IF;
  v_given := jsonb_path_exists(p_messages, '$ ? (@."id".type() != "null")');
  LOOP
    IF v_given THEN
      RETURN QUERY SELECT * FROM {schema}.known(p_stream, p_messages);
      IF FOUND THEN
        -- The commit that added them may have been cut off while it waited for a synchronous standby. A
        -- transaction that writes nothing would not wait, and report what a failover loses.
        PERFORM pg_logical_emit_message(true, 'sluicegate', '');
        RETURN;
      END IF;
    END IF;
    v_last := {schema}.last_version(p_stream);
    IF p_expected IS NOT NULL AND v_last <> p_expected THEN
      RAISE EXCEPTION 'the stream % is at version %, not %', p_stream, v_last, p_expected
        USING ERRCODE = 'PS001', DETAIL = v_last;
    END IF;
    -- The first one alone: whoever has it has the versions behind it, too. A conflict waits for the
    -- other transaction, and adds nothing.
    INSERT INTO {schema}.message AS m (stream, version, type, data, metadata, id)
    SELECT p_stream, v_last + 1, e ->> 'type', e -> 'data', coalesce(e -> 'metadata', '{}'),
           coalesce((e ->> 'id')::uuid, gen_random_uuid())
    FROM (SELECT p_messages -> 0 AS e) f
    ON CONFLICT DO NOTHING
    RETURNING m.position, m.version, m.id, m.at, true INTO r_position, r_version, r_id, r_at, r_is_new;
    EXIT WHEN FOUND;
  END LOOP;
  RETURN NEXT;
  IF jsonb_array_length(p_messages) > 1 THEN
    RETURN QUERY
    INSERT INTO {schema}.message AS m (stream, version, type, data, metadata, id)
    SELECT p_stream, v_last + n, e ->> 'type', e -> 'data', coalesce(e -> 'metadata', '{}'),
           coalesce((e ->> 'id')::uuid, gen_random_uuid())
    FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS t (e, n) WHERE n > 1 ORDER BY n
    RETURNING m.position, m.version, m.id, m.at, true;
  END IF;
END $$;

-- The messages of these ids, if they are in the log: all of them, in this stream, in a row, and with
-- these contents; a trace context in the metadata, which differs in every attempt, is not one of them.
-- Any other that is there is a mistake.
CREATE FUNCTION {schema}.known(p_stream text, p_messages jsonb)
RETURNS TABLE (r_position bigint, r_version bigint, r_id uuid, r_at timestamptz, r_is_new boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_other record;
BEGIN
  RETURN QUERY
  SELECT m.position, m.version, m.id, m.at, false
  FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS t (e, n)
  JOIN {schema}.message m ON m.id = (e ->> 'id')::uuid ORDER BY n;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  SELECT n - 1 AS at, e ->> 'id' AS id, m.stream INTO v_other
  FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS t (e, n)
  LEFT JOIN {schema}.message m ON m.id = (e ->> 'id')::uuid
  WHERE (m.stream, m.type, m.data, m.metadata - ARRAY['traceparent', 'tracestate'])
    IS DISTINCT FROM (p_stream, e ->> 'type', e -> 'data',
      coalesce(e -> 'metadata', '{}') - ARRAY['traceparent', 'tracestate'])
  ORDER BY n LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'some of these messages are in the log, but message % with the id % %', v_other.at,
      coalesce(v_other.id, 'NULL'), CASE WHEN v_other.stream IS NULL THEN 'is not'
        WHEN v_other.stream = p_stream THEN 'has other contents there'
        ELSE format('is in the stream %s', v_other.stream) END
      USING ERRCODE = 'PS002';
  END IF;
END $$;

-- Appends messages of several streams, each behind the last one of its stream: an element of each
-- array per message, contents as JSON text. The ids must be new, and no other transaction may append
-- to one of the streams meanwhile, or it is a unique violation. Positions are in the order of the
-- arrays; the rows are added in the order of their streams, so that two of these calls wait for each
-- other in one direction only.
CREATE FUNCTION {schema}.append_new(
  p_streams text[], p_types text[], p_data text[], p_metadata text[], p_ids text[])
RETURNS TABLE (r_id text, r_state text, r_position bigint, r_version bigint, r_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY
  WITH given AS MATERIALIZED (
    SELECT g.*, {schema}.next_position() AS position, clock_timestamp() AS at
    FROM unnest(p_streams, p_types, p_data, p_metadata, p_ids)
      WITH ORDINALITY AS g (stream, type, data, metadata, id, n)
  ), ends AS MATERIALIZED (
    SELECT s.stream, {schema}.last_version(s.stream) AS version
    FROM (SELECT DISTINCT u.stream FROM unnest(p_streams) AS u (stream)) s
  )
  INSERT INTO {schema}.message AS m (position, stream, version, type, data, metadata, id, at)
  SELECT g.position, g.stream, e.version + row_number() OVER (PARTITION BY g.stream ORDER BY g.n),
         g.type, g.data::jsonb, g.metadata::jsonb, g.id::uuid, g.at
  FROM given g JOIN ends e ON e.stream = g.stream
  ORDER BY g.stream COLLATE "C", g.n
  RETURNING m.id::text, 'new', m.position, m.version, m.at;
END $$;

-- As append_new, one by one: an id that is in the log already, the same messages in another
-- transaction, and an expected version that is wrong concern only their own message, and those
-- behind it in its group. The state is "new", "known" (in the log already, with these contents),
-- "other" (its id is that of another message), "version" (the stream is at r_version instead of the
-- expected one) or "behind" (a message of its group before it was not appended). A group that has
-- messages of several streams needs p_in_order.
CREATE FUNCTION {schema}.append_each(
  p_streams text[], p_types text[], p_data text[], p_metadata text[], p_ids text[],
  p_expected bigint[], p_groups int[], p_in_order boolean)
RETURNS TABLE (r_id text, r_state text, r_position bigint, r_version bigint, r_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  i int;
  v_last bigint;
  v_failed int[] := '{}';
  v_positions bigint[];
  v_at timestamptz := clock_timestamp();
  v_is_new boolean := false;
BEGIN
  SELECT array_agg({schema}.next_position()) INTO v_positions
  FROM generate_series(1, cardinality(p_streams));
  FOR i IN
    SELECT s.n FROM unnest(p_streams) WITH ORDINALITY AS s (stream, n)
    ORDER BY CASE WHEN p_in_order THEN '' ELSE s.stream COLLATE "C" END, s.n
  LOOP
    r_id := p_ids[i];
    r_position := NULL;
    r_version := NULL;
    r_at := NULL;
    IF p_groups[i] = ANY (v_failed) THEN
      r_state := 'behind';
      RETURN NEXT;
      CONTINUE;
    END IF;
    LOOP
      SELECT CASE WHEN (m.stream, m.type, m.data, m.metadata - ARRAY['traceparent', 'tracestate'])
                     = (p_streams[i], p_types[i], p_data[i]::jsonb,
                        p_metadata[i]::jsonb - ARRAY['traceparent', 'tracestate'])
             THEN 'known' ELSE 'other' END, m.position, m.version, m.at
      INTO r_state, r_position, r_version, r_at
      FROM {schema}.message m WHERE m.id = p_ids[i]::uuid;
      EXIT WHEN FOUND;
      v_last := {schema}.last_version(p_streams[i]);
      IF p_expected[i] <> v_last THEN
        r_state := 'version';
        r_version := v_last;
        EXIT;
      END IF;
      INSERT INTO {schema}.message AS m (position, stream, version, type, data, metadata, id, at)
      VALUES (v_positions[i], p_streams[i], v_last + 1, p_types[i], p_data[i]::jsonb,
              p_metadata[i]::jsonb, p_ids[i]::uuid, v_at)
      ON CONFLICT DO NOTHING
      RETURNING 'new', m.position, m.version, m.at INTO r_state, r_position, r_version, r_at;
      EXIT WHEN FOUND;
    END LOOP;
    v_is_new := v_is_new OR r_state = 'new';
    IF r_state IN ('other', 'version') AND p_groups[i] IS NOT NULL THEN
      v_failed := v_failed || p_groups[i];
    END IF;
    RETURN NEXT;
  END LOOP;
  IF NOT v_is_new THEN
    PERFORM pg_logical_emit_message(true, 'sluicegate', '');  -- as in append
  END IF;
END $$;

-- The last position that a reader may take for complete: no transaction that is open, or begins
-- later, adds a message at or before it. Read messages in a later statement.
CREATE FUNCTION {schema}.horizon() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_last bigint;
  v_mark bigint;
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'the horizon can be read on the primary server only' USING ERRCODE = 'PS004';
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'the horizon must be read at the isolation level READ COMMITTED: behind the snapshot of the transaction there may be messages before it'
      USING ERRCODE = 'PS004';
  END IF;
  SELECT last_value - (NOT is_called)::int INTO v_last FROM {schema}.position;
  SELECT min(mark) INTO v_mark FROM {schema}.appender;
  RETURN least(v_last, v_mark);
END $$;

-- The transactions that hold a mark now, and where they hold the horizon.
CREATE VIEW {schema}.appender AS
SELECT ((classid::bigint << 32) | objid::bigint) & 281474976710655 AS mark, pid, virtualtransaction
FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid::bigint >> 16 = {class}
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- A subscription, and the positions that are not delivered to it: at its start visible already beyond
-- the horizon, or older than the point in time, or skipped.
CREATE TABLE {schema}.subscription (
  name text PRIMARY KEY CHECK (name <> ''),
  selection text NOT NULL,
  start text NOT NULL,
  earlier bigint[] NOT NULL DEFAULT '{}',
  paused boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL DEFAULT now()
);

-- Every message of the slot before "position" is settled, and those in the map that is the metadata.
CREATE TABLE {schema}.subscription_slot (
  name text NOT NULL REFERENCES {schema}.subscription ON DELETE CASCADE,
  slot smallint NOT NULL CHECK (slot BETWEEN 0 AND 255),
  position bigint NOT NULL,
  metadata text NOT NULL DEFAULT '',
  epoch bigint NOT NULL DEFAULT 0,
  owner text,
  lease_until timestamptz,
  paused boolean NOT NULL DEFAULT false,
  missed bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (name, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
COMMENT ON COLUMN {schema}.subscription_slot.missed IS
  'messages that were deleted before the subscription had handled them';

CREATE TABLE {schema}.subscription_member (
  name text NOT NULL REFERENCES {schema}.subscription ON DELETE CASCADE,
  member text NOT NULL,
  seen_at timestamptz NOT NULL,
  PRIMARY KEY (name, member)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);

-- Messages that an operator has skipped for a subscription.
CREATE TABLE {schema}.subscription_skip (
  name text NOT NULL REFERENCES {schema}.subscription ON DELETE CASCADE,
  position bigint NOT NULL,
  id uuid NOT NULL,
  reason text NOT NULL DEFAULT '',
  skipped_by text NOT NULL DEFAULT session_user,
  skipped_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (name, position)
);

-- Records of keys that wait for an operator, in the order of their ids. The queue is the digest of
-- the consumer and the key, the place that of the record's topic, partition and offset. The key is a
-- JSON text; json keeps every character of it, which text and jsonb do not.
CREATE TABLE {schema}.parked (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  consumer text NOT NULL,
  key json NOT NULL,
  queue bytea NOT NULL,
  place bytea NOT NULL,
  record json NOT NULL,
  parked_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (queue, place),
  UNIQUE (queue, id),
  UNIQUE (consumer, id)
);

-- Whether a subscription's selection has a stream. In a name of {"streams": [...]}, * stands for any
-- characters. A selection that is neither that nor {"category": ...} has every stream.
CREATE FUNCTION {schema}.is_selected(p_selection text, p_stream text) RETURNS boolean LANGUAGE sql
IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN p_selection NOT LIKE '{%' THEN true
    WHEN p_selection::jsonb ? 'category' THEN
      split_part(p_stream, '-', 1) = p_selection::jsonb ->> 'category'
    WHEN p_selection::jsonb ? 'streams' THEN EXISTS (
      SELECT FROM jsonb_array_elements_text(p_selection::jsonb -> 'streams') AS s (name)
      WHERE p_stream LIKE replace(regexp_replace(name, '([\\%_])', '\\\1', 'g'), '*', '%'))
    ELSE true END
$$;

-- Retention. Deletes, of the next p_most messages behind p_after that are at or before p_to, those
-- that are older than p_older, if it is given, and that no subscription needs any more; or all of
-- them, if p_forced: then their subscriptions count them as missed. Returns how many were deleted
-- and how many were kept for a subscription, and the last position looked at: NULL at the end.
CREATE FUNCTION {schema}.delete_messages(
  p_after bigint, p_to bigint, p_older timestamptz, p_most int, p_forced boolean)
RETURNS TABLE (r_deleted bigint, r_kept bigint, r_last bigint) LANGUAGE sql VOLATILE AS $$
  WITH batch AS MATERIALIZED (
    SELECT position, stream, version, slot FROM {schema}.message
    WHERE position > p_after AND position <= p_to AND (p_older IS NULL OR at < p_older)
    ORDER BY position LIMIT p_most
  ), needed AS MATERIALIZED (
    SELECT b.position, s.name, s.slot FROM batch b
    JOIN {schema}.subscription_slot s ON s.slot = b.slot AND s.position <= b.position
    JOIN {schema}.subscription u ON u.name = s.name AND {schema}.is_selected(u.selection, b.stream)
  ), gone AS (
    DELETE FROM {schema}.message m USING batch b
    WHERE m.position = b.position
      AND (p_forced OR NOT EXISTS (SELECT FROM needed n WHERE n.position = b.position))
    RETURNING m.position, m.stream, m.version
  ), ends AS (
    INSERT INTO {schema}.stream_end AS e (stream, version)
    SELECT g.stream, max(g.version) FROM gone g GROUP BY g.stream
    HAVING NOT EXISTS (
      SELECT FROM {schema}.message m WHERE m.stream = g.stream AND m.version > max(g.version))
    ON CONFLICT (stream) DO UPDATE SET version = greatest(e.version, excluded.version)
  ), slots AS MATERIALIZED ( -- locked in the order of their owners, so that none waits in a circle
    SELECT s.name, s.slot FROM {schema}.subscription_slot s
    WHERE p_forced AND EXISTS (SELECT FROM needed n WHERE (n.name, n.slot) = (s.name, s.slot))
    ORDER BY s.name, s.slot FOR NO KEY UPDATE OF s
  ), told AS (
    UPDATE {schema}.subscription_slot s SET missed = s.missed + n.lost
    FROM slots t JOIN (
      SELECT name, slot, count(*) AS lost FROM needed JOIN gone USING (position)
      GROUP BY name, slot) n USING (name, slot)
    WHERE s.name = t.name AND s.slot = t.slot
  )
  SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM batch) - (SELECT count(*) FROM gone),
         (SELECT max(position) FROM batch)
$$;

-- Deletes the next p_most messages of a stream behind the version p_after that are at or before p_to,
-- or none of them if a subscription needs one and p_forced is false. Returns how many were deleted,
-- how many subscriptions need, and the last version looked at: NULL at the end.
CREATE FUNCTION {schema}.delete_stream(
  p_stream text, p_after bigint, p_to bigint, p_most int, p_forced boolean)
RETURNS TABLE (r_deleted bigint, r_kept bigint, r_last bigint) LANGUAGE sql VOLATILE AS $$
  WITH batch AS MATERIALIZED (
    SELECT position, version FROM {schema}.message
    WHERE stream = p_stream AND version > p_after AND version <= p_to
    ORDER BY version LIMIT p_most
  ), needed AS MATERIALIZED (
    SELECT b.position, s.name, s.slot FROM batch b
    JOIN {schema}.subscription_slot s
      ON s.slot = {schema}.slot_of(p_stream) AND s.position <= b.position
    JOIN {schema}.subscription u ON u.name = s.name AND {schema}.is_selected(u.selection, p_stream)
  ), gone AS (
    DELETE FROM {schema}.message m USING batch b
    WHERE m.position = b.position AND (p_forced OR NOT EXISTS (SELECT FROM needed))
    RETURNING m.position, m.version
  ), ends AS (
    INSERT INTO {schema}.stream_end AS e (stream, version)
    SELECT p_stream, max(g.version) FROM gone g
    HAVING count(*) > 0 AND NOT EXISTS (
      SELECT FROM {schema}.message m WHERE m.stream = p_stream AND m.version > max(g.version))
    ON CONFLICT (stream) DO UPDATE SET version = greatest(e.version, excluded.version)
  ), slots AS MATERIALIZED ( -- locked in the order of their owners, so that none waits in a circle
    SELECT s.name, s.slot FROM {schema}.subscription_slot s
    WHERE p_forced AND EXISTS (SELECT FROM needed n WHERE (n.name, n.slot) = (s.name, s.slot))
    ORDER BY s.name, s.slot FOR NO KEY UPDATE OF s
  ), told AS (
    UPDATE {schema}.subscription_slot s SET missed = s.missed + n.lost
    FROM slots t JOIN (
      SELECT name, slot, count(*) AS lost FROM needed JOIN gone USING (position)
      GROUP BY name, slot) n USING (name, slot)
    WHERE s.name = t.name AND s.slot = t.slot
  )
  SELECT (SELECT count(*) FROM gone),
         (SELECT count(DISTINCT position) FROM needed WHERE NOT p_forced),
         (SELECT max(version) FROM batch)
$$;

-- How many processes serve a subscription: those that hold a lease, and those seen in so many seconds.
CREATE FUNCTION {schema}.live_members(p_name text, p_seconds float8) RETURNS bigint LANGUAGE sql
VOLATILE AS $$
  SELECT count(*) FROM (
    SELECT owner FROM {schema}.subscription_slot
    WHERE name = p_name AND lease_until > clock_timestamp()
    UNION SELECT member FROM {schema}.subscription_member
    WHERE name = p_name AND seen_at > clock_timestamp() - make_interval(secs => p_seconds)) l
$$;

-- Moves a subscription to a start point: a position, or a time, or with neither the next message
-- (p_position and p_time NULL). As at a first start, the horizon is read before the messages. Messages
-- that were skipped stay so. Increased epochs refuse stores of processes that serve it; they keep
-- their leases until they notice, so that no other one reads the same slots meanwhile. The state is
-- "reset", "missing", "live" (r_number processes serve it, and p_forced is false), "beyond" (r_number
-- is the greatest possible position) or "many" (too many messages to leave out by their positions).
CREATE FUNCTION {schema}.reset_subscription(
  p_name text, p_position bigint, p_time timestamptz, p_start text, p_most int, p_forced boolean,
  p_seconds float8)
RETURNS TABLE (r_state text, r_number bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_selection text;
  v_horizon bigint;
  v_first bigint;
  v_earlier bigint[] := '{}';
  v_live bigint;
BEGIN
  SELECT u.selection INTO v_selection FROM {schema}.subscription u WHERE u.name = p_name;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'missing', NULL::bigint;
    RETURN;
  END IF;
  v_horizon := {schema}.horizon();
  v_first := coalesce(p_position, v_horizon + 1);
  IF v_first > v_horizon + 1 THEN
    RETURN QUERY SELECT 'beyond', v_horizon + 1;
    RETURN;
  END IF;
  IF p_time IS NOT NULL THEN
    -- OFFSET 0 keeps the planner from walking the log by position until the time matches
    SELECT least(v_first, min(f.position)) INTO v_first
    FROM (SELECT m.position, m.stream FROM {schema}.message m WHERE m.at >= p_time OFFSET 0) f
    WHERE {schema}.is_selected(v_selection, f.stream);
  END IF;
  IF p_position IS NULL THEN
    SELECT coalesce(array_agg(f.position), '{}') INTO v_earlier FROM (
      SELECT m.position FROM {schema}.message m
      WHERE m.position >= v_first AND m.at < coalesce(p_time, 'infinity')
        AND {schema}.is_selected(v_selection, m.stream)
      ORDER BY m.position LIMIT p_most + 1) f;
    IF cardinality(v_earlier) > p_most THEN
      RETURN QUERY SELECT 'many', p_most::bigint;
      RETURN;
    END IF;
  END IF;
  PERFORM FROM {schema}.subscription u
  WHERE u.name = p_name AND u.selection = v_selection FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'missing', NULL::bigint;
    RETURN;
  END IF;
  PERFORM FROM {schema}.subscription_slot s WHERE s.name = p_name ORDER BY s.slot FOR NO KEY UPDATE;
  v_live := {schema}.live_members(p_name, p_seconds);
  IF v_live > 0 AND NOT p_forced THEN
    RETURN QUERY SELECT 'live', v_live;
    RETURN;
  END IF;
  UPDATE {schema}.subscription u SET start = p_start, earlier = v_earlier || ARRAY(
    SELECT k.position FROM {schema}.subscription_skip k
    JOIN {schema}.message m ON (m.position, m.id) = (k.position, k.id)
    WHERE k.name = p_name AND k.position >= v_first AND k.position <> ALL (v_earlier))
  WHERE u.name = p_name;
  UPDATE {schema}.subscription_slot s SET position = v_first, metadata = '',
    epoch = s.epoch + (s.epoch > 0)::int, missed = 0
  WHERE s.name = p_name;
  RETURN QUERY SELECT 'reset', v_first;
END $$;

-- Deletes a subscription with its positions. The state is "deleted", "missing" or "live", as above.
CREATE FUNCTION {schema}.delete_subscription(p_name text, p_forced boolean, p_seconds float8)
RETURNS TABLE (r_state text, r_number bigint) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM {schema}.subscription u WHERE u.name = p_name FOR UPDATE;
  r_state := CASE WHEN FOUND THEN 'deleted' ELSE 'missing' END;
  PERFORM FROM {schema}.subscription_slot s WHERE s.name = p_name ORDER BY s.slot FOR UPDATE;
  r_number := {schema}.live_members(p_name, p_seconds);
  IF r_number > 0 AND NOT p_forced THEN
    r_state := 'live';
  ELSE
    DELETE FROM {schema}.subscription u WHERE u.name = p_name;
  END IF;
  RETURN NEXT;
END $$;

-- Leaves one message out for a subscription. A process that holds its slot loses it, and reads it
-- again without the message. If that is the next one of its slot, the position passes it. The state
-- is "skipped", "missing", "unknown" (no such message), "other" (not in the selection), "handled" or
-- "already".
CREATE FUNCTION {schema}.skip_message(p_name text, p_position bigint, p_reason text)
RETURNS TABLE (r_state text, r_slot smallint, r_stream text, r_version bigint, r_type text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_horizon bigint := {schema}.horizon();
  v_message {schema}.message;
  v_subscription {schema}.subscription;
  v_slot {schema}.subscription_slot;
  v_is_next boolean;
BEGIN
  SELECT * INTO v_message FROM {schema}.message m WHERE m.position = p_position;
  SELECT * INTO v_subscription FROM {schema}.subscription u WHERE u.name = p_name FOR NO KEY UPDATE;
  SELECT * INTO v_slot FROM {schema}.subscription_slot s
  WHERE s.name = p_name AND s.slot = v_message.slot FOR NO KEY UPDATE;
  r_state := CASE
    WHEN v_subscription.name IS NULL THEN 'missing'
    WHEN v_message.position IS NULL THEN 'unknown'
    WHEN v_slot.slot IS NULL
      OR NOT {schema}.is_selected(v_subscription.selection, v_message.stream) THEN 'other'
    WHEN p_position < v_slot.position THEN 'handled'
    WHEN p_position = ANY (v_subscription.earlier) THEN 'already'
    ELSE 'skipped' END;
  r_slot := v_message.slot;
  r_stream := v_message.stream;
  r_version := v_message.version;
  r_type := v_message.type;
  RETURN NEXT;
  IF r_state <> 'skipped' THEN
    RETURN;
  END IF;
  INSERT INTO {schema}.subscription_skip (name, position, id, reason)
  VALUES (p_name, p_position, v_message.id, p_reason);
  UPDATE {schema}.subscription u SET earlier = u.earlier || p_position WHERE u.name = p_name;
  -- with a map of settled messages behind the position, only a process of the subscription moves it
  v_is_next := v_slot.metadata = '' AND p_position <= v_horizon AND NOT EXISTS (
    SELECT FROM {schema}.message m
    WHERE m.slot = v_slot.slot AND m.position >= v_slot.position AND m.position < p_position
      AND m.position <> ALL (v_subscription.earlier)
      AND {schema}.is_selected(v_subscription.selection, m.stream));
  UPDATE {schema}.subscription_slot s SET epoch = s.epoch + (s.epoch > 0)::int,
    position = CASE WHEN v_is_next THEN p_position + 1 ELSE s.position END
  WHERE s.name = p_name AND s.slot = v_slot.slot;
END $$;

-- The schema itself: which migrations have been applied, the advisory class, and the roles to which
-- each right was granted, so that an upgrade can grant what is new.
CREATE TABLE {schema}.migration (
  version int PRIMARY KEY,
  name text NOT NULL,
  checksum text NOT NULL,
  library text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {schema}.meta (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {schema}.grantee (
  role name NOT NULL,
  rights text NOT NULL CHECK (rights IN ('append', 'read', 'subscribe')),
  PRIMARY KEY (role, rights)
);
