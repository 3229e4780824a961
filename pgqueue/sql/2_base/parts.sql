-- Cleaning a large table part by part.

-- The pages of a table to read in this period of ten seconds: from low on, and below high. This is for tables where no
-- index finds the rows that are due: each cleaning reads a bounded number of pages, and every part has its turn.
CREATE OR REPLACE FUNCTION pgqueue._part_to_clean(of_table regclass, OUT low tid, OUT high tid)
LANGUAGE plpgsql AS $$
DECLARE
    pages CONSTANT bigint := 2000;
    parts CONSTANT bigint := 1 + pg_relation_size(of_table) / current_setting('block_size')::int / pages;
    first CONSTANT bigint := pages * (extract(epoch FROM clock_timestamp())::bigint / 10 % parts);
BEGIN
    low := format('(%s,0)', first)::tid;
    high := format('(%s,0)', first + pages)::tid;
END $$;
