"""Queues, tasks, takes and sessions."""

from pgqueue.migrate import run_file

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_file("0001_initial.up.sql")


def downgrade() -> None:
    run_file("0001_initial.down.sql")
