# Every byte arrives whole, there and back, over RDMA too, whatever the network does to the packets.
fault netem "$netem" -- tensorwire doctor --peer $peer --rsh rsh --json >/tmp/json
grep -q '"peer":{' /tmp/json
expect "$(grep -o '"severity":"error"' /tmp/json | wc -l)" 0
