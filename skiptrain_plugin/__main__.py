"""``python -m skiptrain_plugin`` is the same program as ``skiptrain``."""

from skiptrain_plugin.cli import main

main()
