# A device that goes away under a program can be made anew while the program still waits, and the next
# one writes. rxe completes nothing then: ib_write_bw, which only polls, would wait forever.
status=0
fault device-removed --when '#bytes' -- timeout 10 write-bw $peer -s 1048576 -n 1000 || status=$?
[[ $status != 0 && $status != 99 ]] || { echo "status $status"; exit 1; }
rsh $peer busybox killall -9 ib_write_bw || true
write-bw $peer -s 1048576 -n 5
