#!/bin/bash
# fault KIND [--when TEXT [--end SECONDS]] -- PROGRAM [ARGUMENT...]
# Runs a program under a fault of its machine and takes the fault away again. The exit status is the
# program's; 99 if the fault could not be set. With --when, the fault comes when a line of the program's
# output holds TEXT, else before it starts. With --end, a program that still runs so long after the fault
# gets a SIGTERM: 143.
#
#   netem SPEC            what tc's netem does to eth0: 'loss 1%', 'delay 2ms reorder 25%', 'duplicate 1%'
#   wire-cut SECONDS      no packet leaves eth0 for so long: a retry gets through later
#   link-down SECONDS     eth0 is down for so long: no route either, so that rxe fails what it is to send
#   device-removed        rxe0 is deleted, which rxe's kernel module does not end before its users have
#   peer-killed PROGRAM   every process of that name on the other machine gets a SIGKILL
#   memlock BYTES         the program may lock only so much memory; always from its start
usage() { echo "fault: $1; see the head of $0" >&2; exit 99; }
kind=${1:-} argument=
case $kind in
  device-removed) shift ;;
  netem | wire-cut | link-down | peer-killed | memlock)
    [[ $# -gt 1 ]] || usage "$kind needs an argument"
    argument=$2
    shift 2 ;;
  *) usage "no fault is called '$kind'" ;;
esac
when= end=
[[ ${1:-} != --when ]] || { when=${2:-}; shift 2; }
[[ ${1:-} != --end ]] || { end=${2:-}; shift 2; }
[[ ${1:-} == -- && $# -gt 1 ]] || usage "no '-- PROGRAM'"
shift

set_fault() {
  echo "fault: $kind $argument" >&2
  case $kind in
    netem) tc qdisc add dev eth0 root netem $argument ;;
    wire-cut)
      tc qdisc add dev eth0 root netem loss 100% || return
      { sleep "$argument"; tc qdisc del dev eth0 root; } & ;;
    link-down)
      ip link set eth0 down || return
      { sleep "$argument"; ip link set eth0 up; } & ;;
    device-removed) rdma link delete rxe0 & ;;
    peer-killed) rsh "10.9.0.$((2 - NODE))" "busybox killall -9 $argument" ;;
  esac
}

# Passes on the program's output and waits for the line. A fault that never came proves nothing.
watch() {
  local line result=unset
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $result == unset && $line == *"$when"* ]]; then
      set_fault && result=set || result=failed
      [[ -z $end ]] || { sleep "$end" && kill -- "-$(cat "$leader")" 2>/dev/null; } &
    fi
  done
  [[ $result == set ]] || echo "fault: $result ('$when')" >&2
  wait
  [[ $result == set ]]
}

if [[ $kind == memlock ]]; then
  # root may lock what it likes, unless the capability is taken from it
  setpriv --bounding-set=-ipc_lock prlimit --memlock="$argument:$argument" "$@"
  status=$?
elif [[ -n $when ]]; then
  leader=$(mktemp)
  # a session of its own, which can be ended as a whole
  { setsid "$@" & echo $! >"$leader"; wait $!; } 2>&1 | watch
  results=("${PIPESTATUS[@]}")
  status=${results[0]}
  [[ ${results[1]} == 0 ]] || status=99
elif set_fault; then
  "$@"
  status=$?
else
  status=99
fi
wait
reset || exit 99
exit "$status"
