#!/bin/sh
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers millrace.conf
fi
# Jobs that run go on with the program that they were started with.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
