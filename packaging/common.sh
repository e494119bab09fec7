#!/usr/bin/env bash
# Prints the drop-in of the units millrace-*: what they share with the unit of one job.
set -euo pipefail
cd "$(dirname "$0")"
echo '# What all units of millrace have in common, from millrace@.service.'
echo '[Service]'
sed -n -e '/^User=/p' -e '/^TimeoutStopSec=/p' -e '/^SuccessExitStatus=/p' -e '/^StateDirectory=/,/^SystemCallErrorNumber=/p' millrace@.service
