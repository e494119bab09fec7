#!/bin/sh
set -e
# Settings, spools and the user stay: a later installation goes on with them.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
