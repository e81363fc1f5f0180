#!/bin/sh
# PostgreSQL for `make test-tracking`: there already, or installed from Debian as root. Without it those tests are skipped.
set -eu
for place in /usr/lib/postgresql/*/bin; do
    [ -x "$place/initdb" ] && exit 0
done
command -v initdb >/dev/null && exit 0

refuse() {
    echo "*** $1: THE TESTS WITH POSTGRESQL WILL BE SKIPPED ***" >&2
    exit 0
}
[ "$(id -u)" -eq 0 ] || refuse "PostgreSQL is not installed, and only root can install it"
command -v apt-get >/dev/null || refuse "PostgreSQL is not installed, and there is no apt-get"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
if ! { timeout 120 apt-get update && timeout 300 apt-get install -y --no-install-recommends postgresql; } >"$log" 2>&1; then
    tail -5 "$log" >&2
    refuse "apt-get could not install postgresql (whole log: $log)"
fi
rm -f "$log"
