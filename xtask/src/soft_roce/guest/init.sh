#!/bin/busybox sh
# The first program of the machine, in its initial file system: loads the modules, lays the host's own
# files under small file systems that can be written, and goes on there with guest.sh.
b=/bin/busybox
$b mkdir -p /proc /sys /dev /host /mnt
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
while read -r module; do $b insmod "/modules/$module" || echo "insmod $module failed"; done </modules/order
options=trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose
$b mount -t 9p -o $options host /mnt
$b mount --bind /mnt /host  # what the next lines cover is still to be seen here
$b mount -t proc proc /mnt/proc
$b mount -t sysfs sysfs /mnt/sys
$b mount -t devtmpfs devtmpfs /mnt/dev
$b mkdir -p /mnt/dev/shm
# udev would make these; bash needs them
$b ln -s /proc/self/fd /mnt/dev/fd
for at in 0:stdin 1:stdout 2:stderr; do $b ln -s "/proc/self/fd/${at%%:*}" "/mnt/dev/${at##*:}"; done
for folder in dev/shm tmp run; do $b mount -t tmpfs tmpfs /mnt/$folder; done
$b mkdir -p /mnt/run/soft-roce
$b mount -t 9p -o $options job /mnt/run/soft-roce
while read -r folder; do
  $b mkdir -p "/mnt$folder" && $b mount --bind "/host$folder" "/mnt$folder"
done </mnt/run/soft-roce/folders
exec $b chroot /mnt /bin/bash /run/soft-roce/guest.sh
