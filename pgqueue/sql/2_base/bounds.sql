-- Bounds of arguments: sizes, lengths and numbers of elements. Times are in names.sql.
--
-- A public function checks each argument that it stores, or walks over. It is the only check for a caller that is not
-- the Python client; that client has the same bounds. An argument that is looked up and not stored, for example the
-- name of a take's queue, needs no check: a name that cannot exist is not found.
--
-- Hot functions check inline, and call a function of this file only to raise the error. The functions that
-- return a bound are constants: PostgreSQL replaces a call by its value when it plans a statement.

-- The largest value, in bytes as PostgreSQL holds it: 64 MB. jsonb itself ends at 255 MB. But each value travels
-- through the memory of a server process, of a driver and of an application several times, and Python needs about ten
-- times its size: a few such tasks at once already fill a machine. A value that comes from a table may be compressed,
-- and counts with its compressed size: for the other size every put would have to decompress its data.
CREATE OR REPLACE FUNCTION pgqueue._most_data() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 67108864;

-- The longest error of a task, in bytes: each list of tasks shows the error. Other texts have lower bounds, a label for
-- example.
CREATE OR REPLACE FUNCTION pgqueue._most_text() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 65536;

-- The largest array. A call for this many tasks takes seconds, and holds their locks for as long.
CREATE OR REPLACE FUNCTION pgqueue._most_elements() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 100000;

-- A caller's text, as an error quotes it.
CREATE OR REPLACE FUNCTION pgqueue._shown(given text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN length(given) > 100 THEN left(given, 100) || '...' ELSE coalesce(given, 'NULL') END;

CREATE OR REPLACE FUNCTION pgqueue._check_given(name text, given anyelement) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF given IS NULL THEN
        RAISE EXCEPTION '% cannot be NULL', name USING ERRCODE = 'PQ002';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_count(name text, given int, low int DEFAULT 1) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF given < low OR given IS NULL THEN
        RAISE EXCEPTION '% must be a whole number from %, not %', name, low, coalesce(given::text, 'NULL')
            USING ERRCODE = 'PQ002';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_data(
    name text, given jsonb, most int DEFAULT pgqueue._most_data(), nulls boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF given IS NULL AND NOT nulls THEN
        RAISE EXCEPTION '% cannot be NULL', name USING ERRCODE = 'PQ002', HINT = 'The null of JSON is ''null''.';
    ELSIF pg_column_size(given) > most THEN
        RAISE EXCEPTION '% has % bytes, the limit is %', name, pg_column_size(given), most
            USING ERRCODE = 'PQ036', HINT = 'Store the bulk elsewhere, and its place in the task.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION pgqueue._check_text(
    name text, given text, most int DEFAULT pgqueue._most_text(), code text DEFAULT 'PQ002'
) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF octet_length(given) > most THEN
        RAISE EXCEPTION '% has at most % bytes, this one has %', name, most, octet_length(given) USING ERRCODE = code;
    END IF;
END $$;

-- An array in one dimension, whose elements count from 1: loops and joins here would misread others. NULL is allowed.
CREATE OR REPLACE FUNCTION pgqueue._check_array(name text, given anyarray, nulls boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF cardinality(given) > pgqueue._most_elements() THEN
        RAISE EXCEPTION '% has at most % elements, not %: call this several times', name, pgqueue._most_elements(),
            cardinality(given) USING ERRCODE = 'PQ002';
    ELSIF array_ndims(given) > 1 OR array_lower(given, 1) <> 1 THEN
        RAISE EXCEPTION '% must be an array of one dimension that begins at 1, not %', name, array_dims(given)
            USING ERRCODE = 'PQ002';
    ELSIF NOT nulls AND array_position(given, NULL) IS NOT NULL THEN
        RAISE EXCEPTION '% has a NULL at %', name, array_position(given, NULL) USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- Tasks by their ids, each with its token or NULL.
CREATE OR REPLACE FUNCTION pgqueue._check_takes(ids bigint[], tokens bigint[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM pgqueue._check_array('ids', ids), pgqueue._check_array('tokens', tokens, nulls => true);
    IF cardinality(tokens) <> cardinality(ids) THEN
        RAISE EXCEPTION 'tokens go with the tasks: % tasks, % tokens', cardinality(ids), cardinality(tokens)
            USING ERRCODE = 'PQ002';
    END IF;
END $$;

-- A JSON array whose elements are stored one by one. The elements are checked only if their sum is too large.
CREATE OR REPLACE FUNCTION pgqueue._check_items(name text, given jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF given IS NULL OR jsonb_typeof(given) <> 'array' THEN
        RAISE EXCEPTION '% must be a JSON array, not %', name, coalesce(jsonb_typeof(given), 'NULL')
            USING ERRCODE = 'PQ002';
    ELSIF jsonb_array_length(given) > pgqueue._most_elements() THEN
        RAISE EXCEPTION '% has at most % elements, not %: call this several times', name, pgqueue._most_elements(),
            jsonb_array_length(given) USING ERRCODE = 'PQ002';
    ELSIF pg_column_size(given) > pgqueue._most_data() THEN
        PERFORM pgqueue._check_data(name || '[' || e.n - 1 || ']', e.item)
           FROM jsonb_array_elements(given) WITH ORDINALITY e(item, n);
    END IF;
END $$;
