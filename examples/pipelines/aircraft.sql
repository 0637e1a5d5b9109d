CREATE TABLE aircraft (
  tailnum text PRIMARY KEY, at timestamptz, carrier text, origin text, dest text, flights bigint
);
