-- Queues: jobs in strict order per key, handled by consumers that hold leases.
--
-- Three tables carry the work. A job is inserted once and deleted when it is done. A lane is the row
-- of one key with work, and whatever holds or delays the key is a column of it. A bell is written by
-- a trigger for each key of a statement that inserts jobs, so that entering takes no lock and updates
-- nothing; claims merge bells into lanes.
--
-- 1. Places are taken from a sequence, so a job may become visible behind a later one. Its bell does,
--    too: a lane is read from "after" on, which a late bell lowers, also while the lane is leased.
--    Jobs may be visible before their bells are merged, so a claim reads no lane from behind the
--    lowest bell that is left.
-- 2. A claim locks lanes in one statement and reads their jobs in a later one. In one statement the
--    newest row of a lane would be joined with jobs of an older snapshot.
-- 3. A lease is fenced by its number: nothing is settled under one that has ended or was replaced.
--    Its expiry needs no sweeper, since a claim takes expired lanes first.
-- 4. A claim may be lost in a crash of the server, and commits asynchronously; a settle never does.
--    So numbers of leases come from the clock and a sequence: a sequence may be set back by a crash.
-- 5. Locks on lanes are skipped, or taken in the order of their keys; no claim waits for a transaction
--    that has settled and stays open.
-- 6. A queue may be new and its tables never analyzed, so plans are not left to estimates: rows are
--    found by subqueries that OFFSET 0 keeps apart, and changed by their ctid, under their locks.
-- 7. Functions that depend on the time take it as p_now; by default it is the server's clock.
-- 8. A job is cancelled under the lock of its lane. If it is leased, it is only marked: its consumer learns
--    that with the next extension, and the mark counts whenever its lease ends without having handled it.
--    A claim locks a lane before it looks for marks, so it gives no marked job out.

CREATE SEQUENCE {schema}.job_place AS bigint MINVALUE 1 CACHE 1;
CREATE SEQUENCE {schema}.job_lease AS bigint MINVALUE 1 CACHE 1;

-- The slot of a key on the ring of 65,536: the first two bytes of its SHA-256, little-endian. It is
-- inlined in queries, since it is STABLE as convert_to.
CREATE FUNCTION {schema}.ring_slot(key text) RETURNS int LANGUAGE sql STABLE STRICT
PARALLEL SAFE AS $$
  SELECT get_byte(sha256(convert_to(key, 'UTF8')), 0) + 256 * get_byte(sha256(convert_to(key, 'UTF8')), 1)
$$;

CREATE TABLE {schema}.queue (
  name text PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 200),
  slot_function text NOT NULL DEFAULT 'sha256' CHECK (slot_function IN ('sha256', 'blake3')),
  ordering_required boolean NOT NULL DEFAULT false,
  sticky boolean NOT NULL DEFAULT false,
  poison text NOT NULL DEFAULT 'park_key'
    CHECK (poison IN ('skip', 'block', 'block_and_dead_letter', 'park_key')),
  max_attempts int NOT NULL DEFAULT 5 CHECK (max_attempts > 0),
  max_depth bigint CHECK (max_depth > 0),
  max_in_flight int CHECK (max_in_flight > 0),
  key_rate float8 CHECK (key_rate > 0),
  keep_done interval,
  keep_dead interval,
  paused boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL DEFAULT now(),
  CHECK (NOT ordering_required OR poison IN ('block', 'block_and_dead_letter'))
);
COMMENT ON COLUMN {schema}.queue.max_in_flight IS 'the most leases at once';
COMMENT ON COLUMN {schema}.queue.key_rate IS 'the most jobs of a key that start in a second';
COMMENT ON COLUMN {schema}.queue.keep_done IS 'how long handled jobs are kept; NULL: not at all';
COMMENT ON COLUMN {schema}.queue.keep_dead IS 'how long dead letters are kept; NULL: until purged';

