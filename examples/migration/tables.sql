CREATE TABLE audit_events (id bigint PRIMARY KEY, action text NOT NULL);
CREATE TABLE audit_refused (event text NOT NULL, error text NOT NULL);
