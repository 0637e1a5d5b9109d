-- Schedules: periodic jobs of queues.
--
-- 1. Consumers compute ticks, since the server knows no cron expressions; the server decides whether one
--    fires. In one transaction it moves a schedule from its next tick to the tick after, which only the
--    first caller can do, and enqueues the jobs.
-- 2. The next tick of a schedule is behind its last one, so a tick that has fired never fires again, also
--    if the server's clock is set back.
-- 3. A change of a schedule increments its revision. Ticks that were computed before it do not fire.
-- 4. The id of a job is derived from its queue, its schedule and its tick.
-- 5. Ticks are whole seconds since the epoch.

CREATE TABLE {schema}.schedule (
  queue text NOT NULL REFERENCES {schema}.queue ON DELETE CASCADE,
  name text NOT NULL CHECK (name <> '' AND octet_length(name) <= 200),
  cron text,
  every bigint CHECK (every > 0),
  timezone text NOT NULL,
  payload jsonb NOT NULL,
  key text CHECK (octet_length(key) <= 1000),
  headers jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
  priority smallint NOT NULL DEFAULT 0,
  catch_up text NOT NULL CHECK (catch_up IN ('all', 'last', 'none')),
  paused boolean NOT NULL DEFAULT false,
  revision bigint NOT NULL DEFAULT 1,
  next_at timestamptz,
  last_at timestamptz,
  last_job bigint,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (queue, name),
  CHECK ((cron IS NULL) <> (every IS NULL)),
  CHECK (next_at > last_at)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON COLUMN {schema}.schedule.every IS 'seconds; ticks are its multiples since the epoch';
COMMENT ON COLUMN {schema}.schedule.last_job IS 'the place of the job of the last tick';
CREATE INDEX schedule_next ON {schema}.schedule (queue, next_at) WHERE NOT paused;

-- The time by which ticks are due.
CREATE FUNCTION {schema}.schedule_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
  SELECT clock_timestamp()
$$;

-- Enqueues a job for each tick. Returns the place of the last one, or NULL without ticks.
CREATE FUNCTION {schema}.enqueue_ticks(
  p_schedule {schema}.schedule, p_ticks bigint[], p_ids text[], p_slot int)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_count int := cardinality(p_ticks);
  v_headers text[] := ARRAY(
    SELECT (p_schedule.headers || jsonb_build_object('schedule', p_schedule.name, 'scheduled_for',
      to_char(to_timestamp(t.tick) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))::text
    FROM unnest(p_ticks) WITH ORDINALITY AS t (tick, n) ORDER BY t.n);
  v_place bigint;
BEGIN
  SELECT coalesce(e.r_place, i.place) INTO v_place
  FROM {schema}.enqueue(p_schedule.queue, array_fill(p_schedule.key, ARRAY[v_count]),
    array_fill(p_schedule.payload::text, ARRAY[v_count]), v_headers, NULL,
    array_fill(p_schedule.priority::int, ARRAY[v_count]), array_fill(p_slot, ARRAY[v_count]), p_ids) e
  LEFT JOIN {schema}.job_id i ON i.queue = p_schedule.queue AND i.id = p_ids[v_count]::uuid
  WHERE e.r_n = v_count - 1;
  RETURN v_place;
END $$;

-- Fires ticks of a schedule, and sets its next tick, if p_due still is its next tick in this revision. The
-- slot is that of its key, in a queue whose slot function is not computed by the server. Returns whether it
-- did; not if a tick is not due by the server's clock, or another session has locked the schedule.
CREATE FUNCTION {schema}.fire_schedule(
  p_queue text, p_name text, p_revision bigint, p_due bigint, p_ticks bigint[], p_next bigint, p_slot int)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_last bigint := p_ticks[cardinality(p_ticks)];
  v_schedule {schema}.schedule;
  v_place bigint;
BEGIN
  SELECT * INTO v_schedule FROM {schema}.schedule s
  WHERE s.queue = p_queue AND s.name = p_name AND s.revision = p_revision AND NOT s.paused
    AND s.next_at = to_timestamp(p_due) AND to_timestamp(greatest(p_due, v_last)) <= {schema}.schedule_now()
    AND p_due <= ALL (p_ticks) AND (p_next > greatest(p_due, v_last)) IS NOT FALSE
  FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  v_place := {schema}.enqueue_ticks(v_schedule, p_ticks, ARRAY(
    SELECT encode(substring(sha256(convert_to(
      jsonb_build_array(p_queue, p_name, t.tick)::text, 'UTF8')) FOR 16), 'hex')
    FROM unnest(p_ticks) WITH ORDINALITY AS t (tick, n) ORDER BY t.n), p_slot);
  UPDATE {schema}.schedule s SET next_at = to_timestamp(p_next),
    last_at = coalesce(to_timestamp(v_last), s.last_at), last_job = coalesce(v_place, s.last_job)
  WHERE s.queue = p_queue AND s.name = p_name;
  RETURN true;
END $$;

-- Enqueues a job of a schedule now, beside its ticks. Returns its place, or NULL if there is no such
-- schedule.
CREATE FUNCTION {schema}.run_schedule(p_queue text, p_name text, p_slot int) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_schedule {schema}.schedule;
BEGIN
  SELECT * INTO v_schedule FROM {schema}.schedule s WHERE s.queue = p_queue AND s.name = p_name;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  RETURN {schema}.enqueue_ticks(v_schedule,
    ARRAY[floor(extract(epoch FROM {schema}.schedule_now()))::bigint], ARRAY[gen_random_uuid()::text],
    p_slot);
END $$;
