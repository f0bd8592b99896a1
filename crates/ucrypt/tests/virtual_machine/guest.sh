#!/bin/sh
# guest.sh DISK...: writes and verifies the disks in parallel, while their servers come and go.
set -eu
verify() {
    fio --name="$1" --filename="/dev/disk/$1" --direct=1 --ioengine=libaio --iodepth=8 \
        --rw=randwrite --bs=4k-32k --size=16M --rate_iops=60 --verify=crc32c --verify_fatal=1 \
        --eta=never --output="/out/$1.fio"
}
cat /sys/block/vd*/serial > /out/serials
echo "fio begins"
for disk; do
    verify "$disk" &
done
wait
echo "fio ended"
for disk; do
    dd if=/dev/disk/$disk bs=1M count=16 iflag=direct | sha256sum > /out/$disk.sum
done
