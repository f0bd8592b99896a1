# A zoned image is a zoned disk over ublk. dm-crypt on the image, which supports zones, checks it.
# shellcheck disable=SC2154 # common.sh sets $server
zones=/dev/nullb0
blkzone reset $zones
printf %0128d 7 > hex
table="0 $(blockdev --getsz $zones) crypt aes-xts-plain64 $(cat hex) 0 $zones 0"
dd if=/dev/urandom of=random bs=1M count=6
judge() {
    echo "$table" | dmsetup create judge
    "$@"
    dmsetup remove judge
}

serve out --table "$table" --ublk $zones
disk=$(device_of out)
queue=/sys/block/$(basename "$disk")/queue
[ "$(cat "$queue/zoned")" = host-managed ]
[ "$(cat "$queue/chunk_sectors")" = 8192 ]
[ "$(cat "$queue/nr_zones")" = 256 ]
[ "$(cat "$queue/zone_append_max_bytes")" = 1048576 ]
[ "$(cat "$queue/discard_max_bytes")" = 0 ]

# The disk's zones are those of the image, and are written in order.
dd if=random of="$disk" bs=1M oflag=direct
blkzone report "$disk" > there
blkzone report $zones | cmp - there
grep -c 'zcond:14(fu)' there | grep -qx 1
if dd if=random of="$disk" bs=4k count=1 seek=1600 oflag=direct conv=notrunc; then false; fi
[ "$(sed -n 2p there | grep -c 'wptr 0x001000')" = 1 ]
dd if="$disk" bs=1M count=6 iflag=direct | cmp - random

# Zones are opened, closed, finished and reset.
condition() {
    blkzone report -o $((8192 * $1)) -c 1 $zones
}
blkzone open -o 16384 -c 1 "$disk"
condition 2 | grep -q '(oe)'
blkzone close -o 16384 -c 1 "$disk"
condition 2 | grep -q '(em)'
blkzone finish -o 16384 -c 1 "$disk"
condition 2 | grep -q '(fu)'
blkzone reset -o 16384 -c 1 "$disk"
condition 2 | grep -q '(em)'
condition 1 | grep -q 'wptr 0x001000'

# Several writers, many zones at once.
fio --name=zones --filename="$disk" --ioengine=libaio --direct=1 --iodepth=8 --numjobs=2 \
    --zonemode=zbd --offset=64M --offset_increment=32M --size=16M --io_size=6M --rw=randwrite \
    --bs=64k --max_open_zones=4 --verify=crc32c --verify_fatal=1 --randseed=1 --minimal > fio.out ||
    { cat fio.out; false; }
blkzone reset "$disk"
[ "$(blkzone report $zones | grep -c '(em)')" = 256 ]

# btrfs uses zone append, for which the server returns the position. On dm-crypt it finds all its
# files again.
mkfs.btrfs -q -f "$disk"
mkdir mnt
mount -t btrfs "$disk" mnt
copies=""
for i in 1 2 3; do
    cp random mnt/$i &
    copies="$copies $!"
done
# shellcheck disable=SC2086 # words
wait $copies
sync
umount mnt
stop "$server"
same() {
    mount -t btrfs -o ro /dev/mapper/judge mnt
    for i in 1 2 3; do cmp random mnt/$i; done
    umount mnt
}
judge same

# Impossible combinations are refused.
refused 1 "within one" ucrypt serve --table "0 8192 crypt aes-xts-plain64 $(cat hex) 0 $zones 8" \
    --ublk $zones
refused 1 "cannot wait" ucrypt serve --table "$table" --ublk --ublk-wait $zones
blkzone reset $zones
