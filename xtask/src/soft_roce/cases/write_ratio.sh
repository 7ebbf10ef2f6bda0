# Our writes and ib_write_bw's, in turns, on the same device.
for ((i = 0; i < 3; i++)); do
  write-bw $own -s 1048576 -n 40
  tensorwire bench write --transport verbs --address $own --sizes 1MiB --json /tmp/own
  tail -n 1 /tmp/own
done
