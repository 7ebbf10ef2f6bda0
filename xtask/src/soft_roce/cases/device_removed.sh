# A device that is removed under a program goes when the program has gone (until then rxe serves it as
# before, and only new programs find nothing), can be made anew, and then the next one writes.
status=0
fault device-removed --when '#bytes' --end 5 -- write-bw $peer -s 1048576 -n 1000 || status=$?
[[ $status != 0 && $status != 99 ]] || { echo "status $status"; exit 1; }
rsh $peer busybox killall -9 ib_write_bw || true
write-bw $peer -s 1048576 -n 5
