CREATE TABLE dead_letters (
    key             text PRIMARY KEY,
    item            json NOT NULL,
    error_type      text NOT NULL,
    error_class     text NOT NULL,
    message         text NOT NULL,
    attempts        integer NOT NULL,
    first_at        timestamptz NOT NULL,
    last_at         timestamptz NOT NULL,
    batcher         text NOT NULL,
    batch_id        text NOT NULL,
    tenant          json,
    trace_id        text,
    maybe_delivered boolean NOT NULL,
    item_key        text,
    parked_behind   boolean NOT NULL,
    number          bigint GENERATED ALWAYS AS IDENTITY, -- in the order in which they came
    -- what replays say
    state           text NOT NULL DEFAULT 'pending',
    replay          text,
    outcome         text
);
