"""Hypothesis strategies of what the engine handles: events and logs, streams, batches of calls.

Plain functions with plural names. Importing this module needs Hypothesis, which the rest of
`terzetto.testing` does not: install ``terzetto[testing]``.
"""

from ._strategies_answers import (
    Calls as Calls,
    batches as batches,
    scripts as scripts,
    streams as streams,
)
from ._strategies_logs import legal_logs as legal_logs, open_logs as open_logs
from ._strategies_values import (
    assistant_messages as assistant_messages,
    call_configs as call_configs,
    chunks as chunks,
    developer_messages as developer_messages,
    events as events,
    failures as failures,
    json_objects as json_objects,
    json_values as json_values,
    logs as logs,
    messages as messages,
    payloads as payloads,
    requests as requests,
    session_headers as session_headers,
    session_ids as session_ids,
    system_messages as system_messages,
    texts as texts,
    tool_schemas as tool_schemas,
    turn_endings as turn_endings,
    usages as usages,
    user_messages as user_messages,
)
