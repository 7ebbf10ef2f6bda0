# A link that goes away takes the route with it: rxe fails what is to be sent, at once, and whoever
# wrote learns of it (status 2, IBV_WC_LOC_QP_OP_ERR). When the link is back, the next one writes.
status=0
fault link-down 2 --when '#bytes' -- timeout 60 write-bw $peer -u 18 -s 1048576 -n 1000 || status=$?
[[ $status != 0 && $status != 99 && $status != 124 ]] || { echo "status $status"; exit 1; }
write-bw $peer -s 1048576 -n 5
