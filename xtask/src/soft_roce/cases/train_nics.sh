# Each machine has two RDMA NICs on one network, and processes of a host share them: a job whose hosts
# are joined over RDMA has the bits of one on one host, and both NICs of both have carried it.
rail='sysctl -q -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 &&
  ip link add link eth0 name rail1 type macvlan mode bridge && ip link set rail1 mtu 4200 up &&
  ip addr add 10.9.0.$((NODE + 11))/24 dev rail1 && rdma link add rxe1 type rxe netdev rail1 &&
  for i in {1..50}; do ! grep -qi ffff:0a09 /sys/class/infiniband/rxe1/ports/1/gids/* || break; sleep 0.1; done'
eval "$rail"
rsh $peer "$rail"
job="--steps 2 --batch 2 --data synthetic:16 --seed 3 --deadline 60 --json --servers 2"
weights() { sed -n 's/.*"weights_sha256":"\([0-9a-f]*\)".*/\1/p' "$1"; }
tensorwire train --transport shm $job | tee /tmp/one
TENSORWIRE_LOG=info tensorwire train --hosts $own,$peer --rsh rsh $job 2>&1 | tee /tmp/two
expect "$(weights /tmp/two)" "$(weights /tmp/one)"
for nic in rxe0 rxe1; do expect "$(grep -c "RDMA: $nic port 1" /tmp/two)" 2; done
for counter in /sys/class/infiniband/rxe1/ports/1/hw_counters/sent_pkts; do
  [[ $(cat $counter) -gt 0 ]] || { echo "nothing went by rxe1"; exit 1; }
done
# one for all, where it is named
TENSORWIRE_LOG=info tensorwire train --hosts $own,$peer --rsh rsh --nic rxe1 $job 2>&1 | tee /tmp/named
expect "$(weights /tmp/named)" "$(weights /tmp/one)"
expect "$(grep -c 'RDMA: rxe1 port 1' /tmp/named)" 4
rdma link delete rxe1
ip link delete rail1
rsh $peer 'rdma link delete rxe1; ip link delete rail1'
