"""A node of Citus that ends between its own commit and the commit of another node.

nodes.py        a coordinator and two workers
windows.py      holds open the time between two commits
__main__.py     `python -m faults.citus`: many such ends, and a table of what was left
"""
