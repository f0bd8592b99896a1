# Calls contrib/csi/node as a CSI driver does. Runs in a mount namespace of its own: those of other tests would keep
# its mounts in use. $1: the script, $2: an ID.
set -euxo pipefail
node=$1 id=$2

size() { df --output=size -B1 "$1" | tail -n 1; }
fails() {
    local code=0
    sh "$node" "${@:2}" 2>error || code=$?
    [ $code = "$1" ]
}
is_open() { [ -e "/dev/ucrypt/csi-$id" ]; }
is_closed() { [ ! -e "/dev/ucrypt/csi-$id" ]; }

# Used, grown, used up, and back with its content.
sh "$node" stage "$id" image key stage xfs
sh "$node" stage "$id" image key stage xfs
sh "$node" publish stage pod
sh "$node" publish stage pod
echo "of a pod" >pod/file
before=$(size stage)
truncate -s 400M image
sh "$node" expand "$id" stage
[ "$(size stage)" -gt "$((before + (50 << 20)))" ]
fails 5 unstage "$id" stage
is_open
sh "$node" unpublish pod
sh "$node" unpublish pod
sh "$node" unstage "$id" stage
sh "$node" unstage "$id" stage
is_closed
sh "$node" stage "$id" image key stage xfs
sh "$node" publish stage pod ro
[ "$(cat pod/file)" = "of a pod" ]
if touch pod/file; then exit 1; fi
sh "$node" unpublish pod
sh "$node" unstage "$id" stage

# What cannot be staged leaves nothing open, and is not formatted.
fails 2 stage "$id" image wrong stage xfs
is_closed
fails 1 stage "$id" image key stage ext4
grep -q "holds xfs, not ext4" error
is_closed
fails 1 stage ../up image key stage
fails 1 stage "$id"
grep -q "node stage ID IMAGE" error
# A partition table is no file system, and stays: 20 MiB of Linux from the first MiB on.
truncate -s 64M table
ucrypt luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file key table
{
    head -c 446 /dev/zero
    printf '\0\0\2\0\203\0\0\0\0\10\0\0\0\240\0\0'
    head -c 48 /dev/zero
    printf '\125\252'
} >sector
ucrypt write --key-file key table <sector
fails 1 stage "$id" table key stage ext4
grep -q "no file system" error
is_closed
ucrypt read --key-file key --length 512 table | cmp - sector
mkdir other
mount -t tmpfs none other
fails 5 stage "$id" image key other
umount other

# One call at a time; the server, which stays, has not inherited the lock.
lock=$XDG_RUNTIME_DIR/csi-$id.lock
flock "$lock" true
exec 8>"$lock"
flock 8
fails 75 stage "$id" image key stage xfs
is_closed
fails 75 unstage "$id" stage
exec 8>&-
sh "$node" stage "$id" image key stage xfs
flock -n "$lock" true

# Something else that is mounted where a pod wants the volume stays, and is not taken for it.
mount -t tmpfs none pod
fails 4 publish stage pod
mountpoint -q pod
umount pod

# A volume whose server does not answer is not unstaged: it may still write.
umount stage
pkill -STOP -f "serve-in-background.*csi-$id\$"
fails 4 unstage "$id" stage
grep -q "still served" error
pkill -CONT -f "serve-in-background.*csi-$id\$"
sh "$node" unstage "$id" stage
is_closed

# A file system whose server was killed is not staged.
sh "$node" stage "$id" image key stage xfs
pkill -KILL -f "serve-in-background.*csi-$id\$"
fails 4 stage "$id" image key stage xfs
# Once it is unmounted, the next call cleans up and goes on.
umount -l stage
sh "$node" stage "$id" image key stage xfs
[ "$(cat stage/file)" = "of a pod" ]
sh "$node" unstage "$id" stage
sh "$node" stage "$id" image key stage xfs
pkill -KILL -f "serve-in-background.*csi-$id\$"
umount -l stage
sh "$node" unstage "$id" stage
[ ! -L "/dev/ucrypt/csi-$id" ]

# What the image cannot take is not unstaged with success: neither as long as it is mounted, nor once the kernel has
# told somebody, and forgotten it.
mkdir short
mount -t tmpfs -o size=48M none short
truncate -s 400M short/image
ucrypt luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file key short/image
sh "$node" stage "$id" short/image key stage
head -c 80M /dev/urandom >stage/file
fails 4 unstage "$id" stage
grep -q "cannot be stored" error
mountpoint -q stage
mount -o remount,size=500M short
fails 4 unstage "$id" stage
grep -q "requests had failed" error
is_closed
sh "$node" unstage "$id" stage
umount short

# A file system that was interrupted while it was made is made again.
truncate -s 400M new
ucrypt luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file key new
mkdir half
cat >half/mkfs.xfs <<'EOF'
#!/bin/sh
# The first superblock is written first, and marked.
PATH=${PATH#*:} mkfs.xfs "$@"
printf '\1' | dd of="$2" bs=1 seek=126 conv=notrunc status=none
exit 137
EOF
chmod +x half/mkfs.xfs
PATH=$PWD/half:$PATH fails 137 stage "$id" new key stage xfs
is_closed
sh "$node" stage "$id" new key stage xfs
sh "$node" unstage "$id" stage

# Of a killed server nothing can be stored, and the volume is unstaged all the same.
truncate -s 64M dead
ucrypt luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file key dead
sh "$node" stage "$id" dead key stage
echo "of a pod" >stage/file
pkill -KILL -f "serve-in-background.*csi-$id\$"
fails 4 stage "$id" dead key stage
sh "$node" unstage "$id" stage
sh "$node" stage "$id" dead key stage
sh "$node" unstage "$id" stage

# A file system of which the script cannot tell whether it is whole is not made again.
cat >half/od <<'EOF'
#!/bin/sh
exit 5
EOF
chmod +x half/od
rm half/mkfs.xfs
PATH=$PWD/half:$PATH fails 1 stage "$id" new key stage xfs
is_closed

# Nothing is published of a directory that is not staged.
fails 4 publish stage pod
[ -z "$(find pod stage -mindepth 1)" ]

# A file system that has failed does not count as unmounted.
sh "$node" stage "$id" image key stage xfs
sh "$node" publish stage pod
xfs_io -x -c shutdown stage
sh "$node" unpublish pod
sh "$node" unstage "$id" stage
is_closed
[ -z "$(grep " $PWD/stage " /proc/self/mounts)" ]
sh "$node" stage "$id" image key stage xfs
[ "$(cat stage/file)" = "of a pod" ]
sh "$node" unstage "$id" stage
