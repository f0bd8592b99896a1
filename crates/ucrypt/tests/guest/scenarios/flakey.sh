# The power fails under a volume as a loop device, whose image is a file on ext4 or a disk. From one
# moment on, the disk below (dm-flakey) drops every write and still reports success. Data synced
# before that moment must be there.
config=/sys/kernel/config/nullb/flakey
mkdir $config
for setting in zoned=0 memory_backed=1 size=64; do
    echo ${setting#*=} > $config/${setting%=*}
done
echo 1 > $config/power
disk=/dev/flakey
[ -b "$disk" ]
size=$((64 * 2048))
# table WORD...: changes what the device does from now on. I/O in flight still arrives, or is
# dropped.
table() {
    dmsetup suspend --nolockfs --noflush power
    dmsetup load power --table "0 $size flakey $disk 0 $*"
    dmsetup resume power
}
dmsetup create power --table "0 $size flakey $disk 0 1 0"
power=/dev/mapper/power
mkdir below

# The process of the only background server.
background_server() {
    grep -l serve-in-backgroun[d] /proc/[0-9]*/cmdline | cut -d / -f 3 | head -n 1
}
block() {
    printf %04096d "$1"
}
# job OPTION...: fio on the first 4 MiB.
job() {
    fio --name=job --filename=/dev/ucrypt/flakey --ioengine=libaio --iodepth=16 --rw=randwrite \
        --bsrange=4k-64k --size=4M --verify=crc32c --verify_fatal=1 --randseed=3 --minimal "$@" \
        > fio.out || { cat fio.out; return 1; }
}
for on in ext4 disk; do
    image=$power
    if [ $on = ext4 ]; then
        mkfs.ext4 -q -F $power
        mount -t ext4 $power below
        image=below/image
        truncate -s 32M $image
    fi
    format $image --sector-size 512
    link=$(ucrypt open --as loop --key-file key $image flakey)
    [ "$link" = /dev/ucrypt/flakey ]
    [ $on = disk ] || job --fsync=16 --end_fsync=1 --do_verify=0
    # Writes blocks from 12 MiB on, and notes each once it is synced.
    : > synced
    (
        number=3072
        while block $number | /bin/dd of="$link" bs=4k seek=$number conv=notrunc,fsync,nocreat; do
            echo $number >> synced
            number=$((number + 1))
        done 2> /dev/null
    ) &
    writer=$!
    while [ "$(wc -l < synced)" -lt 10 ]; do sleep 0.1; done
    count=$(wc -l < synced)
    table 0 1 1 drop_writes
    # This write is reported as synced but is lost: the power is off.
    block 1 | /bin/dd of="$link" bs=4k seek=2560 conv=notrunc,fsync
    kill -KILL "$(background_server)"
    wait $writer || :
    while [ -n "$(background_server)" ]; do sleep 0.1; done
    ucrypt close flakey || :
    if [ $on = ext4 ]; then umount below; fi
    echo 3 > /proc/sys/vm/drop_caches
    table 1 0
    if [ $on = ext4 ]; then mount -t ext4 $power below; fi
    link=$(ucrypt open --as loop --key-file key $image flakey)
    [ $on = disk ] || job --verify_only
    dd if="$link" bs=4k skip=3072 count="$count" iflag=direct > found
    for number in $(seq 3072 $((3071 + count))); do block "$number"; done | cmp - found
    dd if="$link" bs=4k skip=2560 count=1 iflag=direct > found
    if block 1 | cmp - found; then false; fi
    ucrypt close flakey
    if [ $on = ext4 ]; then umount below; fi
done
dmsetup remove power
echo 0 > $config/power
rmdir $config
