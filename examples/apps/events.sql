CREATE TABLE events (id bigint PRIMARY KEY, action text NOT NULL);
