"""The tests. Each acpd that they start serves its editor alone; those of the shim and the daemon say otherwise themselves."""

import os

os.environ.setdefault("ACPD_STANDALONE", "1")
