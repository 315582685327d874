#!/usr/bin/env bash
# Makes a figure or table of the paper: run_figure.sh N [options of 'skiptrain figure'], or run_figure.sh table N [...].
# Example: run_figure.sh 5 --dataset cifar. Given again, it reuses what is finished and goes on with the rest.
set -euo pipefail
kind=figure
if [ "${1:-}" = table ] || [ "${1:-}" = figure ]; then
    kind=$1
    shift
fi
if [ $# -lt 1 ] || [[ $1 == -* ]]; then
    echo "usage: run_figure.sh [table] N [options of 'skiptrain figure'], for example: run_figure.sh 5" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"
bootstrap
exec "$VENV/bin/python" -m skiptrain_plugin "$kind" "$@"
