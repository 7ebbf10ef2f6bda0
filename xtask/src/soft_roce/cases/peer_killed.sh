# A peer that is killed takes nobody's device along: the next one writes. ib_write_bw itself never
# learns of it here: it asks for 7 retries, which rxe takes for no end of them.
status=0
fault peer-killed ib_write_bw --when '#bytes' --end 3 -- write-bw $peer -s 1048576 -n 1000 || status=$?
[[ $status != 0 && $status != 99 ]] || { echo "status $status"; exit 1; }
write-bw $peer -s 1048576 -n 5