-- The columns from "attempts" on are of jobs without a key, which have no lane; and so is "due" of
-- one that backs off. A job of a key that is due later is in no lane until then.
CREATE TABLE {schema}.job (
  queue text NOT NULL,
  place bigint NOT NULL DEFAULT nextval('{schema}.job_place'),
  key text CHECK (octet_length(key) <= 1000),
  payload jsonb NOT NULL,
  headers jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  due timestamptz,
  priority smallint NOT NULL DEFAULT 0,
  slot int CHECK (slot BETWEEN 0 AND 65535),
  id uuid,
  queueing_lock text CHECK (octet_length(queueing_lock) <= 1000),
  attempts int NOT NULL DEFAULT 0,
  lost int NOT NULL DEFAULT 0,
  state smallint NOT NULL DEFAULT 0,
  lease bigint,
  owner text,
  lease_until timestamptz,
  reason text,
  cancelled boolean NOT NULL DEFAULT false,
  PRIMARY KEY (queue, place)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
COMMENT ON COLUMN {schema}.job.cancelled IS 'cancelled while it was leased: it is not leased again';
CREATE INDEX job_lane ON {schema}.job (queue, key, place) WHERE key IS NOT NULL AND due IS NULL;
CREATE INDEX job_due ON {schema}.job (queue, due, place) WHERE due IS NOT NULL;
CREATE INDEX job_due_key ON {schema}.job (queue, key, place) WHERE key IS NOT NULL AND due IS NOT NULL;
CREATE INDEX job_loose ON {schema}.job (queue, priority DESC, place)
WHERE key IS NULL AND due IS NULL AND lease IS NULL AND state = 0;
CREATE INDEX job_leased ON {schema}.job (queue, lease_until) WHERE lease IS NOT NULL;
CREATE INDEX job_stopped ON {schema}.job (queue, state, place) WHERE state <> 0;
CREATE INDEX job_cancelled ON {schema}.job (queue, place) WHERE cancelled;

-- A state is 0: ready, 1: blocked, 2: parked. "low" is the lowest place that a bell has told since
-- the last lease began: the lane is read from the place behind "after", or from "low". "attempts" are those of the
-- job at the place "head"; if another one comes first by now, it has had none. "lost" are the leases in a row
-- that were lost, and "reason" is why the last try failed, or the lane was stopped.
CREATE TABLE {schema}.lane (
  queue text NOT NULL,
  key text NOT NULL,
  slot int NOT NULL,
  sticky boolean NOT NULL,
  priority smallint NOT NULL,
  due timestamptz NOT NULL,
  state smallint NOT NULL DEFAULT 0,
  attempts int NOT NULL DEFAULT 0,
  lost int NOT NULL DEFAULT 0,
  head bigint,
  after bigint NOT NULL DEFAULT 0,
  low bigint,
  lease bigint,
  grp text,
  owner text,
  lease_until timestamptz,
  reason text,
  stopped_at timestamptz,
  PRIMARY KEY (queue, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
CREATE INDEX lane_ready ON {schema}.lane (queue, priority DESC, due) WHERE lease IS NULL AND state = 0;
CREATE INDEX lane_block ON {schema}.lane (queue, (priority >> 8) DESC, due)
WHERE lease IS NULL AND state = 0;
CREATE INDEX lane_slot ON {schema}.lane (queue, priority, (slot >> 8), due)
WHERE lease IS NULL AND state = 0 AND sticky;
CREATE INDEX lane_leased ON {schema}.lane (queue, lease_until) WHERE lease IS NOT NULL;
CREATE INDEX lane_leased_slot ON {schema}.lane (queue, slot) WHERE lease IS NOT NULL AND sticky;
CREATE INDEX lane_stopped ON {schema}.lane (queue, state, key) WHERE state <> 0;

CREATE TABLE {schema}.bell (
  queue text NOT NULL,
  low bigint NOT NULL,
  key text NOT NULL,
  slot int,
  priority smallint NOT NULL,
  PRIMARY KEY (queue, low)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);

-- Jobs that have left, as far as they are kept. The outcome is "done", "dead" or "cancelled"; a job that is
-- blocked with a dead letter is here and in its lane. Lists are read backwards, so that ties are told apart
-- by their places.
CREATE TABLE {schema}.finished_job (
  queue text NOT NULL,
  place bigint NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('done', 'dead', 'cancelled')),
  key text,
  payload jsonb NOT NULL,
  headers jsonb NOT NULL,
  at timestamptz NOT NULL,
  priority smallint NOT NULL,
  slot int,
  id uuid,
  attempts int NOT NULL DEFAULT 0,
  reason text,
  error text,
  finished_at timestamptz NOT NULL,
  PRIMARY KEY (queue, place)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
  autovacuum_analyze_scale_factor = 0.5);
CREATE INDEX finished_job_at ON {schema}.finished_job (queue, outcome, finished_at, place);
CREATE INDEX finished_job_key ON {schema}.finished_job (queue, key, outcome, finished_at, place)
WHERE key IS NOT NULL;
CREATE INDEX finished_job_error ON {schema}.finished_job
(queue, coalesce(error, ''), finished_at, place) WHERE outcome = 'dead';

-- What was enqueued: by the id of a job, by the last number of a client, and the locks of which one
-- job may wait at a time. The place tells a job's own row from that of another one.
CREATE TABLE {schema}.job_id (
  queue text NOT NULL,
  id uuid NOT NULL,
  place bigint NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (queue, id)
);
CREATE INDEX job_id_at ON {schema}.job_id USING brin (at) WITH (pages_per_range = 16, autosummarize = on);
CREATE TABLE {schema}.queue_client (
  queue text NOT NULL,
  client text NOT NULL CHECK (client <> ''),
  last bigint NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (queue, client)
) WITH (fillfactor = 50);
CREATE TABLE {schema}.queueing_lock (
  queue text NOT NULL,
  lock text NOT NULL,
  place bigint NOT NULL,
  PRIMARY KEY (queue, lock)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Sticky routing: which consumer of a group has which slots. A range that is draining has leases of an
-- earlier owner, perhaps: its owner is given nothing in it until the last of them has ended.
CREATE TABLE {schema}.ring_range (
  queue text NOT NULL REFERENCES {schema}.queue ON DELETE CASCADE,
  grp text NOT NULL CHECK (grp <> ''),
  lo int NOT NULL CHECK (lo >= 0),
  hi int NOT NULL CHECK (hi <= 65535),
  consumer text NOT NULL CHECK (consumer <> ''),
  draining boolean NOT NULL,
  assigned_at timestamptz NOT NULL,
  PRIMARY KEY (queue, grp, lo),
  CHECK (lo <= hi)
);
CREATE TABLE {schema}.queue_member (
  queue text NOT NULL REFERENCES {schema}.queue ON DELETE CASCADE,
  grp text NOT NULL CHECK (grp <> ''),
  consumer text NOT NULL CHECK (consumer <> ''),
  seen_at timestamptz NOT NULL,
  live_until timestamptz NOT NULL,
  PRIMARY KEY (queue, grp, consumer)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Whether ranges of a group follow its live consumers, or are an operator's.
CREATE TABLE {schema}.queue_group (
  queue text NOT NULL REFERENCES {schema}.queue ON DELETE CASCADE,
  grp text NOT NULL CHECK (grp <> ''),
  automatic boolean NOT NULL,
  moved_at timestamptz NOT NULL,
  PRIMARY KEY (queue, grp)
);

-- -- Entering ------------------------------------------------------------------------------------

-- Rings for each key with jobs that are not delayed, of a queue or of all if it is NULL: after jobs have
-- been inserted without the trigger below. A bell too many only has its lane read again. Returns how
-- many bells.
CREATE FUNCTION {schema}.ring_again(p_queue text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_count bigint;
BEGIN
  INSERT INTO {schema}.bell (queue, key, low, slot, priority)
  SELECT j.queue, CASE WHEN q.ordering_required THEN '' ELSE j.key END AS lane, min(j.place),
    min(j.slot), max(j.priority)
  FROM {schema}.job j JOIN {schema}.queue q ON q.name = j.queue
  WHERE (p_queue IS NULL OR j.queue = p_queue) AND j.due IS NULL
    AND (j.key IS NOT NULL OR q.ordering_required)
  GROUP BY j.queue, lane
  ON CONFLICT (queue, low) DO NOTHING;
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- Rings for each key of a statement that inserts jobs, and refuses what the queue does not take.
CREATE FUNCTION {schema}.ring() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_jobs bigint;
  v_unknown text;
  v_no_slot bigint;
  v_ids bigint;
  v_locks bigint;
  v_bounded boolean;
  v_count bigint;
  v_queue record;
BEGIN
  SELECT count(*), min(f.queue) FILTER (WHERE q.name IS NULL),
    count(*) FILTER (WHERE q.slot_function = 'blake3' AND f.key IS NOT NULL AND f.slot IS NULL),
    count(f.id), count(f.queueing_lock), coalesce(bool_or(q.max_depth IS NOT NULL), false)
  INTO v_jobs, v_unknown, v_no_slot, v_ids, v_locks, v_bounded
  FROM fresh f LEFT JOIN {schema}.queue q ON q.name = f.queue;
  IF v_unknown IS NOT NULL THEN
    RAISE EXCEPTION 'there is no queue %', v_unknown USING ERRCODE = 'PS010', DETAIL = v_unknown,
      HINT = 'create it with `sluicegate queue create`';
  END IF;
  IF v_no_slot > 0 THEN
    RAISE EXCEPTION 'jobs of a queue whose slot function is blake3 need their slot'
      USING ERRCODE = 'PS012', HINT = 'enqueue through Sluicegate, or use a queue with sha256';
  END IF;
  IF v_bounded THEN
    FOR v_queue IN
      SELECT q.name, q.max_depth FROM {schema}.queue q
      WHERE q.max_depth IS NOT NULL AND q.name IN (SELECT f.queue FROM fresh f)
    LOOP
      SELECT count(*) INTO v_count FROM (
        SELECT FROM {schema}.job j WHERE j.queue = v_queue.name LIMIT v_queue.max_depth + 1) c;
      IF v_count > v_queue.max_depth THEN
        RAISE EXCEPTION 'the queue % is full: max_depth is %', v_queue.name, v_queue.max_depth
          USING ERRCODE = 'PS011', DETAIL = v_queue.name;
      END IF;
    END LOOP;
  END IF;
  IF v_ids > 0 THEN  -- those that enqueue() has noted are left out
    INSERT INTO {schema}.job_id (queue, id, place)
    SELECT f.queue, f.id, f.place FROM fresh f
    WHERE f.id IS NOT NULL AND f.place IS DISTINCT FROM (
      SELECT i.place FROM {schema}.job_id i WHERE i.queue = f.queue AND i.id = f.id)
    ORDER BY f.queue, f.id;
  END IF;
  IF v_locks > 0 THEN
    INSERT INTO {schema}.queueing_lock (queue, lock, place)
    SELECT f.queue, f.queueing_lock, f.place FROM fresh f
    WHERE f.queueing_lock IS NOT NULL AND f.place IS DISTINCT FROM (
      SELECT k.place FROM {schema}.queueing_lock k
      WHERE k.queue = f.queue AND k.lock = f.queueing_lock)
    ORDER BY f.queue, f.queueing_lock;
  END IF;
  INSERT INTO {schema}.bell (queue, key, low, slot, priority)
  SELECT f.queue, CASE WHEN q.ordering_required THEN '' ELSE f.key END AS lane, min(f.place),
    min(f.slot), max(f.priority)
  FROM fresh f JOIN {schema}.queue q ON q.name = f.queue
  WHERE f.due IS NULL AND (f.key IS NOT NULL OR q.ordering_required)
  GROUP BY f.queue, lane;
  RETURN NULL;
END $$;
CREATE TRIGGER ring AFTER INSERT ON {schema}.job REFERENCING NEW TABLE AS fresh
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.ring();

-- Refuses other settings of a queue by which jobs have entered their lanes.
CREATE FUNCTION {schema}.keep_lanes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
  IF NEW.name <> OLD.name THEN
    RAISE EXCEPTION 'the queue % keeps its name, which its jobs have', OLD.name
      USING ERRCODE = 'object_in_use', HINT = 'make another queue, and move its jobs';
  END IF;
  IF (NEW.slot_function, NEW.ordering_required, NEW.sticky)
    IS DISTINCT FROM (OLD.slot_function, OLD.ordering_required, OLD.sticky) THEN
    LOCK TABLE {schema}.job IN SHARE ROW EXCLUSIVE MODE;  -- waits for jobs that enter
    IF EXISTS (SELECT FROM {schema}.job j WHERE j.queue = OLD.name)
      OR EXISTS (SELECT FROM {schema}.lane l WHERE l.queue = OLD.name)
      OR EXISTS (SELECT FROM {schema}.bell b WHERE b.queue = OLD.name) THEN
      RAISE EXCEPTION 'the queue % has jobs, so its slot_function, ordering_required and sticky stay',
        OLD.name USING ERRCODE = 'object_in_use', HINT = 'move its jobs to another queue';
    END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER keep_lanes BEFORE UPDATE ON {schema}.queue
FOR EACH ROW EXECUTE FUNCTION {schema}.keep_lanes();

-- Enqueues jobs, an element of each array per job; an array that is NULL has only NULLs. Those that
-- were enqueued before are left out: by their ids, by their numbers of a client, which must rise, or
-- because a job with their queueing lock is waiting. The state is "new", "known" or "locked".
CREATE FUNCTION {schema}.enqueue(
  p_queue text, p_keys text[], p_payloads text[], p_headers text[] DEFAULT NULL,
  p_due timestamptz[] DEFAULT NULL, p_priorities int[] DEFAULT NULL, p_slots int[] DEFAULT NULL,
  p_ids text[] DEFAULT NULL, p_locks text[] DEFAULT NULL, p_client text DEFAULT NULL,
  p_numbers bigint[] DEFAULT NULL)
RETURNS TABLE (r_n int, r_state text, r_place bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_states text[] := array_fill('new'::text, ARRAY[cardinality(p_payloads)]);
  v_places bigint[];
  v_last bigint;
  v_highest bigint;
  n int;
BEGIN
  IF p_payloads IS NULL OR cardinality(p_payloads) = 0 THEN
    RETURN;
  END IF;
  IF cardinality(p_keys) IS DISTINCT FROM cardinality(p_payloads)
    OR cardinality(p_payloads) <> ALL (ARRAY[
      coalesce(cardinality(p_headers), cardinality(p_payloads)),
      coalesce(cardinality(p_due), cardinality(p_payloads)),
      coalesce(cardinality(p_priorities), cardinality(p_payloads)),
      coalesce(cardinality(p_slots), cardinality(p_payloads)),
      coalesce(cardinality(p_ids), cardinality(p_payloads)),
      coalesce(cardinality(p_locks), cardinality(p_payloads)),
      coalesce(cardinality(p_numbers), cardinality(p_payloads))]) THEN
    RAISE EXCEPTION 'the arrays of jobs differ in length' USING ERRCODE = 'PS012';
  END IF;
  IF p_client IS NOT NULL THEN
    IF p_numbers IS NULL OR EXISTS (
      SELECT FROM (SELECT u.x, lag(u.x) OVER (ORDER BY u.n) AS before
        FROM unnest(p_numbers) WITH ORDINALITY AS u (x, n)) d
      WHERE d.x IS NULL OR d.before >= d.x) THEN
      RAISE EXCEPTION 'the numbers of the client % must rise from job to job', p_client
        USING ERRCODE = 'PS012';
    END IF;
    INSERT INTO {schema}.queue_client AS c (queue, client, last) VALUES (p_queue, p_client, 0)
    ON CONFLICT (queue, client) DO UPDATE SET at = clock_timestamp() RETURNING c.last INTO v_last;
    v_highest := p_numbers[cardinality(p_numbers)];
    UPDATE {schema}.queue_client c SET last = v_highest
    WHERE c.queue = p_queue AND c.client = p_client AND c.last < v_highest;
    FOR n IN SELECT u.n FROM unnest(p_numbers) WITH ORDINALITY AS u (x, n) WHERE u.x <= v_last LOOP
      v_states[n] := 'known';
    END LOOP;
  END IF;
  -- behind the lock on the client's row, so that places rise with its numbers
  SELECT array_agg(nextval('{schema}.job_place')) INTO v_places
  FROM generate_series(1, cardinality(p_payloads));
  IF p_ids IS NOT NULL THEN
    FOR n IN
      WITH given AS MATERIALIZED (
        SELECT u.id::uuid AS id, u.n, u.place
        FROM unnest(p_ids, v_states, v_places) WITH ORDINALITY AS u (id, state, place, n)
        WHERE u.id IS NOT NULL AND u.state = 'new'
      ), fresh AS (
        INSERT INTO {schema}.job_id AS i (queue, id, place)
        SELECT p_queue, g.id, g.place FROM given g ORDER BY g.id, g.n
        ON CONFLICT DO NOTHING RETURNING i.place
      )
      SELECT g.n FROM given g WHERE g.place NOT IN (SELECT f.place FROM fresh f)
    LOOP
      v_states[n] := 'known';
    END LOOP;
  END IF;
  IF p_locks IS NOT NULL THEN
    FOR n IN
      WITH given AS MATERIALIZED (
        SELECT u.lock, u.n, u.place
        FROM unnest(p_locks, v_states, v_places) WITH ORDINALITY AS u (lock, state, place, n)
        WHERE u.lock IS NOT NULL AND u.state = 'new'
      ), fresh AS (
        INSERT INTO {schema}.queueing_lock AS l (queue, lock, place)
        SELECT p_queue, g.lock, g.place FROM given g ORDER BY g.lock, g.n
        ON CONFLICT DO NOTHING RETURNING l.place
      )
      SELECT g.n FROM given g WHERE g.place NOT IN (SELECT f.place FROM fresh f)
    LOOP
      v_states[n] := 'locked';
    END LOOP;
    -- an id that was noted for a job that is not enqueued does not stand in the way of a later one
    DELETE FROM {schema}.job_id i WHERE i.queue = p_queue AND p_ids IS NOT NULL AND (i.id, i.place) IN (
      SELECT u.id::uuid, u.place FROM unnest(p_ids, v_states, v_places) AS u (id, state, place)
      WHERE u.state = 'locked' AND u.id IS NOT NULL);
  END IF;
  INSERT INTO {schema}.job (queue, place, key, payload, headers, due, priority, slot, id, queueing_lock)
  SELECT p_queue, u.place, u.key, u.payload::jsonb, coalesce(u.headers::jsonb, '{}'), u.due,
    coalesce(u.priority, 0), u.slot, u.id::uuid, u.lock
  FROM unnest(p_keys, p_payloads, p_headers, p_due, p_priorities, p_slots, p_ids, p_locks, v_states,
    v_places) AS u (key, payload, headers, due, priority, slot, id, lock, state, place)
  WHERE u.state = 'new' ORDER BY u.place;
  IF 'new' <> ALL (v_states) THEN
    PERFORM pg_logical_emit_message(true, 'sluicegate', '');  -- as in append
  END IF;
  RETURN QUERY
  SELECT u.n::int - 1, u.state, CASE WHEN u.state = 'new' THEN u.place END
  FROM unnest(v_states, v_places) WITH ORDINALITY AS u (state, place, n) ORDER BY u.n;
END $$;

-- -- Claims --------------------------------------------------------------------------------------

-- Merges the next bells into lanes: a new lane is read from its beginning, and a lane that has passed
-- a place behind which a job has become visible only now is read from before it again. Bells of a lane
-- that is locked, or made by a transaction that stays open, become one, which is left.
CREATE FUNCTION {schema}.merge_bells(p_queue text, p_most int, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_keys text[];
  v_lows bigint[];
  v_slots int[];
  v_priorities int[];
  v_seen text[];  -- keys with a visible lane
  v_free text[];  -- of them, those whose lane is locked here
BEGIN
  WITH taken AS (
    DELETE FROM {schema}.bell b WHERE b.ctid = ANY (ARRAY(
      SELECT n.ctid FROM {schema}.bell n WHERE n.queue = p_queue
      ORDER BY n.queue, n.low LIMIT p_most FOR UPDATE SKIP LOCKED))
    RETURNING b.key, b.low, b.slot, b.priority
  ), merged AS (
    SELECT t.key, min(t.low) AS low, min(t.slot) AS slot, max(t.priority) AS priority
    FROM taken t GROUP BY t.key ORDER BY t.key
  )
  SELECT array_agg(m.key), array_agg(m.low), array_agg(m.slot), array_agg(m.priority)
  INTO v_keys, v_lows, v_slots, v_priorities FROM merged m;
  IF v_keys IS NULL THEN
    RETURN;
  END IF;
  v_seen := ARRAY(
    SELECT l.key FROM unnest(v_keys) AS k (key) CROSS JOIN LATERAL (
      SELECT l.key FROM {schema}.lane l WHERE l.queue = p_queue AND l.key = k.key OFFSET 0) l);
  IF cardinality(v_seen) > 0 THEN
    v_free := ARRAY(
      SELECT l.key FROM unnest(v_seen) AS k (key) CROSS JOIN LATERAL (
        SELECT l.key FROM {schema}.lane l WHERE l.queue = p_queue AND l.key = k.key
        OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) l);
    PERFORM {schema}.make_lanes(p_queue, array_agg(m.key), array_agg(m.low), array_agg(m.slot),
      array_agg(m.priority), p_now)
    FROM unnest(v_keys, v_lows, v_slots, v_priorities) AS m (key, low, slot, priority)
    WHERE m.key IN (SELECT unnest(v_free));
    INSERT INTO {schema}.bell (queue, low, key, slot, priority)
    SELECT p_queue, m.low, m.key, m.slot, m.priority
    FROM unnest(v_keys, v_lows, v_slots, v_priorities) AS m (key, low, slot, priority)
    WHERE cardinality(v_free) < cardinality(v_seen) AND m.key IN (SELECT unnest(v_seen))
      AND m.key NOT IN (SELECT unnest(v_free));
  END IF;
  IF cardinality(v_seen) < cardinality(v_keys) THEN
    PERFORM {schema}.make_new_lanes(p_queue, array_agg(m.key), array_agg(m.low), array_agg(m.slot),
      array_agg(m.priority), p_now)
    FROM unnest(v_keys, v_lows, v_slots, v_priorities) AS m (key, low, slot, priority)
    WHERE m.key NOT IN (SELECT unnest(v_seen));
  END IF;
END $$;

-- Makes the lanes of these keys, or has those that are there read from these places on.
CREATE FUNCTION {schema}.make_lanes(
  p_queue text, p_keys text[], p_lows bigint[], p_slots int[], p_priorities int[], p_now timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  -- "low" of a new lane says nothing; of one that is there, it is compared
  INSERT INTO {schema}.lane AS l (queue, key, slot, sticky, priority, due, low)
  SELECT p_queue, m.key, coalesce(m.slot, {schema}.ring_slot(m.key)),
    q.sticky AND NOT q.ordering_required, m.priority, p_now, m.low
  FROM unnest(p_keys, p_lows, p_slots, p_priorities) AS m (key, low, slot, priority)
  JOIN {schema}.queue q ON q.name = p_queue ORDER BY m.key
  ON CONFLICT (queue, key) DO UPDATE SET
    low = least(l.low, excluded.low),
    priority = greatest(l.priority, excluded.priority),
    slot = CASE WHEN l.lease IS NULL THEN excluded.slot ELSE l.slot END
  WHERE l.priority < excluded.priority OR (l.lease IS NULL AND l.slot <> excluded.slot)
    OR CASE WHEN l.lease IS NULL THEN least(l.after, l.low - 1) >= excluded.low
       ELSE l.low IS NULL OR l.low > excluded.low END;
END $$;

-- As make_lanes, of keys without a visible lane. A lane that a transaction makes and stays open, as an
-- operator's that parks its key, is found by halving: the bell of its key is left.
CREATE FUNCTION {schema}.make_new_lanes(
  p_queue text, p_keys text[], p_lows bigint[], p_slots int[], p_priorities int[], p_now timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' AS $$
DECLARE
  v_half int := cardinality(p_keys) / 2;
BEGIN
  IF cardinality(p_keys) > 0 THEN  -- NULL without keys
    PERFORM {schema}.make_lanes(p_queue, p_keys, p_lows, p_slots, p_priorities, p_now);
  END IF;
EXCEPTION WHEN lock_not_available THEN
  IF v_half = 0 THEN
    INSERT INTO {schema}.bell (queue, low, key, slot, priority)
    VALUES (p_queue, p_lows[1], p_keys[1], p_slots[1], p_priorities[1]);
    RETURN;
  END IF;
  PERFORM {schema}.make_new_lanes(p_queue, p_keys[:v_half], p_lows[:v_half], p_slots[:v_half],
    p_priorities[:v_half], p_now);
  PERFORM {schema}.make_new_lanes(p_queue, p_keys[v_half + 1:], p_lows[v_half + 1:],
    p_slots[v_half + 1:], p_priorities[v_half + 1:], p_now);
END $$;

-- Lets jobs that are due now enter, those of keys behind the jobs that are in their lanes.
CREATE FUNCTION {schema}.enter_due(p_queue text, p_most int, p_now timestamptz, p_ordered boolean)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  WITH picked AS MATERIALIZED (
    SELECT d.row, d.place AS old, nextval('{schema}.job_place') AS new FROM (
      SELECT j.ctid AS row, j.place FROM {schema}.job j WHERE j.queue = p_queue AND j.due <= p_now
      ORDER BY j.queue, j.due, j.place LIMIT p_most FOR UPDATE SKIP LOCKED) d
  ), entered AS (
    UPDATE {schema}.job j SET due = NULL, place = p.new FROM picked p WHERE j.ctid = p.row
    RETURNING j.key, p.old, j.place, j.slot, j.priority, j.queueing_lock
  ), locks AS (
    UPDATE {schema}.queueing_lock k SET place = e.place FROM entered e
    WHERE k.queue = p_queue AND k.lock = e.queueing_lock AND k.place = e.old
  )
  INSERT INTO {schema}.bell (queue, key, low, slot, priority)
  SELECT p_queue, CASE WHEN p_ordered THEN '' ELSE e.key END AS lane, min(e.place), min(e.slot),
    max(e.priority)
  FROM entered e WHERE e.key IS NOT NULL OR p_ordered GROUP BY lane;
END $$;

-- The ranges of a consumer in which it may be given jobs now. A range that drains is left out while an
-- earlier owner of the same group has a lease in it that has not expired.
CREATE FUNCTION {schema}.open_ranges(p_queue text, p_grp text, p_consumer text, p_now timestamptz)
RETURNS TABLE (r_lo int, r_hi int) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_range record;
BEGIN
  FOR v_range IN
    SELECT r.lo, r.hi, r.draining FROM {schema}.ring_range r
    WHERE r.queue = p_queue AND r.grp = p_grp AND r.consumer = p_consumer
    ORDER BY r.lo FOR KEY SHARE  -- a reassignment waits for claims that have begun
  LOOP
    IF v_range.draining THEN
      CONTINUE WHEN EXISTS (
        SELECT FROM {schema}.lane l
        WHERE l.queue = p_queue AND l.lease IS NOT NULL AND l.sticky
          AND l.slot BETWEEN v_range.lo AND v_range.hi AND l.lease_until > p_now
          AND l.grp = p_grp AND l.owner <> p_consumer);
      UPDATE {schema}.ring_range r SET draining = false
      WHERE r.queue = p_queue AND r.grp = p_grp AND r.lo = v_range.lo;
    END IF;
    r_lo := v_range.lo;
    r_hi := v_range.hi;
    RETURN NEXT;
  END LOOP;
END $$;

-- The highest priority below p_below of which a lane is due, or NULL. Blocks of 256 priorities are looked
-- at first, so at most 256 blocks and the priorities of those with a due lane are visited, not all that
-- have lanes.
CREATE FUNCTION {schema}.due_priority(p_queue text, p_below int, p_now timestamptz) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_below int := p_below;
  v_from int := p_below & ~255;  -- the priorities from here, below v_below, are of one block
  v_priority int;
  v_is_due boolean;
BEGIN
  SELECT l.priority, l.due <= p_now INTO v_priority, v_is_due FROM {schema}.lane l
  WHERE l.queue = p_queue AND l.lease IS NULL AND l.state = 0 AND l.priority < p_below
  ORDER BY l.queue, l.priority DESC, l.due LIMIT 1;
  IF v_is_due IS NOT FALSE THEN  -- it is there and due, as nearly always, or there is none
    RETURN v_priority;
  END IF;
  LOOP
    IF v_from < v_below THEN
      WITH RECURSIVE walk (priority, due) AS (
        (SELECT l.priority, l.due FROM {schema}.lane l
         WHERE l.queue = p_queue AND l.lease IS NULL AND l.state = 0
           AND l.priority < v_below AND l.priority >= v_from
         ORDER BY l.queue, l.priority DESC, l.due LIMIT 1)
        UNION ALL
        SELECT n.* FROM walk w CROSS JOIN LATERAL (
          SELECT l.priority, l.due FROM {schema}.lane l
          WHERE l.queue = p_queue AND l.lease IS NULL AND l.state = 0
            AND l.priority < w.priority AND l.priority >= v_from
          ORDER BY l.queue, l.priority DESC, l.due LIMIT 1) n
        WHERE w.due > p_now
      )
      SELECT w.priority INTO v_priority FROM walk w WHERE w.due <= p_now;
      IF FOUND THEN
        RETURN v_priority;
      END IF;
    END IF;
    WITH RECURSIVE walk (block, due) AS (
      (SELECT l.priority >> 8, l.due FROM {schema}.lane l
       WHERE l.queue = p_queue AND l.lease IS NULL AND l.state = 0 AND (l.priority >> 8) < v_from >> 8
       ORDER BY l.queue, (l.priority >> 8) DESC, l.due LIMIT 1)
      UNION ALL
      SELECT n.* FROM walk w CROSS JOIN LATERAL (
        SELECT l.priority >> 8, l.due FROM {schema}.lane l
        WHERE l.queue = p_queue AND l.lease IS NULL AND l.state = 0 AND (l.priority >> 8) < w.block
        ORDER BY l.queue, (l.priority >> 8) DESC, l.due LIMIT 1) n
      WHERE w.due > p_now
    )
    SELECT w.block::int << 8 INTO v_from FROM walk w WHERE w.due <= p_now;
    IF NOT FOUND THEN
      RETURN NULL;
    END IF;
    v_below := v_from + 256;
  END LOOP;
END $$;

-- Locks lanes that may be leased, and returns their keys: expired ones first, so that those of a
-- consumer that died do not wait behind a backlog; then by priority, the longest waiting first.
CREATE FUNCTION {schema}.pick_lanes(p_queue text, p_most int, p_now timestamptz) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_keys text[];
  v_priority int := 32768;  -- above all that there are
BEGIN
  v_keys := ARRAY(
    SELECT l.key FROM {schema}.lane l
    WHERE l.queue = p_queue AND l.lease IS NOT NULL AND l.lease_until <= p_now
    ORDER BY l.queue, l.lease_until LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED);
  WHILE cardinality(v_keys) < p_most LOOP
    v_priority := {schema}.due_priority(p_queue, v_priority, p_now);
    EXIT WHEN v_priority IS NULL;
    v_keys := v_keys || ARRAY(
      SELECT l.key FROM {schema}.lane l
      WHERE l.queue = p_queue AND l.lease IS NULL AND l.state = 0
        AND l.priority = v_priority AND l.due <= p_now
      ORDER BY l.queue, l.priority DESC, l.due LIMIT p_most - cardinality(v_keys)
      FOR NO KEY UPDATE SKIP LOCKED);
  END LOOP;
  RETURN v_keys;
END $$;

-- As pick_lanes, in the open ranges of a consumer, from all parts of them in turn.
CREATE FUNCTION {schema}.pick_sticky_lanes(
  p_queue text, p_grp text, p_consumer text, p_most int, p_now timestamptz) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_keys text[];
  v_los int[];
  v_his int[];
  v_priority int := 32768;  -- above all that there are
BEGIN
  SELECT array_agg(r.r_lo), array_agg(r.r_hi) INTO v_los, v_his
  FROM {schema}.open_ranges(p_queue, p_grp, p_consumer, p_now) r;
  IF v_los IS NULL THEN
    RETURN '{}';
  END IF;
  v_keys := ARRAY(
    SELECT l.key FROM {schema}.lane l
    WHERE l.queue = p_queue AND l.lease IS NOT NULL AND l.lease_until <= p_now
      AND EXISTS (SELECT FROM unnest(v_los, v_his) AS r (lo, hi) WHERE l.slot BETWEEN r.lo AND r.hi)
    ORDER BY l.queue, l.lease_until LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED);
  WHILE cardinality(v_keys) < p_most LOOP
    v_priority := {schema}.due_priority(p_queue, v_priority, p_now);
    EXIT WHEN v_priority IS NULL;
    v_keys := v_keys || ARRAY(
      SELECT f.key FROM (
        SELECT r.lo, r.hi, b.part FROM unnest(v_los, v_his) AS r (lo, hi),
          generate_series(r.lo >> 8, r.hi >> 8) AS b (part)
        ORDER BY random()) p
      CROSS JOIN LATERAL (
        SELECT l.key FROM {schema}.lane l
        WHERE l.queue = p_queue AND l.lease IS NULL AND l.state = 0 AND l.sticky
          AND l.priority = v_priority AND (l.slot >> 8) = p.part AND l.due <= p_now
          AND l.slot BETWEEN p.lo AND p.hi
        ORDER BY l.queue, l.priority, (l.slot >> 8), l.due LIMIT p_most - cardinality(v_keys)
        FOR NO KEY UPDATE SKIP LOCKED) f
      LIMIT p_most - cardinality(v_keys));
  END LOOP;
  RETURN v_keys;
END $$;

-- Leases up to p_lanes keys with up to p_per jobs each, and up to p_loose jobs without a key, for
-- p_seconds. A row per job; r_lane is the lane's key, NULL without one; r_attempts counts the leases of
-- the lane's first job, this one included. Behind a lease that was lost, a job is leased alone. One whose
-- leases were lost twice in a row, or whose last try this is after a loss, is to be handled by a process
-- that has no other lease, which r_alone says: jobs beside one that ends its process are not to blame.
-- With p_bytes, no job is leased with which payloads and headers would be larger in all; the first job with
-- a key, and the first one without a key, are leased whatever their size.
CREATE FUNCTION {schema}.claim_jobs(
  p_queue text, p_grp text, p_consumer text, p_lanes int, p_per int, p_loose int, p_seconds float8,
  p_now timestamptz DEFAULT NULL, p_bytes bigint DEFAULT NULL)
RETURNS TABLE (r_lease bigint, r_lane text, r_slot int, r_attempts int, r_place bigint, r_key text,
  r_payload text, r_headers text, r_at timestamptz, r_alone boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_until timestamptz := v_now + make_interval(secs => p_seconds);
  v_base bigint := {schema}.lease_base();
  v_queue {schema}.queue;
  v_room bigint := p_lanes + p_loose;
  v_most int := least(10000, greatest(100, p_lanes::bigint * p_per + p_lanes));
  v_keys text[];  -- lanes that are locked; the arrays below are of those of them that are leased
  v_leased text[] := '{}';
  v_rows tid[] := '{}';
  v_leases bigint[] := '{}';
  v_attempts int[] := '{}';
  v_heads bigint[] := '{}';
  v_losts int[] := '{}';
  v_poison int[] := '{}';
  v_begun bigint[] := '{}';  -- jobs with a queueing lock
  v_loose bigint[];
  v_bytes bigint := 0;
  v_job record;
  v_lane text;
  i int;
BEGIN
  SELECT * INTO v_queue FROM {schema}.queue q WHERE q.name = p_queue;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no queue %', p_queue USING ERRCODE = 'PS010', DETAIL = p_queue,
      HINT = 'create it with `sluicegate queue create`';
  END IF;
  IF v_queue.paused THEN
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  IF EXISTS (SELECT FROM {schema}.job j WHERE j.queue = p_queue AND j.due <= v_now) THEN
    PERFORM {schema}.enter_due(p_queue, v_most, v_now, v_queue.ordering_required);
  END IF;
  IF EXISTS (SELECT FROM {schema}.bell b WHERE b.queue = p_queue) THEN
    -- at least as many as jobs are given out, or bells would fall behind the jobs of busy keys
    PERFORM {schema}.merge_bells(p_queue, v_most, v_now);
  END IF;
  IF v_queue.max_in_flight IS NOT NULL THEN
    PERFORM FROM {schema}.queue q WHERE q.name = p_queue FOR NO KEY UPDATE;  -- one claim at a time
    v_room := greatest(0, v_queue.max_in_flight - {schema}.live_leases(p_queue, v_now));
  END IF;
  IF v_queue.sticky AND NOT v_queue.ordering_required THEN
    v_keys := {schema}.pick_sticky_lanes(
      p_queue, p_grp, p_consumer, least(p_lanes, v_room)::int, v_now);
  ELSE
    v_keys := {schema}.pick_lanes(p_queue, least(p_lanes, v_room)::int, v_now);
  END IF;
  IF EXISTS (SELECT FROM {schema}.job j WHERE j.queue = p_queue AND j.cancelled) THEN
    v_keys := {schema}.drop_cancelled(v_queue, v_keys, '{}', v_now);
  END IF;
  -- in a later statement than the one that locked, and not from behind a bell that is left
  FOR v_job IN
    SELECT k.key AS lane, k.n, l.*, j.place, j.key, j.at, j.payload, j.headers, j.queueing_lock
    FROM unnest(v_keys) WITH ORDINALITY AS k (key, n)
    CROSS JOIN LATERAL (
      SELECT l.ctid AS row, l.slot AS lane_slot, l.head, l.attempts AS tries,
        l.lost + (l.lease IS NOT NULL)::int AS lost, least(l.after, l.low - 1, (
        SELECT b.low - 1 FROM {schema}.bell b WHERE b.queue = p_queue
        ORDER BY b.queue, b.low LIMIT 1)) AS after
      FROM {schema}.lane l WHERE l.queue = p_queue AND l.key = k.key AND l.state = 0 OFFSET 0) l
    CROSS JOIN LATERAL {schema}.jobs_of_lane(
      p_queue, k.key, v_queue.ordering_required, l.after,
      CASE WHEN l.tries > 0 OR v_queue.key_rate IS NOT NULL THEN 1 ELSE p_per END) j
    ORDER BY k.n, j.place
  LOOP
    r_payload := v_job.payload::text;  -- not earlier: no job behind the limit is to be read
    r_headers := v_job.headers::text;
    v_bytes := v_bytes + octet_length(r_payload) + octet_length(r_headers);
    IF v_bytes > p_bytes AND r_place IS NOT NULL THEN
      v_keys := v_keys[:v_job.n - (v_job.lane IS DISTINCT FROM v_lane)::int];
      EXIT;
    END IF;
    IF v_job.lane IS DISTINCT FROM v_lane THEN
      v_lane := v_job.lane;
      r_lane := v_lane;
      r_slot := v_job.lane_slot;
      r_lease := v_base + nextval('{schema}.job_lease') % 1048576;
      r_attempts := 1 + CASE WHEN v_job.place = v_job.head THEN v_job.tries ELSE 0 END;
      v_leased := v_leased || v_lane;
      v_rows := v_rows || v_job.row;
      v_leases := v_leases || r_lease;
      v_attempts := v_attempts || r_attempts;
      v_heads := v_heads || v_job.place;
      v_losts := v_losts || v_job.lost;
      r_alone := v_job.lost > 1 OR (v_job.lost > 0 AND r_attempts >= v_queue.max_attempts);
      IF r_attempts > v_queue.max_attempts THEN
        v_poison := v_poison || cardinality(v_leased);
      END IF;
    END IF;
    CONTINUE WHEN r_attempts > v_queue.max_attempts;
    r_place := v_job.place;
    r_key := v_job.key;
    r_at := v_job.at;
    RETURN NEXT;
    IF v_job.queueing_lock IS NOT NULL THEN
      v_begun := v_begun || r_place;
    END IF;
  END LOOP;
  UPDATE {schema}.lane l SET lease = g.lease, grp = p_grp, owner = p_consumer, lease_until = v_until,
    attempts = g.attempts, lost = g.lost, head = g.head, after = least(l.after, l.low - 1), low = NULL,
    due = CASE WHEN v_queue.key_rate IS NULL THEN l.due
      ELSE v_now + make_interval(secs => 1 / v_queue.key_rate) END
  FROM unnest(v_rows, v_leases, v_attempts, v_losts, v_heads) AS g (row, lease, attempts, lost, head)
  WHERE l.ctid = g.row;
  IF cardinality(v_leased) < cardinality(v_keys) THEN
    -- a lane without a visible job; the bell of one that comes makes it again
    DELETE FROM {schema}.lane l
    WHERE l.queue = p_queue AND l.key = ANY (v_keys) AND l.state = 0 AND l.key <> ALL (v_leased);
    -- a lane that was parked while it was leased, and the lease was lost
    UPDATE {schema}.lane l SET lease = NULL, grp = NULL, owner = NULL, lease_until = NULL,
      after = least(l.after, l.low - 1), low = NULL
    WHERE l.queue = p_queue AND l.key = ANY (v_keys) AND l.state <> 0;
  END IF;
  FOREACH i IN ARRAY v_poison LOOP
    -- their handlers ended with their processes, so that none of them has told
    PERFORM FROM {schema}.job j WHERE j.queue = p_queue AND j.place = v_heads[i] FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN  -- it is locked by another session, such as an operator's
      UPDATE {schema}.lane l SET lease = NULL, grp = NULL, owner = NULL, lease_until = NULL,
        attempts = v_attempts[i] - 1, due = v_now + interval '1 s'
      WHERE l.queue = p_queue AND l.key = v_leased[i];
      CONTINUE;
    END IF;
    PERFORM {schema}.give_up(v_queue, v_leased[i], v_leases[i], v_heads[i], v_attempts[i] - 1, NULL,
      NULL, false, v_now);
  END LOOP;
  IF p_loose > 0 AND NOT v_queue.ordering_required THEN
    v_loose := {schema}.pick_loose(
      p_queue, least(p_loose, v_room - cardinality(v_leased) + cardinality(v_poison))::int, v_now);
    IF EXISTS (SELECT FROM {schema}.job j WHERE j.queue = p_queue AND j.cancelled) THEN
      PERFORM {schema}.drop_cancelled(v_queue, '{}', v_loose, v_now);
    END IF;
    IF cardinality(v_loose) > 0 THEN
      v_rows := '{}';
      v_leases := '{}';
      r_lane := NULL;
      r_slot := 0;
      r_place := NULL;
      r_key := NULL;
      FOR v_job IN SELECT k.n, j.*
        FROM unnest(v_loose) WITH ORDINALITY AS k (place, n)
        CROSS JOIN LATERAL (
          SELECT j.ctid AS row, j.place, j.payload, j.headers, j.at, j.attempts, j.lost, j.lease
          FROM {schema}.job j WHERE j.queue = p_queue AND j.place = k.place OFFSET 0) j
        ORDER BY k.n
      LOOP
        r_payload := v_job.payload::text;
        r_headers := v_job.headers::text;
        v_bytes := v_bytes + octet_length(r_payload) + octet_length(r_headers);
        IF v_bytes > p_bytes AND r_place IS NOT NULL THEN
          v_loose := v_loose[:v_job.n - 1];
          EXIT;
        END IF;
        r_lease := v_base + nextval('{schema}.job_lease') % 1048576;
        v_rows := v_rows || v_job.row;
        v_leases := v_leases || r_lease;
        r_attempts := v_job.attempts + 1;
        CONTINUE WHEN r_attempts > v_queue.max_attempts;
        v_job.lost := v_job.lost + (v_job.lease IS NOT NULL)::int;
        r_place := v_job.place;
        r_at := v_job.at;
        r_alone := v_job.lost > 1 OR (v_job.lost > 0 AND r_attempts >= v_queue.max_attempts);
        RETURN NEXT;
      END LOOP;
      UPDATE {schema}.job j SET lease = g.lease, owner = p_consumer, lease_until = v_until,
        attempts = j.attempts + 1, lost = j.lost + (j.lease IS NOT NULL)::int
      FROM unnest(v_rows, v_leases) AS g (row, lease) WHERE j.ctid = g.row;
      PERFORM {schema}.give_up_loose(v_queue, j.place, NULL, NULL, NULL, false, v_now)
      FROM {schema}.job j
      WHERE j.queue = p_queue AND j.place = ANY (v_loose) AND j.attempts > v_queue.max_attempts;
      v_begun := v_begun || v_loose;
    END IF;
  END IF;
  IF cardinality(v_begun) > 0 THEN
    PERFORM {schema}.free_locks(p_queue, v_begun);
  END IF;
END $$;

-- Removes the cancelled ones of these jobs without a key, which are locked, and the cancelled jobs of these
-- lanes, which are locked and not leased. Returns the lanes without those of which a job is locked by another
-- session, such as an operator's: nothing of them is to be given out.
CREATE FUNCTION {schema}.drop_cancelled(
  p_queue {schema}.queue, p_keys text[], p_places bigint[], p_now timestamptz)
RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_places bigint[] := ARRAY(
    SELECT j.place FROM {schema}.job j
    WHERE j.queue = p_queue.name AND j.cancelled AND (j.place = ANY (p_places)
      OR CASE WHEN p_queue.ordering_required THEN '' ELSE j.key END = ANY (p_keys))
    ORDER BY j.place FOR UPDATE SKIP LOCKED);
BEGIN
  PERFORM {schema}.bury_job(p_queue.name, p.place, NULL, NULL, NULL, p_now),
    {schema}.delete_job(p_queue.name, p.place)
  FROM unnest(v_places) AS p (place);
  RETURN ARRAY(
    SELECT k.key FROM unnest(p_keys) WITH ORDINALITY AS k (key, n)
    WHERE NOT EXISTS (SELECT FROM {schema}.job j WHERE j.queue = p_queue.name AND j.cancelled
      AND CASE WHEN p_queue.ordering_required THEN '' ELSE j.key END = k.key)
    ORDER BY k.n);
END $$;

CREATE FUNCTION {schema}.is_cancelled(p_queue text, p_place bigint) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
  SELECT EXISTS (SELECT FROM {schema}.job j
    WHERE j.queue = p_queue AND j.place = p_place AND j.cancelled)
$$;

-- What numbers of leases begin at now: above all that were given before, unless the clock was set back.
CREATE FUNCTION {schema}.lease_base() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint * 1048576
$$;

-- Lets other jobs with the queueing locks of these jobs wait, once these have begun or are gone.
CREATE FUNCTION {schema}.free_locks(p_queue text, p_places bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF EXISTS (SELECT FROM {schema}.queueing_lock k WHERE k.queue = p_queue) THEN
    DELETE FROM {schema}.queueing_lock k
    WHERE k.queue = p_queue AND k.place = ANY (p_places) AND k.lock = ANY (ARRAY(
      SELECT j.queueing_lock FROM {schema}.job j
      WHERE j.queue = p_queue AND j.place = ANY (p_places) AND j.queueing_lock IS NOT NULL));
  END IF;
END $$;

-- The next jobs of a lane. It is inlined in queries.
CREATE FUNCTION {schema}.jobs_of_lane(
  p_queue text, p_key text, p_ordered boolean, p_after bigint, p_most int)
RETURNS SETOF {schema}.job LANGUAGE sql STABLE AS $$
  (SELECT j.* FROM {schema}.job j
   WHERE NOT p_ordered AND j.queue = p_queue AND j.key = p_key AND j.due IS NULL AND j.place > p_after
   ORDER BY j.queue, j.key, j.place LIMIT p_most)
  UNION ALL
  (SELECT j.* FROM {schema}.job j
   WHERE p_ordered AND j.queue = p_queue AND j.due IS NULL AND j.place > p_after
   ORDER BY j.queue, j.place LIMIT p_most)
$$;

CREATE FUNCTION {schema}.live_leases(p_queue text, p_now timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$
  SELECT (SELECT count(*) FROM {schema}.lane l
          WHERE l.queue = p_queue AND l.lease IS NOT NULL AND l.lease_until > p_now)
    + (SELECT count(*) FROM {schema}.job j
       WHERE j.queue = p_queue AND j.lease IS NOT NULL AND j.lease_until > p_now)
$$;

-- Locks jobs without a key that may be leased, as pick_lanes does lanes.
CREATE FUNCTION {schema}.pick_loose(p_queue text, p_most int, p_now timestamptz) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_places bigint[];
BEGIN
  IF p_most <= 0 THEN
    RETURN '{}';
  END IF;
  v_places := ARRAY(
    SELECT j.place FROM {schema}.job j
    WHERE j.queue = p_queue AND j.lease IS NOT NULL AND j.lease_until <= p_now
    ORDER BY j.queue, j.lease_until LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED);
  RETURN v_places || ARRAY(
    SELECT j.place FROM {schema}.job j
    WHERE j.queue = p_queue AND j.key IS NULL AND j.due IS NULL AND j.lease IS NULL AND j.state = 0
    ORDER BY j.queue, j.priority DESC, j.place LIMIT p_most - cardinality(v_places)
    FOR NO KEY UPDATE SKIP LOCKED);
END $$;



-- -- Settling ------------------------------------------------------------------------------------

-- Settling and extending wait for no lane that another session has locked, such as an operator's: what is
-- about that lane is left, with the fate "locked", and the others are settled. If p_waits, the locks on
-- lanes are waited for; this is for one lease at a time. No wait for any lock is longer than lock_timeout:
-- it ends the statement.

-- Settles leases: an element of the first arrays for each of them, and of the last two for each job of a
-- lane that was handled, with its lease: the first ones that it was given, in order. An array of delays,
-- attempts, reasons or errors that is NULL has only NULLs. The action says what becomes of the lease,
-- and the place is that of the job that it is about:
--   keep  nothing else; the place is that of its next job, if it is behind those that were handled
--   free  it ends; jobs that were not handled are given back
--   done  of a job without a key: it was handled
--   nak   it ends; the job is due again in so many seconds, after so many tries
--   fail  it ends; the job is poison after so many tries, for a reason and of a type of error
--   bury  it ends; the job becomes a dead letter, whatever the queue does with poison
-- After nak and fail, a job that was cancelled is as one that is buried.
-- The fate is "lost" if a lease had ended, and "locked" if it had not when its row was locked: nothing of
-- it is settled. Otherwise it is "kept", "freed", "empty" (freed, and no job of the key is left), "waiting",
-- "dead", "blocked" or "parked".
CREATE FUNCTION {schema}.settle_jobs(
  p_queue text, p_leases bigint[], p_lanes text[], p_actions text[], p_places bigint[],
  p_delays float8[], p_attempts int[], p_reasons text[], p_errors text[],
  p_done bigint[], p_done_leases bigint[], p_now timestamptz DEFAULT NULL, p_waits boolean DEFAULT false)
RETURNS TABLE (r_lease bigint, r_fate text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_queue {schema}.queue;
  -- of the leases of lanes, in the order of their keys
  v_rows tid[];  -- NULL for a lease that is not held
  v_keys text[];
  v_leases bigint[];
  v_actions text[];
  v_nexts bigint[];
  v_afters bigint[];
  v_may_go boolean[];
  v_passed bigint[];  -- the last handled job of each
  v_empty boolean[];  -- whether it is freed, and has no job that is left
  v_held bigint[];
  v_done bigint[];
  -- of the leases of handled jobs without a key
  v_loose_leases bigint[];
  v_loose bigint[];  -- NULL for a lease that is not held
  v_locked bigint[] := '{}';
  v_given record;
BEGIN
  SELECT * INTO v_queue FROM {schema}.queue q WHERE q.name = p_queue;
  IF p_waits THEN
    PERFORM FROM {schema}.lane l WHERE l.queue = p_queue AND l.key = ANY (p_lanes)
    ORDER BY l.key FOR NO KEY UPDATE;
    PERFORM FROM {schema}.job j WHERE j.queue = p_queue AND j.place = ANY (ARRAY(
      SELECT g.place FROM unnest(p_places, p_lanes) AS g (place, key) WHERE g.key IS NULL))
    ORDER BY j.place FOR NO KEY UPDATE;
  END IF;
  -- the window finds the handled jobs of a lease without a join, which would be quadratic
  SELECT array_agg(l.row), coalesce(array_agg(g.key), '{}'), array_agg(g.lease), array_agg(g.action),
    array_agg(g.place), array_agg(l.after), array_agg(l.may_go), array_agg(g.passed),
    coalesce(array_agg(g.lease) FILTER (WHERE l.row IS NOT NULL), '{}')
  INTO v_rows, v_keys, v_leases, v_actions, v_nexts, v_afters, v_may_go, v_passed, v_held
  FROM (
    SELECT w.* FROM (
      SELECT u.*, max(u.done) OVER (PARTITION BY u.lease) AS passed FROM (
        SELECT g.*, NULL::bigint AS done
        FROM unnest(p_lanes, p_leases, p_actions, p_places) AS g (key, lease, action, place)
        UNION ALL
        SELECT NULL, d.lease, NULL, NULL, d.place FROM unnest(p_done, p_done_leases) AS d (place, lease)
      ) u) w
    WHERE w.key IS NOT NULL ORDER BY w.key OFFSET 0) g
  LEFT JOIN LATERAL (
    SELECT l.ctid AS row, least(l.after, l.low - 1) AS after,
      l.state = 0 AND (v_queue.key_rate IS NULL OR l.due <= v_now) AS may_go
    FROM {schema}.lane l
    WHERE l.queue = p_queue AND l.key = g.key  -- by the key, and not by the index of leases
      AND coalesce(l.lease = g.lease AND l.lease_until > v_now, false)
    OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) l ON true;
  IF cardinality(v_held) < cardinality(p_leases) THEN
    -- seen in a later statement; a lane that is free by now is settled by the next call
    v_locked := {schema}.live_of(p_queue, p_leases, p_lanes, p_places, v_held, v_now);
  END IF;
  v_done := ARRAY(
    SELECT d.place FROM unnest(p_done, p_done_leases) AS d (place, lease)
    WHERE d.lease IN (SELECT unnest(v_held)));  -- is hashed
  IF cardinality(v_keys) < cardinality(p_leases) THEN
    SELECT array_agg(g.lease), array_agg(j.place) INTO v_loose_leases, v_loose FROM (
      SELECT g.* FROM unnest(p_places, p_leases, p_actions, p_lanes) AS g (place, lease, action, key)
      WHERE g.key IS NULL AND g.action = 'done' ORDER BY g.place OFFSET 0) g
    LEFT JOIN LATERAL (
      SELECT j.place FROM {schema}.job j WHERE j.queue = p_queue AND j.place = g.place
        AND coalesce(j.lease = g.lease AND j.lease_until > v_now, false)
      OFFSET 0 FOR UPDATE SKIP LOCKED) j ON true;
  END IF;
  PERFORM {schema}.finish_jobs(v_queue, v_done || v_loose, v_now);
  IF 'free' = ANY (v_actions) THEN
    v_empty := ARRAY(
      SELECT g.row IS NOT NULL AND g.action = 'free' AND g.may_go AND NOT EXISTS (
        SELECT FROM {schema}.jobs_of_lane(p_queue, g.key, v_queue.ordering_required,
          coalesce(least(g.after, g.passed), g.after), 1))
      FROM unnest(v_rows, v_keys, v_actions, v_may_go, v_afters, v_passed)
        WITH ORDINALITY AS g (row, key, action, may_go, after, passed, n) ORDER BY g.n);
    IF true = ANY (v_empty) THEN
      DELETE FROM {schema}.lane l WHERE l.ctid = ANY (ARRAY(
        SELECT g.row FROM unnest(v_rows, v_empty) AS g (row, empty) WHERE g.empty));
    END IF;
  END IF;
  IF v_empty IS NULL OR false = ANY (v_empty) THEN
    PERFORM {schema}.pass_jobs(v_queue, v_rows, v_actions, v_nexts, v_passed, v_empty, v_now);
  END IF;
  RETURN QUERY
  SELECT g.lease, CASE WHEN g.row IS NULL THEN
      CASE WHEN g.lease = ANY (v_locked) THEN 'locked' ELSE 'lost' END
    WHEN g.action <> 'free' THEN 'kept' WHEN g.empty THEN 'empty' ELSE 'freed' END
  FROM unnest(v_leases, v_rows, v_actions, v_empty) AS g (lease, row, action, empty)
  WHERE g.row IS NULL OR g.action NOT IN ('nak', 'fail', 'bury')
  UNION ALL
  SELECT g.lease, CASE WHEN g.place IS NOT NULL THEN 'empty'
    WHEN g.lease = ANY (v_locked) THEN 'locked' ELSE 'lost' END
  FROM unnest(v_loose_leases, v_loose) AS g (lease, place);
  FOR v_given IN
    SELECT * FROM unnest(p_leases, p_lanes, p_actions, p_places, p_delays, p_attempts, p_reasons, p_errors)
      WITH ORDINALITY AS g (lease, lane, action, place, delay, attempts, reason, error, n)
    WHERE CASE WHEN g.lane IS NULL THEN g.action <> 'done'
      ELSE g.action IN ('nak', 'fail', 'bury') AND g.lease = ANY (v_held) END
    ORDER BY g.lane, g.n
  LOOP
    r_lease := v_given.lease;
    IF v_given.lane IS NULL THEN
      r_fate := {schema}.settle_loose(v_queue, v_given.lease, v_given.action, v_given.place,
        v_given.delay, v_given.attempts, v_given.reason, v_given.error, v_now);
      IF r_fate = 'lost' AND v_given.lease = ANY (v_locked) THEN
        r_fate := 'locked';
      END IF;
    ELSIF v_given.action = 'nak' AND NOT {schema}.is_cancelled(p_queue, v_given.place) THEN
      UPDATE {schema}.lane l SET lease = NULL, grp = NULL, owner = NULL, lease_until = NULL,
        after = least(l.after, l.low - 1), low = NULL, attempts = coalesce(v_given.attempts, l.attempts),
        lost = 0, reason = CASE WHEN l.state = 0 THEN v_given.reason ELSE l.reason END,
        head = coalesce(v_given.place, l.head),
        due = greatest(v_now + make_interval(secs => coalesce(v_given.delay, 0)),
          CASE WHEN v_queue.key_rate IS NOT NULL THEN l.due END)
      WHERE l.queue = p_queue AND l.key = v_given.lane;
      r_fate := 'waiting';
    ELSE
      r_fate := {schema}.give_up(v_queue, v_given.lane, v_given.lease, v_given.place, v_given.attempts,
        v_given.reason, v_given.error, v_given.action = 'bury', v_now);
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Those of leases that have not ended, as far as is visible, without the given ones.
CREATE FUNCTION {schema}.live_of(
  p_queue text, p_leases bigint[], p_lanes text[], p_places bigint[], p_without bigint[],
  p_now timestamptz)
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN ARRAY(
    SELECT g.lease FROM unnest(p_leases, p_lanes, p_places) AS g (lease, key, place)
    WHERE g.lease <> ALL (p_without) AND CASE WHEN g.key IS NULL
      THEN (SELECT j.lease = g.lease AND j.lease_until > p_now FROM {schema}.job j
            WHERE j.queue = p_queue AND j.place = g.place)
      ELSE (SELECT l.lease = g.lease AND l.lease_until > p_now FROM {schema}.lane l
            WHERE l.queue = p_queue AND l.key = g.key) END);
END $$;

-- Moves leased lanes behind their handled jobs, and ends the leases of those that are freed.
CREATE FUNCTION {schema}.pass_jobs(
  p_queue {schema}.queue, p_rows tid[], p_actions text[], p_nexts bigint[], p_passed bigint[],
  p_empty boolean[], p_now timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF 'free' <> ANY (p_actions) THEN
    -- the lease that goes on is the first one of its next job, if it has one
    UPDATE {schema}.lane l SET after = least(g.passed, l.low - 1), lost = 0,
      attempts = (g.next > g.passed)::int, head = CASE WHEN g.next > g.passed THEN g.next END
    FROM unnest(p_rows, p_actions, p_nexts, p_passed) AS g (row, action, next, passed)
    WHERE l.ctid = g.row AND g.passed IS NOT NULL AND g.action <> 'free';
  END IF;
  IF 'free' = ANY (p_actions) THEN
    UPDATE {schema}.lane l SET lease = NULL, grp = NULL, owner = NULL, lease_until = NULL,
      after = least(coalesce(g.passed, l.after), l.low - 1), low = NULL,
      attempts = CASE WHEN g.passed IS NULL THEN greatest(0, l.attempts - 1) ELSE 0 END,
      lost = CASE WHEN g.passed IS NULL THEN l.lost ELSE 0 END,
      due = CASE WHEN p_queue.key_rate IS NULL THEN p_now ELSE greatest(p_now, l.due) END
    FROM unnest(p_rows, p_actions, p_passed, p_empty) AS g (row, action, passed, empty)
    WHERE l.ctid = g.row AND g.action = 'free' AND NOT g.empty;
  END IF;
END $$;

-- Deletes handled jobs, and keeps them among the finished ones if the queue asks for it. One that
-- became a dead letter before it was unblocked is none any more.
CREATE FUNCTION {schema}.finish_jobs(p_queue {schema}.queue, p_places bigint[], p_now timestamptz)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_queue.keep_done IS NULL THEN
    DELETE FROM {schema}.job j WHERE j.queue = p_queue.name AND j.place = ANY (p_places);
    IF p_queue.poison = 'block_and_dead_letter' THEN
      DELETE FROM {schema}.finished_job f
      WHERE f.queue = p_queue.name AND f.place = ANY (p_places) AND f.outcome = 'dead';
    END IF;
  ELSE
    WITH gone AS (
      DELETE FROM {schema}.job j WHERE j.queue = p_queue.name AND j.place = ANY (p_places) RETURNING j.*
    )
    INSERT INTO {schema}.finished_job
      (queue, place, outcome, key, payload, headers, at, priority, slot, id, attempts, finished_at)
    SELECT g.queue, g.place, 'done', g.key, g.payload, g.headers, g.at, g.priority, g.slot, g.id,
      g.attempts, p_now FROM gone g
    ON CONFLICT (queue, place) DO UPDATE SET outcome = 'done', finished_at = excluded.finished_at;
  END IF;
END $$;

-- Writes a dead letter of a job, once; or keeps it as cancelled, if it is.
CREATE FUNCTION {schema}.bury_job(
  p_queue text, p_place bigint, p_attempts int, p_reason text, p_error text, p_now timestamptz)
RETURNS void LANGUAGE sql VOLATILE AS $$
  INSERT INTO {schema}.finished_job
    (queue, place, outcome, key, payload, headers, at, priority, slot, id, attempts, reason, error,
     finished_at)
  SELECT j.queue, j.place, CASE WHEN j.cancelled THEN 'cancelled' ELSE 'dead' END, j.key, j.payload,
    j.headers, j.at, j.priority, j.slot, j.id, coalesce(p_attempts, j.attempts),
    CASE WHEN j.cancelled THEN 'cancelled by an operator' ELSE p_reason END,
    CASE WHEN NOT j.cancelled THEN p_error END, p_now
  FROM {schema}.job j WHERE j.queue = p_queue AND j.place = p_place
  ON CONFLICT (queue, place) DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason,
    error = excluded.error, finished_at = excluded.finished_at WHERE excluded.outcome = 'cancelled'
$$;

-- Ends the lease of a lane of which a job cannot be handled, and does with that job what the queue
-- says; or makes it a dead letter, if p_bury. Returns the fate of the job.
CREATE FUNCTION {schema}.give_up(
  p_queue {schema}.queue, p_key text, p_lease bigint, p_place bigint, p_attempts int, p_reason text,
  p_error text, p_bury boolean, p_now timestamptz)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_is_buried boolean := p_bury OR p_queue.poison = 'skip'
    OR {schema}.is_cancelled(p_queue.name, p_place);
  v_reason text := coalesce(p_reason, (
    SELECT l.reason FROM {schema}.lane l
    WHERE l.queue = p_queue.name AND l.key = p_key AND l.lost = 0), {schema}.lost_too_often());
BEGIN
  IF v_is_buried OR p_queue.poison = 'block_and_dead_letter' THEN
    PERFORM {schema}.bury_job(p_queue.name, p_place, p_attempts, v_reason, p_error, p_now);
  END IF;
  IF v_is_buried THEN
    PERFORM {schema}.delete_job(p_queue.name, p_place);
  END IF;
  UPDATE {schema}.lane l SET lease = NULL, grp = NULL, owner = NULL, lease_until = NULL,
    after = least(l.after, l.low - 1), low = NULL, head = p_place,
    due = CASE WHEN p_queue.key_rate IS NULL THEN p_now ELSE greatest(p_now, l.due) END,
    attempts = CASE WHEN v_is_buried THEN 0 ELSE p_attempts END, lost = 0,
    state = CASE WHEN v_is_buried THEN l.state WHEN p_queue.poison = 'park_key' THEN 2 ELSE 1 END,
    reason = CASE WHEN v_is_buried AND l.state = 0 THEN NULL WHEN v_is_buried THEN l.reason
      ELSE v_reason END,
    stopped_at = CASE WHEN v_is_buried THEN l.stopped_at ELSE p_now END
  WHERE l.queue = p_queue.name AND l.key = p_key AND l.lease = p_lease;
  RETURN CASE WHEN v_is_buried THEN 'dead' WHEN p_queue.poison = 'park_key' THEN 'parked'
    ELSE 'blocked' END;
END $$;

-- Deletes a job that is a dead letter by now.
CREATE FUNCTION {schema}.delete_job(p_queue text, p_place bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM {schema}.free_locks(p_queue, ARRAY[p_place]);
  DELETE FROM {schema}.job j WHERE j.queue = p_queue AND j.place = p_place;
END $$;

CREATE FUNCTION {schema}.lost_too_often() RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT 'its lease was lost too often: its handler ends the process or takes too long'
$$;

-- As settle_jobs, for the lease of one job without a key.
CREATE FUNCTION {schema}.settle_loose(
  p_queue {schema}.queue, p_lease bigint, p_action text, p_place bigint, p_delay float8,
  p_attempts int, p_reason text, p_error text, p_now timestamptz)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM {schema}.job j WHERE j.queue = p_queue.name AND j.place = p_place
    AND j.lease = p_lease AND j.lease_until > p_now FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 'lost';
  ELSIF p_action = 'nak' THEN
    UPDATE {schema}.job j SET lease = NULL, owner = NULL, lease_until = NULL, attempts = p_attempts,
      lost = 0, reason = p_reason, due = p_now + make_interval(secs => p_delay)
    WHERE j.queue = p_queue.name AND j.place = p_place AND NOT j.cancelled;
    IF FOUND THEN
      RETURN 'waiting';
    END IF;
  END IF;
  IF p_action IN ('nak', 'fail', 'bury') THEN
    RETURN {schema}.give_up_loose(
      p_queue, p_place, p_attempts, p_reason, p_error, p_action = 'bury', p_now);
  ELSIF p_action = 'free' THEN
    UPDATE {schema}.job j SET lease = NULL, owner = NULL, lease_until = NULL,
      attempts = j.attempts - 1
    WHERE j.queue = p_queue.name AND j.place = p_place;
    RETURN 'freed';
  END IF;
  RETURN 'kept';
END $$;

-- As give_up, for a job without a key: to park it and to block it is the same.
CREATE FUNCTION {schema}.give_up_loose(
  p_queue {schema}.queue, p_place bigint, p_attempts int, p_reason text, p_error text,
  p_bury boolean, p_now timestamptz)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_is_buried boolean := p_bury OR p_queue.poison = 'skip'
    OR {schema}.is_cancelled(p_queue.name, p_place);
  v_attempts int := coalesce(p_attempts, (
    SELECT j.attempts - 1 FROM {schema}.job j WHERE j.queue = p_queue.name AND j.place = p_place));
  v_reason text := coalesce(p_reason, (
    SELECT j.reason FROM {schema}.job j
    WHERE j.queue = p_queue.name AND j.place = p_place AND j.lost = 0), {schema}.lost_too_often());
BEGIN
  IF v_is_buried OR p_queue.poison = 'block_and_dead_letter' THEN
    PERFORM {schema}.bury_job(p_queue.name, p_place, v_attempts, v_reason, p_error, p_now);
  END IF;
  IF v_is_buried THEN
    PERFORM {schema}.delete_job(p_queue.name, p_place);
    RETURN 'dead';
  END IF;
  UPDATE {schema}.job j SET lease = NULL, owner = NULL, lease_until = NULL, attempts = v_attempts,
    lost = 0, state = CASE p_queue.poison WHEN 'park_key' THEN 2 ELSE 1 END,
    reason = v_reason
  WHERE j.queue = p_queue.name AND j.place = p_place;
  RETURN CASE p_queue.poison WHEN 'park_key' THEN 'parked' ELSE 'blocked' END;
END $$;

-- Extends leases. The fate is "kept", "lost" if the lease had ended, or "locked": it is not extended.
-- r_cancelled are the places of cancelled jobs of its key.
CREATE FUNCTION {schema}.extend_leases(
  p_queue text, p_leases bigint[], p_lanes text[], p_places bigint[], p_seconds float8,
  p_now timestamptz DEFAULT NULL)
RETURNS TABLE (r_lease bigint, r_fate text, r_cancelled bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_until timestamptz := v_now + make_interval(secs => p_seconds);
  v_rows tid[];
  v_kept bigint[];
  v_locked bigint[] := '{}';
  v_cancels boolean := EXISTS (SELECT FROM {schema}.job j WHERE j.queue = p_queue AND j.cancelled);
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  v_rows := ARRAY(
    SELECT l.row FROM (
      SELECT g.* FROM unnest(p_lanes, p_leases) AS g (key, lease)
      WHERE g.key IS NOT NULL ORDER BY g.key OFFSET 0) g
    CROSS JOIN LATERAL (
      SELECT l.ctid AS row FROM {schema}.lane l
      WHERE l.queue = p_queue AND l.key = g.key
        AND coalesce(l.lease = g.lease AND l.lease_until > v_now, false)
      OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) l);
  WITH kept AS (
    UPDATE {schema}.lane l SET lease_until = v_until WHERE l.ctid = ANY (v_rows) RETURNING l.lease
  )
  SELECT coalesce(array_agg(k.lease), '{}') INTO v_kept FROM kept k;
  v_rows := ARRAY(
    SELECT j.row FROM (
      SELECT g.* FROM unnest(p_places, p_leases, p_lanes) AS g (place, lease, key)
      WHERE g.key IS NULL ORDER BY g.place OFFSET 0) g
    CROSS JOIN LATERAL (
      SELECT j.ctid AS row FROM {schema}.job j WHERE j.queue = p_queue AND j.place = g.place
        AND coalesce(j.lease = g.lease AND j.lease_until > v_now, false)
      OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) j);
  WITH kept AS (
    UPDATE {schema}.job j SET lease_until = v_until WHERE j.ctid = ANY (v_rows) RETURNING j.lease
  )
  SELECT v_kept || coalesce(array_agg(k.lease), '{}') INTO v_kept FROM kept k;
  IF cardinality(v_kept) < cardinality(p_leases) THEN
    v_locked := {schema}.live_of(p_queue, p_leases, p_lanes, p_places, v_kept, v_now);
  END IF;
  RETURN QUERY
  SELECT g.lease, CASE WHEN g.lease = ANY (v_kept) THEN 'kept' WHEN g.lease = ANY (v_locked) THEN 'locked'
    ELSE 'lost' END, CASE WHEN v_cancels THEN ARRAY(
      SELECT j.place FROM {schema}.job j WHERE j.queue = p_queue AND j.cancelled AND CASE
        WHEN g.key IS NULL THEN j.place = g.place ELSE g.key = '' OR j.key = g.key END) END
  FROM unnest(p_leases, p_lanes, p_places) AS g (lease, key, place);
END $$;

-- -- Operating -----------------------------------------------------------------------------------

-- Continues a lane that is blocked or parked, with its first job: to be tried again, its tries counted
-- on (so that one more is the last) or from 0. If p_skips, the job that stopped it, or else its first
-- one, becomes a dead letter. The state is "missing", "ready" or "dead"; or "leased", and nothing is
-- done, if a job is to be skipped while a lease goes on.
CREATE FUNCTION {schema}.resume_lane(
  p_queue text, p_key text, p_skips boolean, p_keeps_attempts boolean, p_now timestamptz DEFAULT NULL)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_queue {schema}.queue;
  v_lane {schema}.lane;
  v_place bigint;
BEGIN
  SELECT * INTO v_queue FROM {schema}.queue q WHERE q.name = p_queue;
  SELECT * INTO v_lane FROM {schema}.lane l
  WHERE l.queue = p_queue AND l.key = p_key AND l.state <> 0 FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN 'missing';
  ELSIF p_skips AND v_lane.lease_until > v_now THEN
    RETURN 'leased';
  END IF;
  SELECT j.place INTO v_place FROM {schema}.job j
  WHERE j.queue = p_queue AND j.place = v_lane.head AND v_lane.attempts > 0;
  IF NOT FOUND THEN
    SELECT j.place INTO v_place FROM {schema}.jobs_of_lane(
      p_queue, p_key, v_queue.ordering_required, least(v_lane.after, v_lane.low - 1), 1) j;
  END IF;
  UPDATE {schema}.lane l SET state = 0, reason = NULL, stopped_at = NULL, due = v_now,
    attempts = CASE WHEN p_keeps_attempts AND NOT p_skips
      THEN least(l.attempts, v_queue.max_attempts - 1) ELSE 0 END
  WHERE l.queue = p_queue AND l.key = p_key;
  IF p_skips AND v_place IS NOT NULL THEN
    PERFORM {schema}.bury_job(
      p_queue, v_place, v_lane.attempts, 'skipped by an operator', NULL, v_now);
    PERFORM {schema}.delete_job(p_queue, v_place);
    RETURN 'dead';
  END IF;
  RETURN 'ready';
END $$;

-- Parks a key: what is leased of it is still settled, and nothing else of it is given out. The lane is
-- made if the key has no jobs. The state is "parked", "leased" while a lease of it goes on, or "missing"
-- if there is no such queue, or its jobs are one lane and p_key is not ''.
CREATE FUNCTION {schema}.park_lane(
  p_queue text, p_key text, p_reason text, p_now timestamptz DEFAULT NULL)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_lane {schema}.lane;
BEGIN
  INSERT INTO {schema}.lane AS l (queue, key, slot, sticky, priority, due, state, reason, stopped_at)
  SELECT q.name, p_key, {schema}.ring_slot(p_key), q.sticky AND NOT q.ordering_required, 0, v_now, 2,
    p_reason, v_now
  FROM {schema}.queue q WHERE q.name = p_queue AND (p_key = '' OR NOT q.ordering_required)
  ON CONFLICT (queue, key) DO UPDATE SET state = 2, reason = p_reason, stopped_at = v_now
  RETURNING * INTO v_lane;
  RETURN CASE WHEN v_lane.queue IS NULL THEN 'missing' WHEN v_lane.lease_until > v_now THEN 'leased'
    ELSE 'parked' END;
END $$;

-- Enqueues dead letters again, behind what is waiting, in the order of their places: those of a key, or
-- of these places, or the next p_most. Cancelled jobs return only by their places. One whose job is still
-- blocked in its lane stays. Returns how many.
CREATE FUNCTION {schema}.redrive_jobs(p_queue text, p_key text, p_places bigint[], p_most int)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_count bigint;
BEGIN
  WITH gone AS (
    DELETE FROM {schema}.finished_job f WHERE f.queue = p_queue AND f.place = ANY (ARRAY(
      SELECT d.place FROM {schema}.finished_job d
      WHERE d.queue = p_queue AND (p_key IS NULL OR d.key = p_key)
        AND d.outcome = ANY (CASE WHEN p_places IS NULL THEN '{dead}' ELSE '{dead,cancelled}' END::text[])
        AND (p_places IS NULL OR d.place = ANY (p_places))
        AND NOT EXISTS (SELECT FROM {schema}.job j WHERE j.queue = d.queue AND j.place = d.place)
      ORDER BY d.place LIMIT p_most FOR UPDATE))
    RETURNING f.*
  )
  INSERT INTO {schema}.job (queue, key, payload, headers, at, priority, slot)
  SELECT g.queue, g.key, g.payload, g.headers, g.at, g.priority, g.slot FROM gone g ORDER BY g.place;
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- Cancels jobs. The fate is "cancelled": it has left its lane, and is kept as such; "cancelling": it is
-- marked, since it is leased; or "missing". A lane that is blocked by a cancelled job continues; one that is
-- parked stays.
CREATE FUNCTION {schema}.cancel_jobs(p_queue text, p_places bigint[], p_now timestamptz DEFAULT NULL)
RETURNS TABLE (r_place bigint, r_fate text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_queue {schema}.queue;
  v_found bigint[] := '{}';
  v_job record;
BEGIN
  SELECT * INTO v_queue FROM {schema}.queue q WHERE q.name = p_queue;
  -- locks the lanes, and makes those that no claim has made yet: it could make and lease them meanwhile
  PERFORM {schema}.make_lanes(p_queue, array_agg(k.key), array_agg(k.low), array_agg(k.slot),
    array_agg(k.priority), v_now)
  FROM (
    SELECT CASE WHEN v_queue.ordering_required THEN '' ELSE j.key END AS key, min(j.place) AS low,
      min(j.slot) AS slot, max(j.priority) AS priority
    FROM {schema}.job j WHERE j.queue = p_queue AND j.place = ANY (p_places) AND j.due IS NULL
    GROUP BY 1) k
  WHERE k.key IS NOT NULL HAVING count(*) > 0;
  FOR v_job IN  -- in a later statement than the one that locked
    SELECT j.place, j.key, l.key AS lane, j.due IS NULL AND l.head = j.place AS is_head, l.attempts,
      coalesce(CASE WHEN j.due IS NULL THEN l.lease_until END, j.lease_until) > v_now AS is_leased
    FROM {schema}.job j LEFT JOIN {schema}.lane l ON l.queue = p_queue
      AND l.key = CASE WHEN v_queue.ordering_required THEN '' ELSE j.key END
    WHERE j.queue = p_queue AND j.place = ANY (p_places) ORDER BY j.place FOR UPDATE OF j
  LOOP
    r_place := v_job.place;
    v_found := v_found || r_place;
    UPDATE {schema}.job j SET cancelled = true WHERE j.queue = p_queue AND j.place = r_place;
    r_fate := 'cancelling';
    IF v_job.is_leased IS NOT TRUE THEN
      PERFORM {schema}.bury_job(
        p_queue, r_place, CASE WHEN v_job.is_head THEN v_job.attempts END, NULL, NULL, v_now);
      PERFORM {schema}.delete_job(p_queue, r_place);
      UPDATE {schema}.lane l SET attempts = 0, lost = 0,
        due = CASE WHEN v_queue.key_rate IS NULL THEN v_now ELSE l.due END,
        state = CASE l.state WHEN 1 THEN 0 ELSE l.state END,
        reason = CASE l.state WHEN 2 THEN l.reason END,
        stopped_at = CASE l.state WHEN 2 THEN l.stopped_at END
      WHERE l.queue = p_queue AND l.key = v_job.lane AND v_job.is_head;
      r_fate := 'cancelled';
    END IF;
    RETURN NEXT;
  END LOOP;
  RETURN QUERY SELECT p.place, 'missing' FROM unnest(p_places) AS p (place) WHERE p.place <> ALL (v_found);
END $$;

-- Lets jobs be tried again at once, with attempts from 0. The fate is "ready": it no longer is delayed,
-- backs off, or is blocked or parked, with its key; "enqueued": it had left, and is behind the waiting
-- jobs again; and nothing is done if it is "leased", "behind" another job of its key, or "missing".
CREATE FUNCTION {schema}.retry_jobs(p_queue text, p_places bigint[], p_now timestamptz DEFAULT NULL)
RETURNS TABLE (r_place bigint, r_fate text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_queue {schema}.queue;
  v_lane {schema}.lane;
  v_job record;
BEGIN
  SELECT * INTO v_queue FROM {schema}.queue q WHERE q.name = p_queue;
  FOR v_job IN
    SELECT p.place, j.place IS NOT NULL AS is_here, j.due, j.lease_until, j.cancelled,
      CASE WHEN v_queue.ordering_required THEN '' ELSE j.key END AS lane
    FROM unnest(p_places) AS p (place)
    LEFT JOIN {schema}.job j ON j.queue = p_queue AND j.place = p.place ORDER BY lane, p.place
  LOOP
    r_place := v_job.place;
    r_fate := 'ready';
    v_lane := NULL;
    IF NOT v_job.is_here THEN
      r_fate := CASE {schema}.redrive_jobs(p_queue, NULL, ARRAY[r_place], 1) WHEN 1 THEN 'enqueued'
        ELSE 'missing' END;
    ELSIF v_job.due IS NOT NULL OR v_job.lane IS NULL THEN
      UPDATE {schema}.job j SET state = 0, attempts = 0, reason = NULL,
        due = CASE WHEN j.due IS NOT NULL THEN least(j.due, v_now) END
      WHERE j.queue = p_queue AND j.place = r_place AND (j.lease_until > v_now) IS NOT TRUE;
      IF NOT FOUND THEN
        r_fate := 'leased';
      END IF;
    ELSE
      SELECT * INTO v_lane FROM {schema}.lane l
      WHERE l.queue = p_queue AND l.key = v_job.lane FOR NO KEY UPDATE;
      IF v_lane.lease_until > v_now THEN
        r_fate := 'leased';
      ELSIF r_place <> (SELECT j.place FROM {schema}.jobs_of_lane(p_queue, v_job.lane,
          v_queue.ordering_required, coalesce(least(v_lane.after, v_lane.low - 1), 0), 1) j) THEN
        r_fate := 'behind';
      ELSE
        UPDATE {schema}.lane l SET state = 0, reason = NULL, stopped_at = NULL, attempts = 0, lost = 0,
          due = least(l.due, v_now)
        WHERE l.queue = p_queue AND l.key = v_job.lane;
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Deletes up to p_most finished jobs of an outcome that ended before a time, of a key or all. Returns
-- how many.
CREATE FUNCTION {schema}.purge_finished(
  p_queue text, p_outcome text, p_before timestamptz, p_most int, p_key text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_count bigint;
BEGIN
  DELETE FROM {schema}.finished_job f WHERE f.queue = p_queue AND f.place = ANY (ARRAY(
    SELECT d.place FROM {schema}.finished_job d
    WHERE d.queue = p_queue AND d.outcome = p_outcome AND d.finished_at < p_before
      AND (p_key IS NULL OR d.key = p_key)
    ORDER BY d.queue, d.outcome, d.finished_at LIMIT p_most));
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;

-- Deletes waiting jobs, of a key or all, enqueued before a time if one is given, but not those of lanes
-- that are leased now. Returns how many.
CREATE FUNCTION {schema}.purge_waiting(
  p_queue text, p_key text, p_most int, p_now timestamptz DEFAULT NULL,
  p_before timestamptz DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_queue {schema}.queue;
  v_places bigint[];
  v_keys text[];
BEGIN
  SELECT * INTO v_queue FROM {schema}.queue q WHERE q.name = p_queue;
  v_places := ARRAY(
    SELECT d.place FROM {schema}.job d
    WHERE d.queue = p_queue AND (p_key IS NULL OR d.key = p_key)
      AND (p_before IS NULL OR d.at < p_before)
      AND (d.lease_until IS NULL OR d.lease_until <= v_now)
      AND coalesce((
        SELECT l.lease_until FROM {schema}.lane l WHERE l.queue = p_queue
          AND l.key = CASE WHEN v_queue.ordering_required THEN '' ELSE d.key END) <= v_now, true)
    LIMIT p_most FOR UPDATE SKIP LOCKED);
  PERFORM {schema}.free_locks(p_queue, v_places);
  WITH gone AS (
    DELETE FROM {schema}.job j WHERE j.queue = p_queue AND j.place = ANY (v_places) RETURNING j.key
  )
  SELECT array_agg(DISTINCT CASE WHEN v_queue.ordering_required THEN '' ELSE g.key END) INTO v_keys
  FROM gone g;
  -- Lanes without jobs would be in the way of claims. They are locked first: a bell that was merged
  -- before has a job that the later statement sees, and one that is merged now waits for the end.
  v_keys := ARRAY(
    SELECT l.key FROM {schema}.lane l
    WHERE l.queue = p_queue AND l.key = ANY (v_keys) AND l.lease IS NULL AND l.state = 0
    ORDER BY l.key FOR UPDATE SKIP LOCKED);
  DELETE FROM {schema}.lane l WHERE l.queue = p_queue AND l.key = ANY (v_keys) AND NOT EXISTS (
    SELECT FROM {schema}.jobs_of_lane(
      p_queue, l.key, v_queue.ordering_required, least(l.after, l.low - 1), 1));
  RETURN cardinality(v_places);
END $$;

-- -- Sticky routing ------------------------------------------------------------------------------

-- Assigns ranges of slots to consumers of a group, an element of each array for each range. Ranges that
-- are there must lie within the new ones, taken together, or be apart from them; so a split, a merge
-- and a move are each one call. The new owner of a part is given nothing in its range until earlier
-- owners have no lease left in it.
CREATE FUNCTION {schema}.assign_ranges(
  p_queue text, p_grp text, p_los int[], p_his int[], p_consumers text[], p_complete boolean,
  p_now timestamptz DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_wrong record;
BEGIN
  INSERT INTO {schema}.queue_group (queue, grp, automatic, moved_at)
  SELECT q.name, p_grp, false, v_now FROM {schema}.queue q WHERE q.name = p_queue
  ON CONFLICT (queue, grp) DO UPDATE SET automatic = false;
  PERFORM FROM {schema}.queue_group g WHERE g.queue = p_queue AND g.grp = p_grp FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no queue %', p_queue USING ERRCODE = 'PS010', DETAIL = p_queue;
  END IF;
  SELECT u.* INTO v_wrong FROM unnest(p_los, p_his, p_consumers) AS u (lo, hi, consumer)
  WHERE u.lo < 0 OR u.hi > 65535 OR u.lo > u.hi OR u.lo IS NULL OR u.hi IS NULL
    OR coalesce(u.consumer, '') = '' LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'the range % to % is none of the slots 0 to 65535 with a consumer',
      v_wrong.lo, v_wrong.hi USING ERRCODE = 'PS013';
  END IF;
  SELECT a.lo, a.hi, b.lo AS other_lo, b.hi AS other_hi INTO v_wrong
  FROM unnest(p_los, p_his) WITH ORDINALITY AS a (lo, hi, n)
  JOIN unnest(p_los, p_his) WITH ORDINALITY AS b (lo, hi, n)
    ON a.n < b.n AND a.lo <= b.hi AND b.lo <= a.hi LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'the ranges % to % and % to % overlap', v_wrong.lo, v_wrong.hi, v_wrong.other_lo,
      v_wrong.other_hi USING ERRCODE = 'PS013';
  END IF;
  -- a reassignment waits for claims that have begun, which hold the rows FOR KEY SHARE
  PERFORM FROM {schema}.ring_range r WHERE r.queue = p_queue AND r.grp = p_grp ORDER BY r.lo FOR UPDATE;
  SELECT r.lo, r.hi INTO v_wrong FROM {schema}.ring_range r
  WHERE r.queue = p_queue AND r.grp = p_grp
    AND EXISTS (SELECT FROM unnest(p_los, p_his) AS u (lo, hi) WHERE u.lo <= r.hi AND r.lo <= u.hi)
    AND r.hi - r.lo + 1 > (
      SELECT sum(least(u.hi, r.hi) - greatest(u.lo, r.lo) + 1)
      FROM unnest(p_los, p_his) AS u (lo, hi) WHERE u.lo <= r.hi AND r.lo <= u.hi)
  ORDER BY r.lo LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'the range % to % overlaps only in part; assign all of it in one call',
      v_wrong.lo, v_wrong.hi USING ERRCODE = 'PS013';
  END IF;
  IF p_complete AND 65536 <> (SELECT sum(u.hi - u.lo + 1) FROM unnest(p_los, p_his) AS u (lo, hi)) THEN
    SELECT d.lo INTO v_wrong FROM (
      SELECT coalesce(max(u.hi) OVER (ORDER BY u.lo ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        + 1, 0) AS lo, u.lo AS next
      FROM (SELECT * FROM unnest(p_los, p_his) UNION ALL SELECT 65536, 65536) AS u (lo, hi)) d
    WHERE d.lo < d.next ORDER BY d.lo LIMIT 1;
    RAISE EXCEPTION 'the ranges leave a gap at slot %', v_wrong.lo USING ERRCODE = 'PS013';
  END IF;
  WITH replaced AS (
    DELETE FROM {schema}.ring_range r
    WHERE r.queue = p_queue AND r.grp = p_grp
      AND EXISTS (SELECT FROM unnest(p_los, p_his) AS u (lo, hi) WHERE u.lo <= r.hi AND r.lo <= u.hi)
    RETURNING r.lo, r.hi, r.consumer, r.draining
  ), kept AS (
    SELECT u.lo, u.hi, u.consumer, coalesce(o.draining, true) AS draining
    FROM unnest(p_los, p_his, p_consumers) AS u (lo, hi, consumer)
    LEFT JOIN replaced o ON o.lo <= u.lo AND o.hi >= u.hi AND o.consumer = u.consumer
  )
  INSERT INTO {schema}.ring_range (queue, grp, lo, hi, consumer, draining, assigned_at)
  SELECT p_queue, p_grp, k.lo, k.hi, k.consumer, k.draining, v_now FROM kept k;
END $$;

-- Tells that a consumer of a group lives, for so many seconds. Returns how many of the group do.
CREATE FUNCTION {schema}.seen_consumer(
  p_queue text, p_grp text, p_consumer text, p_seconds float8, p_now timestamptz DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  IF EXISTS (SELECT FROM {schema}.queue_member m
    WHERE m.queue = p_queue AND m.seen_at > v_now + interval '5 s') THEN
    PERFORM {schema}.follow_clock(p_queue, make_interval(secs => p_seconds), v_now);
  END IF;
  INSERT INTO {schema}.queue_member AS m (queue, grp, consumer, seen_at, live_until)
  VALUES (p_queue, p_grp, p_consumer, v_now, v_now + make_interval(secs => p_seconds))
  ON CONFLICT (queue, grp, consumer) DO UPDATE
  SET seen_at = excluded.seen_at, live_until = excluded.live_until;
  RETURN (SELECT count(*) FROM {schema}.queue_member m
    WHERE m.queue = p_queue AND m.grp = p_grp AND m.live_until > v_now);
END $$;

-- Moves the times of a queue back with a clock that was set back, as the members show, which were seen in
-- the future. Otherwise keys that are ready, or were leased by a consumer that has died, would wait for
-- hours. Times that jobs were given by their producers stay. A step below p_lease leaves the leases alone:
-- those that began after it are not told from those before it. Rows that are locked are about to be written.
CREATE FUNCTION {schema}.follow_clock(p_queue text, p_lease interval, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_back interval;
BEGIN
  WITH ahead AS (
    SELECT m.grp, m.consumer, m.seen_at FROM {schema}.queue_member m
    WHERE m.queue = p_queue AND m.seen_at > p_now + interval '5 s' ORDER BY m.grp, m.consumer FOR UPDATE
  ), back AS (
    SELECT max(a.seen_at) - p_now AS back FROM ahead a
  ), moved AS (
    UPDATE {schema}.queue_member m SET seen_at = m.seen_at - b.back, live_until = m.live_until - b.back
    FROM ahead a, back b WHERE m.queue = p_queue AND (m.grp, m.consumer) = (a.grp, a.consumer)
  )
  SELECT b.back INTO v_back FROM back b;
  IF v_back IS NULL THEN  -- another consumer has done it
    RETURN;
  END IF;
  UPDATE {schema}.queue_group g SET moved_at = p_now WHERE g.queue = p_queue AND g.moved_at > p_now;
  UPDATE {schema}.lane l SET due = l.due - v_back,
    lease_until = l.lease_until - CASE WHEN v_back > p_lease AND l.lease_until > p_now + v_back
      THEN v_back ELSE interval '0' END
  WHERE l.ctid = ANY (ARRAY(
    SELECT l.ctid FROM {schema}.lane l
    WHERE l.queue = p_queue AND (l.due > p_now OR l.lease_until > p_now + v_back)
    FOR NO KEY UPDATE SKIP LOCKED));
  UPDATE {schema}.job j SET due = j.due - CASE WHEN j.attempts > 0 THEN v_back ELSE interval '0' END,
    lease_until = j.lease_until - CASE WHEN v_back > p_lease AND j.lease_until > p_now + v_back
      THEN v_back ELSE interval '0' END
  WHERE j.ctid = ANY (ARRAY(
    SELECT j.ctid FROM {schema}.job j
    WHERE j.queue = p_queue
      AND (j.due > p_now AND j.attempts > 0 OR j.lease IS NOT NULL AND j.lease_until > p_now + v_back)
    FOR NO KEY UPDATE SKIP LOCKED));
END $$;

-- Ends the membership of a consumer. Its automatic ranges pass to others at the next balance.
CREATE FUNCTION {schema}.left_consumer(p_queue text, p_grp text, p_consumer text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  DELETE FROM {schema}.queue_member m
  WHERE m.queue = p_queue AND m.grp = p_grp AND m.consumer = p_consumer
$$;

-- Moves automatic ranges, of 256 slots each, towards an even share of the live consumers, from one owner
-- to one other, at most once per p_pause seconds. Those of consumers that are gone pass at once. Shares
-- that differ by one range stay, so that the ranges come to rest. A group whose ranges an operator has
-- assigned is left alone. Returns how many ranges were moved.
CREATE FUNCTION {schema}.balance_ranges(
  p_queue text, p_grp text, p_pause float8, p_now timestamptz DEFAULT NULL)
RETURNS int LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_moved_at timestamptz;
  v_live text[];
  v_counts int[];
  v_orphans int[];
  v_moving int[];
  v_least int;
  v_most int;
  v_moved int := 0;
  v_lo int;
BEGIN
  INSERT INTO {schema}.queue_group (queue, grp, automatic, moved_at)
  VALUES (p_queue, p_grp, true, '-infinity') ON CONFLICT DO NOTHING;
  SELECT g.moved_at INTO v_moved_at FROM {schema}.queue_group g
  WHERE g.queue = p_queue AND g.grp = p_grp AND g.automatic FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  SELECT array_agg(m.consumer ORDER BY m.consumer), array_agg((
      SELECT count(*)::int FROM {schema}.ring_range r
      WHERE r.queue = p_queue AND r.grp = p_grp AND r.consumer = m.consumer) ORDER BY m.consumer)
  INTO v_live, v_counts FROM {schema}.queue_member m
  WHERE m.queue = p_queue AND m.grp = p_grp AND m.live_until > v_now;
  IF v_live IS NULL THEN
    RETURN 0;
  END IF;
  v_orphans := ARRAY(
    SELECT p.lo FROM generate_series(0, 65535, 256) AS p (lo)
    LEFT JOIN {schema}.ring_range r ON r.queue = p_queue AND r.grp = p_grp AND r.lo = p.lo
    WHERE r.consumer IS NULL OR r.consumer <> ALL (v_live) ORDER BY p.lo);
  v_moving := v_orphans;
  v_least := {schema}.place_of_least(v_counts);
  v_most := {schema}.place_of_least(ARRAY(SELECT -c FROM unnest(v_counts) AS c));
  IF cardinality(v_orphans) = 0
    AND v_moved_at <= v_now - make_interval(secs => p_pause)
    AND v_counts[v_most] - v_counts[v_least] > 1 THEN
    v_moving := ARRAY(
      SELECT r.lo FROM {schema}.ring_range r
      WHERE r.queue = p_queue AND r.grp = p_grp AND r.consumer = v_live[v_most]
      ORDER BY r.lo DESC LIMIT (v_counts[v_most] - v_counts[v_least]) / 2);
  END IF;
  -- a reassignment waits for claims that have begun, which hold the rows FOR KEY SHARE
  PERFORM FROM {schema}.ring_range r WHERE r.queue = p_queue AND r.grp = p_grp AND r.lo = ANY (v_moving)
  ORDER BY r.lo FOR UPDATE;
  FOREACH v_lo IN ARRAY v_moving LOOP
    IF cardinality(v_orphans) > 0 THEN
      v_least := {schema}.place_of_least(v_counts);
      v_counts[v_least] := v_counts[v_least] + 1;
    END IF;
    PERFORM {schema}.move_part(p_queue, p_grp, v_lo, v_live[v_least], v_now);
    v_moved := v_moved + 1;
  END LOOP;
  IF v_moved > 0 THEN
    UPDATE {schema}.queue_group g SET moved_at = v_now WHERE g.queue = p_queue AND g.grp = p_grp;
  END IF;
  RETURN v_moved;
END $$;

CREATE FUNCTION {schema}.place_of_least(p_counts int[]) RETURNS int LANGUAGE sql IMMUTABLE AS $$
  SELECT n::int FROM unnest(p_counts) WITH ORDINALITY AS c (count, n) ORDER BY count, n LIMIT 1
$$;

-- Gives an automatic range to another consumer.
CREATE FUNCTION {schema}.move_part(
  p_queue text, p_grp text, p_lo int, p_consumer text, p_now timestamptz) RETURNS void
LANGUAGE sql VOLATILE AS $$
  INSERT INTO {schema}.ring_range AS r (queue, grp, lo, hi, consumer, draining, assigned_at)
  VALUES (p_queue, p_grp, p_lo, p_lo + 255, p_consumer, true, p_now)
  ON CONFLICT (queue, grp, lo) DO UPDATE
  SET consumer = excluded.consumer, draining = true, assigned_at = excluded.assigned_at
$$;

ALTER TABLE {schema}.grantee DROP CONSTRAINT grantee_rights_check;
ALTER TABLE {schema}.grantee ADD CONSTRAINT grantee_rights_check
CHECK (rights IN ('append', 'read', 'subscribe', 'enqueue', 'work', 'operate'));
