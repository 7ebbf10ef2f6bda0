# A limit on locked memory is one that registering a region meets.
if fault memlock 65536 -- write-bw $own -s 1048576 -n 5; then
  echo "4 MiB were registered under a limit of 64 KiB"
  exit 1
fi
write-bw $own -s 1048576 -n 5
