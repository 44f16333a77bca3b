"""The built-in tools of one session."""

from __future__ import annotations

from collections.abc import Sequence

from acpd.native.toolbox import Tool
from acpd.native.tools.changing import Edit, Write
from acpd.native.tools.fetching import Fetch
from acpd.native.tools.finding import GlobTool, Grep
from acpd.native.tools.local import Seen
from acpd.native.tools.planning import Plan
from acpd.native.tools.reading import List, Read
from acpd.native.tools.remembered import memory_tools
from acpd.native.tools.running import Run


def kit(*, remembers: bool = False) -> Sequence[Tool]:
    """Made once for each session: they know which files its model has seen. `remembers`: also beyond the session."""
    seen = Seen()
    remembered = memory_tools() if remembers else ()
    return (Read(seen), List(), GlobTool(), Grep(), Write(seen), Edit(seen), Run(), Fetch(), Plan(), *remembered)
