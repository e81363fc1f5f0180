#!/bin/sh
# Slurm and munge for `make test-slurm`, where this may be: as root, on Debian and its kin, within four minutes.
# Elsewhere it says why not and leaves the machine as it is; the test is then skipped. The packages start no daemon
# that the test needs, and any that they do start are this machine's own business.
set -eu

have() {
    command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null
}

refuse() {
    echo "==================================================================================" >&2
    echo "SKIPPED: the workflow is not tested through Slurm here: $1." >&2
    echo "==================================================================================" >&2
    exit 0
}

PATH="$PATH:/usr/sbin:/sbin"
have && exit 0
[ "$(id -u)" -eq 0 ] || refuse "Slurm is not installed, and installing it needs root"
command -v apt-get >/dev/null || refuse "Slurm is not installed, and there is no apt-get"
echo "Installing slurm-wlm and munge from Debian (once)."
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { timeout 60 apt-get update && timeout 180 apt-get install -y --no-install-recommends slurm-wlm munge; } \
    >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    refuse "apt-get could not install slurm-wlm and munge (whole log: $log)"
fi
rm -f "$log"
have || refuse "the packages slurm-wlm and munge bring no slurmctld, slurmd or munged here"
