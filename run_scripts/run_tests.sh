#!/usr/bin/env bash
# Runs every check: ruff, mypy (strict on the package), pytest. Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"
bootstrap dev
cd "$PROJECT"
"$VENV/bin/python" -m ruff check .
"$VENV/bin/python" -m ruff format --check .
"$VENV/bin/python" -m mypy
exec "$VENV/bin/python" -m pytest "$@"
