#!/usr/bin/env bash
# Compares SkipTrain with D-PSGD: run_skiptrain.sh DATASET DEGREE [options of 'skiptrain run'].
# Example: run_skiptrain.sh cifar 6. A later --algorithm or --scale replaces the one given here.
set -euo pipefail
if [ $# -lt 2 ] || [[ $1 == -* ]]; then
    echo "usage: run_skiptrain.sh DATASET DEGREE [options of 'skiptrain run'], for example: run_skiptrain.sh cifar 6" >&2
    exit 2
fi
dataset=$1 degree=$2
shift 2
source "$(dirname "${BASH_SOURCE[0]}")/bootstrap.sh"
bootstrap
exec "$VENV/bin/python" -m skiptrain_plugin run --dataset "$dataset" --degree "$degree" \
    --algorithm dpsgd,skiptrain --scale laptop "$@"
