"""A web console for operators: live parts, queues, streams, dead letters and spools.

Provisional: its public names may change in a minor release.

| module | subject |
|---|---|
| `console` | the public class: an ASGI application |
| `contents` | what it shows: parts, a database, stores and spools |
| `door` | admission: hosts, sessions, forged forms, headers |
| `format` | numbers, times and text |
| `site` | a request and its page, the flow of an action, errors |
| `sections` | the first page, and the order of all |
| `live`, `picture` | consumers, pipes and batchers of this process |
| `queues`, `jobs`, `schedules` | queues in PostgreSQL, their jobs and schedules, and the actions on them |
| `streams`, `parked` | logs and subscriptions, parked keys of consumers |
| `letters`, `spools` | dead letters, spools |
| `stores` | a store of dead letters, and the target of its replays |
| `commands` | `sluicegate console` |

Pages are made on the server by the templates in `templates`. `static` has the styles, and a script
that refreshes tables.
"""

from .._core.public import publish_all
from .console import Console
from .stores import LetterStore

__all__ = ["Console", "LetterStore"]

publish_all(__name__)
