"""A Django app for the tests: something to be in a transaction with."""
