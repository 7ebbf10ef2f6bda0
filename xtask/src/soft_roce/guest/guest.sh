# The only process of the machine that lasts: sets up network and device, runs its steps one after
# another, and says by marker lines how far it is. If it ends, the kernel panics and the machine stops.
export HOME=/tmp
export PATH=/run/soft-roce/bin:/run/soft-roce/programs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
read -r line </proc/cmdline
NODE=${line##*NODE=} NODE=${NODE%% *}
export NODE
. /run/soft-roce/config

# The port can be opened only once, and programs may open /dev/stdout again: they get a pipe.
exec > >(exec cat >/dev/vport0p1) 2>&1 </dev/null

# A marker is a line of its own whatever was printed before; the host takes the line break away again.
mark() { printf '\n@@soft-roce %s\n' "$*"; }
fail() { echo "soft-roce: $*"; mark "broken"; sleep infinity; }

# Ends what a step left behind. $1: its session.
end_session() {
  local stat fields
  for stat in /proc/[0-9]*/stat; do
    # the name in the second field may hold anything, so count from the bracket that closes it
    { read -r fields <"$stat"; } 2>/dev/null || continue
    fields=(${fields##*) })
    [[ ${fields[3]} != "$1" ]] || { stat=${stat#/proc/}; kill -9 "${stat%/stat}" 2>/dev/null; }
  done
}

ip link set lo up
ip link set eth0 mtu 4200 && ip addr add "10.9.0.$((NODE + 1))/24" dev eth0 && ip link set eth0 up ||
  fail "eth0 could not be set up"
reset || fail "rxe0 could not be made"
ulimit -l unlimited
cd "$FOLDER" || fail "no folder $FOLDER"
[[ -z $NETEM ]] || tc qdisc add dev eth0 root netem $NETEM || fail "tc does not know 'netem $NETEM'"
if [[ $MACHINES == 2 ]]; then
  /run/soft-roce/bin/xtask soft-roce serve &
  until rsh "10.9.0.$((2 - NODE))" true 2>/dev/null; do
    ((SECONDS < 120)) || fail "the other machine does not answer"
    sleep 0.2
  done
fi
mark ready

for step in /run/soft-roce/steps/"$NODE"/*.sh; do
  [[ -e $step ]] || continue
  name=${step##*/} name=${name%.sh}
  read -r limit <"${step%.sh}.seconds"
  mark "start $((10#$name))"
  # the session's number is that of the process which setsid becomes
  setsid timeout --kill-after=5 "$limit" bash "$step" &
  session=$!
  wait "$session"
  status=$?
  end_session "$session"
  mark "end $((10#$name)) $status"
  # every step finds the machine as the first one did
  [[ $RESET == 0 ]] || reset
  [[ $RESET == 0 || $MACHINES == 1 ]] || rsh "10.9.0.$((2 - NODE))" reset
done
mark "done"
# the host ends the machines when all of them are done: until then the other one may want this one
sleep infinity
