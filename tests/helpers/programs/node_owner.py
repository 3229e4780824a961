"""Owns ephemeral nodes, and says so. Answers each line with a line.

node_owner.py DSN SESSION_GRACE

create PATH  -> {"created": path}
join GROUP   -> {"joined": name}
session      -> {"session": id}
"""

import json
import sys

import pgqueue


def obey(client: pgqueue.Client, verb: str, argument: str) -> dict[str, object]:
    if verb == "create":
        return {"created": client.nodes.create(argument, ephemeral=True).path}
    if verb == "join":
        return {"joined": client.groups.join(argument).name}
    listener = client.shell.core.running_listener
    return {"session": listener and listener.session}


def main(dsn: str, grace: str) -> None:
    with pgqueue.Client(dsn, poll=None, session_grace=float(grace)) as client:
        for line in sys.stdin:
            verb, _, argument = line.strip().partition(" ")
            print(json.dumps(obey(client, verb, argument)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
