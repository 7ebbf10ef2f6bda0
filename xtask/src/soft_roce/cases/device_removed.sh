# A device that goes away under a program ends it, and comes back for the next one.
if fault device-removed --when '#bytes' -- timeout 30 write-bw $peer -s 1048576 -n 1000; then
  echo "1000 MiB were written by a device that was gone"
  exit 1
fi
write-bw $own -s 1048576 -n 5
