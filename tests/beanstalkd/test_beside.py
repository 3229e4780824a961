"""The same commands to this server and to beanstalkd itself: the answers have the same bytes.

Four things are left out. Ids are compared by their order. beanstalkd up to 1.12 does not quote text in its YAML. The
values of `stats` that tell about the process differ. And `delay` of a job is not known here once the delay is over.
"""

from __future__ import annotations

import re

import pytest
from beans import Bean, beanstalkd

pytestmark = pytest.mark.once

LONG = "x" * 200
#: Lines of the connections a and b. {0} is the id of the first job that was put.
SCRIPT = """
a list-tubes | list-tube-used | list-tubes-watched | reserve-with-timeout 0
a put 5 0 60 5~hello | put 1 0 60 0~ | put 3 0 60 2~\0\xff | put 3 100 60 4~late | put 3 0 0 2~xx
a peek {0} | peek {1} | peek {2} | peek 999999 | peek 18446744073709551615 | peek 18446744073709551616
a peek-ready | peek-delayed | peek-buried | stats-job {0} | stats-job {3} | stats-job {4} | stats-job 999999
b reserve | stats-job {1}
a delete {1} | touch {1} | release {1} 0 0 | bury {1} 0 | reserve-job {1} | peek {1} | kick-job {1}
b touch {1} | release {1} 7 0 | reserve-job {3} | stats-job {3} | bury {3} 9
a peek-buried | kick-job {3} | kick-job {3} | stats-job {3} | kick 10
b reserve-with-timeout 1 | bury {2} 8 | reserve-job {2} | bury {2} 8
a stats-tube default | kick 1 | kick 0 | stats-tube none | pause-tube none 3 | pause-tube default 0
a pause-tube default | pause-tube  default   0 | pause-tubedefault 0 | pause-tube default 1x | pause-tube default5
a use other | list-tubes | stats-tube other | watch other | watch other | watch third | ignore default
a list-tubes-watched | ignore other | ignore third | ignore none | list-tube-used
a use  | use | use -a | use a b | use LONG | use LONGx | use ()$_;./+-9 | use other
a  | put | put  | put 1 2 3 | put -1 2 3 4 | put 4294967296 0 1 1 | PUT 0 0 0 0
a put 4294967295 0 1000000000 1~z | put 0 0 1 65536~BIG | stats-job {5} | peek-ready
a statsx | stats  | reservex | reserve  | reserve-job | reserve-job x
a delete | delete  | delete x | delete {0} | delete  {0}
a kick | kick  | kick x | kick 5x | kick-job | kick-job x | kick-job 999999 | touch | touch {0} | bury 1 | release 1
a release 1 2 | release 1 2 x | release 1 1 1 | list-tubesx | list-tube-usedx | peek-readyx | peek | peek x | stats-job
a stats-job x | stats-tube | stats-tube  | stats-tube - | abc\0def | \xff\xfe | watch | ignore | ignore  | LONGLONGLONG
b watch other | ignore default | use t1 | put 10 0 60 1~a | put 10 0 60 1~b | put 5 0 60 1~c | watch t1
b reserve | reserve | reserve
a use t1 | stats-tube t1 | kick 10 | watch t1
b quit
a reserve-with-timeout 9 | reserve-with-timeout 9 | stats-tube t1 | delete {8} | delete {6} | delete {7} | stats-tube t1
a use other | ignore t1 | stats-tube t1 | list-tubes | stats
a put 0 0 1 4~abcdef | list-tube-used
"""
PROCESS = (
    rb"(pid|version|rusage-.time|uptime|hostname|os|platform|binlog-max-size|total-connections|(?<=\n)id): (?!@).*\n"
)


async def answers(port: int) -> list[tuple[str, bytes]]:
    beans: dict[str, Bean] = {}
    ids: list[bytes] = []
    found = []
    for name, line in (line.split(" ", 1) for line in SCRIPT.strip().split("\n")):
        if name not in beans:
            beans[name] = await Bean.connect(port)
        for command in line.split(" | "):
            filled = re.sub(r"\{(\d+)\}", lambda match: ids[int(match[1])].decode(), command)
            filled = filled.replace("LONG", LONG).replace("BIG", "y" * 65536).replace("~", "\r\n", 1)
            answer = await beans[name](filled.encode("latin-1"))
            if answer.startswith(b"INSERTED"):
                ids.append(answer.split()[1])
            found += [(f"{name} {command}", part) for part in comparable(answer, ids).splitlines()]
    for bean in beans.values():
        await bean.close()
    return found


def comparable(answer: bytes, ids: list[bytes]) -> bytes:
    place = {id: b"@%d" % number for number, id in enumerate(ids)}
    pattern = rb"(?<=INSERTED )\d+|(?<=RESERVED )\d+|(?<=FOUND )\d+|(?<=\nid: )\d+(?=\ntube)"
    answer = re.sub(pattern, lambda match: place.get(match[0], match[0]), answer)
    if answer.startswith(b"OK "):
        answer = re.sub(rb"^OK \d+|\ndelay: \d+|\"", b"", answer)
        answer = re.sub(PROCESS, rb"\1\n", answer)
        answer = re.sub(rb"\n(age|time-left): \d+", rb"\n\1", answer)  # seconds
    return answer


async def test_the_answers_are_those_of_beanstalkd(port):
    ours = await answers(port)
    with beanstalkd() as theirs:
        for one, other in zip(ours, await answers(theirs), strict=True):
            assert one == other
