# Files whose requests come by FUSE over io_uring, over an image on a disk: the random client, and fio that verifies
# what it wrote.
# shellcheck disable=SC2154 # common.sh sets $server
[ "$(cat /sys/module/fuse/parameters/enable_uring)" = Y ]
seed=${UCRYPT_SEED:-1}
echo "seed $seed"
mkfs.ext4 -q -F /dev/disk/disks
mkdir disk
mount /dev/disk/disks disk
truncate -s 48M disk/image

# try DISK SECTOR: what it is served with is checked before.
try() {
    # The test program itself, as built outside of the virtual machine.
    UCRYPT_DISK=$1 UCRYPT_SECTOR=$2 UCRYPT_SEED=$seed /bin/guest-* --ignored \
        transfers_at_once_on_the_same_bytes_of_a_disk_find_what_may_be_there
    verify "$1" --size=4M --bsrange="$2-512k" --iodepth=64 --randseed="$seed"
    verify "$1" --size=4M --bsrange="$2-16k" --iodepth=1 --randseed="$seed"
}

for sectors in 512 4096; do
    format disk/image --sector-size $sectors
    serve out disk/image --key-file key --direct --json --fuse file --fuse-transport io_uring
    grep '"transport":"io_uring"' out
    try file $sectors
    stop "$server"

    # With a classic transport, what rings have written is there.
    serve out disk/image --key-file key --direct --json --fuse file --fuse-transport io_uring
    dd if=file of=by_rings bs=1M count=16
    stop "$server"
    serve out disk/image --key-file key --direct --json --fuse file --fuse-transport classic
    dd if=file bs=1M count=16 | cmp - by_rings
    stop "$server"
done
umount disk
