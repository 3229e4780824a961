"""One function for each SQL function: the statement to send, and how to read its answer. No I/O.

No other Python contains SQL, except for queries that only a part of contrib/ needs. Arguments are passed by name, so
that an SQL function may gain one with a default; columns are named, so that it may gain a column. Each parameter has a
cast, since psycopg types an int by its size. Data travels as text, since the caller's connection may have its own
loader for jsonb.
"""
