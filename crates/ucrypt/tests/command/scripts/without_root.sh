# without_root.sh DIRECTORY WHAT-TO-OPEN: a user opens and serves a volume, in a private mount
# namespace. DIRECTORY belongs to the user and holds the command and 300000 bytes of data.
set -eu
cd "$1"
shift

# Everybody may use FUSE, as under udev.
mkdir nodes
mount -t tmpfs nodes nodes
mknod -m 666 nodes/fuse c 10 229
mount --bind nodes/fuse /dev/fuse

user="setpriv --reuid=65534 --regid=65534 --clear-groups"

fails() {
    if "$@"; then
        echo "this did not fail: $*" >&2
        exit 1
    fi
}

# Writes the file and reads it back. Nobody else can access the file, not even root: otherwise
# root's programs could block on a user's server.
uses() {
    $user sh -euc 'dd if=data of="$1" bs=7000 conv=notrunc,fsync status=none
        cmp -n 300000 data "$1"' sh "$1"
    fails cat "$1" 2>refused
    grep -q "Permission denied" refused
}

is_gone() {
    fails test -e "$1"
    fails grep -q "$1" /proc/self/mounts
}

path=$($user ./ucrypt open "$@" volume)
test "$path" = "$XDG_RUNTIME_DIR/ucrypt/volume"
uses "$path"
$user ./ucrypt status volume >status
grep -q "export: *fuse" status
$user ./ucrypt close volume
is_gone "$path"

$user ./ucrypt serve "$@" --fuse "$PWD/served" >said &
server=$!
until grep -q "^fuse: $PWD/served$" said; do
    kill -0 $server
    sleep 0.05
done
uses "$PWD/served"
kill $server
wait $server
is_gone "$PWD/served"
