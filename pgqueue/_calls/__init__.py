"""One function for each SQL function: the call to send, and how to read its answer. No I/O.

A call is a value: the SQL function, its arguments by name, its columns, and the reader of its rows. call() in call.py
writes the statement of that, with the types of the arguments in casts.py; query() takes a statement that is not the
call of one function as it is written. No code reads a statement's text to learn its function.

No other Python contains SQL, except for queries that only a part of contrib/ needs. Arguments are passed by name, so
that an SQL function may gain one with a default; columns are named, so that it may gain a column. Data travels as text,
since the caller's connection may have its own loader for jsonb.
"""
