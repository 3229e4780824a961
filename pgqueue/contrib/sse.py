"""Server-sent events from payloads and data that others have set, for any framework: `yield event(payload)`."""

from .._values.printable import server_sent_event as event

__all__ = ["event"]
