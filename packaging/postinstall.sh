#!/bin/sh
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers millrace.conf
	# The unit would make it at its first start. A key of the job, and the look at
	# its plan, come before that.
	install -d -o millrace -g millrace -m 0700 /var/lib/millrace
fi
# Jobs that run go on with the program that they were started with.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
