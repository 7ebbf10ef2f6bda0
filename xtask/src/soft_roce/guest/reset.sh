#!/bin/bash
# Takes every fault away: no netem, link up, rxe0 there with its RoCE v2 address at index 1.
tc qdisc del dev eth0 root 2>/dev/null
ip link set eth0 up
[[ -e /sys/class/infiniband/rxe0 ]] || rdma link add rxe0 type rxe netdev eth0 || exit 1
want="0000:0000:0000:0000:0000:ffff:0a09:000$((NODE + 1))"
for ((i = 0; i < 100; i++)); do
  read -r found </sys/class/infiniband/rxe0/ports/1/gids/1 && [[ $found == "$want" ]] && exit 0
  sleep 0.1
done
echo "reset: index 1 of rxe0's addresses is $found, not $want" >&2
exit 1
