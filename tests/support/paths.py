"""Where the repository is, and the material beside it that tests read: corpus, schema, peers."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ACPD_SHARED") or ROOT.parent / "shared")
