# Two seconds in which nothing arrives are fewer than the retries last: 7 times 1.07 s (-u 18) here.
fault wire-cut 2 --when '#bytes' -- write-bw $peer -u 18 -s 1048576 -n 60
