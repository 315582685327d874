# Shared by the scripts beside it: makes .venv in the checkout and installs the project into it.
# Usage: source bootstrap.sh; bootstrap [EXTRA]. Does nothing when the environment is up to date.

PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$PROJECT/.venv

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in ${SKIPTRAIN_PYTHON:-python3 python3.13 python3.12 python3.11 python3.10 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

fingerprint() {
    "$VENV/bin/python" - "$PROJECT/setup.py" <<'PYTHON'
import hashlib, pathlib, sys
print(sys.version, pathlib.Path(sys.argv[1]).parent, hashlib.sha256(pathlib.Path(sys.argv[1]).read_bytes()).hexdigest())
PYTHON
}

up_to_date() {  # $1: the extra that is wanted; an environment with "dev" serves every script
    [ -x "$VENV/bin/python" ] || return 1
    local now stamp
    now=$(fingerprint) || return 1
    for stamp in "$VENV/.installed-$1" "$VENV/.installed-dev"; do
        [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$now" ] && return 0
    done
    return 1
}

bootstrap() {
    local extra=${1:-base} target=$PROJECT python
    up_to_date "$extra" && return
    [ "$extra" = base ] || target="$PROJECT[$extra]"
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        python=$(find_python) || fail "Python 3.10 or newer is needed and was not found;" \
            "install it, or name it in SKIPTRAIN_PYTHON."
        echo "Making $VENV with $("$python" --version)" >&2
        "$python" -m venv --clear "$VENV" || fail "'$python -m venv' failed; install Python's venv and pip" \
            "modules (on Debian and Ubuntu: apt install python3-venv)."
    fi
    echo "Installing skiptrain-plugin and its dependencies (a few minutes the first time)" >&2
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -e "$target" ||
        fail "the installation failed; pip's message above says why. Run the command again to go on."
    fingerprint >"$VENV/.installed-$extra"
}
