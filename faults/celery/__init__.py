"""Celery's programs on pgqueue, killed and restarted.

python -m faults.celery.kills               # kill -9 of workers, with pgqueue and with Redis
python -m faults.celery.soak --minutes 30   # a worker, beat and events, with a restart of everything in turn

application.py  the application, whose tasks journal their runs
programs.py     Celery's programs as processes: started, ended, killed
client.py       the process that sends tasks and waits for results in the soak
samples.py      what the soak looks at every ten seconds, and what has to stay flat
"""
