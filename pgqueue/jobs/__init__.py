"""Jobs: functions with a name, typed arguments and policies, whose tasks a worker runs.

    job.py        Job: a function, its puts, and BoundJob: its puts with options
    signature.py  its parameters; the arguments of a call by name
    codec.py      the arguments as JSON and back: typed.py with pydantic, plain.py without it; quick.py is how msgspec
                  reads simple ones
    retry.py      Retry, RetryLater, Bury: the retries of a task that failed
    limits.py     Rate, and the limit that a job declares
    options.py    the policies of a job, and the options of a put
    registry.py   the jobs of a client
    registering.py  the decorator that makes a function a job
    starts.py     hooks of workers: objects that handlers share
    clients.py    Client and AsyncClient

A job's task is plain data, `{"job": "shop.send", "args": {"to": "ada"}}`, so SQL and other languages put the same. It
may have `sig`, a digest of the signature; `headers`, an object of strings; and `attempts`, in place of the Retry's.
worker/dispatch.py runs it.
"""
