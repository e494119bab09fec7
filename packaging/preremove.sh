#!/bin/sh
set -e
# dpkg says remove, rpm how many versions stay. An upgrade stops nothing.
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl stop 'millrace@*.service' millrace-serve.service millrace-worker.service
	fi
	;;
esac
