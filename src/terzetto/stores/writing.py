"""What a store of your own needs: events and headers as bytes, and the rules all stores share.

A record is one line of UTF-8 JSON without a newline in it; what can be written can be read.
"""

from ..session._codec import (
    decode_event as decode_event,
    decode_header as decode_header,
    dumps_event as dumps_event,
    encode_event as encode_event,
    encode_header as encode_header,
    loads_event as loads_event,
)
from ._base import (
    EVERY as EVERY,
    check_extensions as check_extensions,
    check_mode as check_mode,
    escape_id as escape_id,
)
from ._handles import (
    Buffer as Buffer,
    check_range as check_range,
    check_start as check_start,
)
