# A ublk disk under the random client; several programs on one disk at the same time, each of which
# verifies its own writes: fio, and zeroes and discards between writes; and volumes that are closed
# and opened again by name.
# shellcheck disable=SC2154 # common.sh sets $server
seed=${UCRYPT_SEED:-1}
echo "seed $seed"
# next BOUND: sets $number to the next random number below BOUND.
next() {
    seed=$(((seed * 1103515245 + 12345) & 0x7fffffff))
    number=$((seed / 65536 % $1))
}
dd if=/dev/urandom of=random bs=1M count=4

# change DISK START ROUNDS: in the 4 MiB from START MiB on, writes, zeroes and discards in turn, at
# random sectors of 512 bytes, then compares all of it with a copy. blkdiscard needs -f, because it
# asks for exclusive use of the disk otherwise.
change() {
    disk=$1 start=$2 rounds=$3
    copy=copy.$start
    cp random "$copy"
    dd if=random of="$disk" bs=1M seek="$start" conv=notrunc oflag=direct
    for round in $(seq "$rounds"); do
        next 7000
        first=$number
        next 1000
        count=$((number + 1))
        case $((round % 3)) in
        0)
            dd if=random of="$copy" bs=512 skip=$((round * 7)) seek=$first count=$count conv=notrunc
            dd if=random of="$disk" bs=512 skip=$((round * 7)) seek=$((start * 2048 + first)) \
                count=$count conv=notrunc
            ;;
        1)
            dd if=/dev/zero of="$copy" bs=512 seek=$first count=$count conv=notrunc
            /bin/blkdiscard -f -z -o $((start * 1048576 + first * 512)) -l $((count * 512)) "$disk"
            ;;
        2)
            # A discarded range may hold anything; the bytes beside it must not change.
            /bin/blkdiscard -f -o $((start * 1048576 + first * 512)) -l $((count * 512)) "$disk"
            dd if=random of="$copy" bs=512 seek=$first count=$count conv=notrunc
            dd if=random of="$disk" bs=512 seek=$((start * 2048 + first)) count=$count conv=notrunc
            ;;
        esac
    done
    dd if="$disk" bs=1M skip="$start" count=4 iflag=direct | cmp - "$copy"
}

truncate -s 64M image
for sectors in 512 4096; do
    format image --sector-size $sectors
    serve out image --key-file key --allow-discards --ublk
    disk=$(device_of out)
    # The test program itself, as built outside of the virtual machine.
    UCRYPT_DISK=$disk UCRYPT_SECTOR=$sectors UCRYPT_SEED=$seed /bin/guest-* --ignored \
        transfers_at_once_on_the_same_bytes_of_a_disk_find_what_may_be_there
    if [ $sectors = 512 ]; then
        verify "$disk" --size=2M --bsrange=512-512k --iodepth=64 --randseed="$seed" &
        workers=$!
        for start in 16 20; do
            (seed=$((seed + start)); change "$disk" $start 6) &
            workers="$workers $!"
        done
    else
        verify "$disk" --size=2M --iodepth=64 --numjobs=2 --offset_increment=8M &
        workers=$!
    fi
    for worker in $workers; do wait "$worker"; done
    stop "$server"
done

# Each name leads to its own volume, whatever was open before.
for name in first second; do
    truncate -s 32M image.$name
    format image.$name
    link=$(ucrypt open --key-file key image.$name $name)
    dd if=random of="$link" bs=512k count=1 conv=fsync
    echo $name | dd of="$link" bs=512 conv=notrunc,fsync,sync
    ucrypt close $name
done
for name in second first; do
    link=$(ucrypt open --key-file key image.$name $name)
    [ "$(dd if="$link" bs=512 count=1 iflag=direct | head -n 1)" = $name ]
    dd if="$link" bs=512 skip=1 count=1023 iflag=direct > found
    dd if=random bs=512 skip=1 count=1023 | cmp - found
    ucrypt close $name
done
