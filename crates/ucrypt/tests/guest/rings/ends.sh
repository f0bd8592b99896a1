# What programs see when the server of a file over io_uring is killed, or its connection is
# aborted, under load: errors, soon. What was synced before is there afterwards, and everything can be opened again.
# shellcheck disable=SC2154 # common.sh sets $server
mkfs.ext4 -q -F /dev/disk/ends
mkdir disk
mount /dev/disk/ends disk
truncate -s 48M disk/image
format disk/image
dd if=/dev/urandom of=random bs=1M count=2

# load DISK: in the background, until there is an error. Sets $load.
load() {
    (
        while dd if=random of="$1" bs=16k seek=512 conv=notrunc oflag=direct; do
            dd if="$1" of=/dev/null bs=4k skip=2048 count=256 iflag=direct || break
        done
    ) 2> load.out &
    load=$!
    sleep 1
}

# has_ended PROCESS: within a minute.
has_ended() {
    for _ in $(seq 600); do
        kill -0 "$1" || return 0
        sleep 0.1
    done
    echo t > /proc/sysrq-trigger
    return 1
}

# synced DISK: data that must be there from now on.
synced() {
    dd if=/dev/urandom of=kept bs=1M count=1
    dd if=kept of="$1" bs=64k conv=notrunc,fsync
}

for end in kill abort; do
    serve out disk/image --key-file key --direct --json --fuse file --fuse-transport io_uring
    grep '"transport":"io_uring"' out
    synced file
    connection=$(stat -c %d file)
    load file
    if [ $end = kill ]; then
        kill -KILL "$server"
    else
        mount -t fusectl none /sys/fs/fuse/connections || true
        echo 1 > "/sys/fs/fuse/connections/$connection/abort"
    fi
    has_ended "$load"
    status=0
    wait "$server" || status=$?
    echo "the server ended with $status"
    umount file || true

    serve out disk/image --key-file key --direct --json --fuse file --fuse-transport io_uring
    dd if=file bs=1M count=1 iflag=direct | cmp - kept
    stop "$server"
done
umount disk
