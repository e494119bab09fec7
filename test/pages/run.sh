#!/usr/bin/env bash
# Runs the commands of pages between two lab clusters that hold some data: those in blocks marked
# sh. Usage, from the root of the tree after make build: run.sh PAGE…
set -euo pipefail
root=$PWD dir=$(mktemp -d) failed=()
export PATH="$root/bin:$PATH" XDG_STATE_HOME="$dir/state"
for name in $(compgen -e | grep '^MILLRACE_'); do unset "$name"; done

# Ends what a page has started: its processes are one group.
end() {
  if [ -s "$dir/group" ]; then
    { kill -INT -- "-$(cat "$dir/group")" && sleep 1 && kill -KILL -- "-$(cat "$dir/group")"; } 2>/dev/null || true
  fi
  for side in source target; do millrace-bench lab down --name "pages-$side" >/dev/null 2>&1 || true; done
  rm -rf "$dir/work" "$dir/group"
  return 0
}
trap 'end; rm -rf "$dir"' EXIT

run() {
  local page=$1 topology=rs:1 where=$dir/work
  case $page in *sharded*) topology=sharded:2x1 ;; esac
  mkdir -p "$where"
  SOURCE=$(millrace-bench lab up --name pages-source --topology $topology --for 20m --output uri)
  TARGET=$(millrace-bench lab up --name pages-target --topology $topology --for 20m --output uri)
  export SOURCE TARGET
  millrace-bench ycsb load mongodb -P workloada -p mongodb.url="$SOURCE" -p mongodb.database=shop \
    -p table=orders -p recordcount=2000 --threads 2 > "$dir/load.log" 2>&1
  if grep -q '^make build' "$page"; then git clone -q "$root" "$where/tree" && where=$where/tree; fi
  { printf 'set -euo pipefail\necho $$ > "%s"\ncd "%s"\n' "$dir/group" "$where"
    awk '/^```sh$/ {on = 1; next} /^```/ {on = 0} on' "$page"; } > "$dir/script"
  timeout --foreground 600 setsid --wait bash -x "$dir/script" > "$dir/log" 2>&1
}

for page in "$@"; do
  grep -q '^```sh$' "$page" || { echo "-- $page has no commands to run"; continue; }
  began=$SECONDS
  if run "$page"; then
    echo "ok $page, $((SECONDS - began)) s"
  else
    failed+=("$page")
    echo "FAILED $page"
    tail -25 "$dir/log"
  fi
  end
done
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
