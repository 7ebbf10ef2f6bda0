# The device is there, active, with full MTU, and RoCE v2 at index 1.
ibv_devinfo -d rxe0 | tee /tmp/devinfo
grep -q 'state:.*PORT_ACTIVE' /tmp/devinfo
grep -q 'active_mtu:.*4096' /tmp/devinfo
expect "$(cat /sys/class/infiniband/rxe0/ports/1/gid_attrs/types/1)" "RoCE v2"
expect "$(ulimit -l)" unlimited
