"""A cluster whose servers change under load: one joins, drains, hands on its tasks and leaves; others are away.

programs.py     the load: producers, workers, and a control that shows when the machine stood still
changes.py      the servers, and what happens to them
measures.py     how long a worker was idle, and how long a put took, without the time in which the machine stood still
__main__.py     `python -m faults.cluster`: the changes one after another, and a table
"""
