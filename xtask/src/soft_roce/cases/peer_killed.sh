# Whoever writes to a process that is gone learns of it: the retries end (status 12 or 10).
status=0
fault peer-killed ib_write_bw --when '#bytes' -- timeout 60 write-bw $peer -s 1048576 -n 1000 || status=$?
[[ $status != 0 && $status != 99 && $status != 124 ]] || { echo "status $status"; exit 1; }
