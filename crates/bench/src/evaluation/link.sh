#!/usr/bin/env bash
# Runs a command on hosts that are network namespaces of this machine, each with a link of a given rate to a switch.
set -euo pipefail

usage() {
  cat <<'USAGE'
Usage: bench/link.sh [OPTIONS] -- COMMAND [ARGUMENT]...

Runs a command between hosts that are network namespaces of this machine. Each has a link of its own to a switch, as fast in both
directions at once as --rate says (a token bucket at both ends: tc-tbf). Everything is gone when the command ends. Needs ip, tc,
nsenter, setsid and unshare; root, or a system that lets users have namespaces.

  --rate RATE    Of each link, as tc has it: 1gbit, 10gbit, 200mbit [default: 1gbit]
  --delay TIME   Each way takes so much longer: 500us, 2ms, 20ms (tc-netem, which not every kernel has) [default: nothing]
  --hosts N      How many hosts, from 2 to 16 [default: 2]
  --slots N      How many processes in a row go to a host (--hosts A:N,B:N) [default: 1]
  --plain        Leave the command as it is. Without this it is given --hosts, --rsh and --listen, as commands of tensorwire take
                 them, and LINK_RATE in the environment, which their lines of JSON name as 'link'. In any case the environment has
                 LINK_HOSTS (addresses, the first is where the command runs) and LINK_RSH (a command that takes an address and a
                 command line, as ssh does)

Examples:
  bench/link.sh -- target/release/tensorwire train --model mlp --steps 40
  bench/link.sh --rate 10gbit -- target/release/tensorwire bench transfer --sizes 1MiB,16MiB
  bench/link.sh --hosts 4 --plain -- sh -c 'echo $LINK_HOSTS'

Exit status: that of the command; 2: something given cannot be right; 1: there can be no such hosts here.
USAGE
}

wrong() {
  echo "link.sh: $1" >&2
  exit 2
}

rate=1gbit delay=0us hosts=2 slots=1 plain=false
while [ $# -gt 0 ]; do
  case "$1" in
    --rate | --delay | --hosts | --slots)
      [ $# -ge 2 ] || wrong "$1 needs a value"
      declare "${1#--}=$2"
      shift 2
      ;;
    --plain) plain=true; shift ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    *) wrong "'$1' is no option; the command comes behind --" ;;
  esac
done
[ $# -gt 0 ] || wrong "no command; see --help"
[[ $hosts =~ ^[0-9]+$ ]] && [ "$hosts" -ge 2 ] && [ "$hosts" -le 16 ] || wrong "--hosts must be from 2 to 16, not '$hosts'"
[[ $slots =~ ^[1-9][0-9]?$ ]] || wrong "--slots must be from 1 to 99, not '$slots'"
[[ $rate =~ ^[1-9][0-9]{0,3}(gbit|mbit)$ ]] || wrong "--rate must be as 1gbit or 200mbit, not '$rate'"
[[ $delay =~ ^[0-9]{1,5}(us|ms)$ ]] || wrong "--delay must be as 500us or 20ms, not '$delay'"
case "$rate" in
  *gbit) bits=$((${rate%gbit} * 1000000000)) ;;
  *) bits=$((${rate%mbit} * 1000000)) ;;
esac
for tool in ip tc nsenter setsid unshare; do
  command -v "$tool" >/dev/null || { echo "link.sh: there is no $tool here (Debian: iproute2, util-linux)" >&2; exit 1; }
done

# once more in namespaces of its own: the switch is in this one
if [ -z "${LINK_INSIDE:-}" ]; then
  options=(--net)
  [ "$(id -u)" -eq 0 ] || options+=(--map-root-user)
  unshare "${options[@]}" true 2>/dev/null || { echo "link.sh: this system gives no network namespace (unshare --net)" >&2; exit 1; }
  arguments=(--rate "$rate" --delay "$delay" --hosts "$hosts" --slots "$slots")
  ! $plain || arguments+=(--plain)
  LINK_INSIDE=1 exec unshare "${options[@]}" bash "$0" "${arguments[@]}" -- "$@"
fi
unset LINK_INSIDE

folder=$(mktemp -d)
keepers=()
cleanup() {
  [ ${#keepers[@]} -eq 0 ] || kill "${keepers[@]}" 2>/dev/null || true
  rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 143' INT TERM

# what a link may send at once: a millisecond of it, and at least some large segments
burst=$((bits / 8 / 1000))
[ "$burst" -ge 262144 ] || burst=262144
pace() {
  "${@:2}" tc qdisc add dev "$1" root handle 1: tbf rate "$rate" burst "$burst" latency 500ms || {
    echo "link.sh: this kernel paces no link (tc-tbf: its module sch_tbf)" >&2
    exit 1
  }
}

# what a host sends waits; what it is sent has waited there. So many packets as are under way at 10 Gb/s in a tenth of a second
hold() {
  "${@:2}" tc qdisc add dev "$1" parent 1:1 handle 2: netem delay "$delay" limit 100000 || {
    echo "link.sh: this kernel holds up no packet (tc-netem: its module sch_netem); without --delay there are links" >&2
    exit 1
  }
}

ip link set lo up
ip link add switch type bridge
ip link set switch up
addresses=()
for number in $(seq 1 "$hosts"); do
  unshare --net sleep infinity &
  keepers+=($!)
  inside=(nsenter "--net=/proc/$!/ns/net")
  # until it has a namespace of its own
  for _ in $(seq 1 200); do
    [ "$(readlink "/proc/$!/ns/net")" = "$(readlink /proc/self/ns/net)" ] || break
    sleep 0.01
  done
  address=10.77.0.$number
  addresses+=("$address")
  ip link add "host$number" type veth peer name eth0 netns "$!"
  ip link set "host$number" master switch up
  "${inside[@]}" ip link set lo up
  "${inside[@]}" ip addr add "$address/24" dev eth0
  "${inside[@]}" ip link set eth0 up
  pace "host$number"
  pace eth0 "${inside[@]}"
  [ "${delay//[^1-9]/}" = "" ] || hold eth0 "${inside[@]}"
  echo "$address) exec nsenter --net=/proc/$!/ns/net sh -c \"\$2\" ;;" >>"$folder/hosts"
done
{
  echo 'case "$1" in'
  cat "$folder/hosts"
  echo '*) echo "link: no host $1" >&2; exit 1 ;;'
  echo 'esac'
} >"$folder/rsh"

LINK_HOSTS=$(IFS=,; echo "${addresses[*]}")
LINK_RSH="sh $folder/rsh"
export LINK_HOSTS LINK_RSH
command=("$@")
if ! $plain; then
  export LINK_RATE=$rate
  command+=(--hosts "${LINK_HOSTS//,/:$slots,}:$slots" --rsh "$LINK_RSH" --listen "${addresses[0]}:0")
fi
# in the background, since a signal interrupts `wait` but no command in the foreground
told=false child=
trap 'told=true; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' INT TERM
# in a session of its own: a Ctrl-C of the terminal comes to it once, from here
setsid nsenter "--net=/proc/${keepers[0]}/ns/net" "${command[@]}" <&0 &
child=$!
# a signal that came before there was whom to tell
! $told || kill -TERM "$child" 2>/dev/null || true
status=0
wait "$child" || status=$?
# a signal ended the wait and not yet the command
while kill -0 "$child" 2>/dev/null; do wait "$child" || status=$?; done
exit "$status"
