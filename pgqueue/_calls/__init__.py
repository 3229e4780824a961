"""One function for each SQL function: what to send, and how to read the answer. No I/O.

The only Python that holds SQL, but for what some part of contrib/ alone looks up. Arguments go by name, so that a
function may gain one with a default; columns are named too, so that it may gain a column. Each parameter has a cast,
since psycopg types an int by its size. Data travels as text: a connection that is the caller's may load jsonb its own
way.
"""
