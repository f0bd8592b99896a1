# The kernel's dm-crypt and cryptsetup make and fill volumes; ucrypt opens them over ublk and writes
# to them; dm-crypt reads that back.
# shellcheck disable=SC2154 # common.sh sets $server
dd if=/dev/urandom of=random bs=1M count=3

# fill FILE BLOCK: writes one part of the volume; same FILE BLOCK: compares it.
fill() {
    dd if=random of="$1" bs=48k seek="$2" conv=notrunc,fsync
}
same() {
    dd if="$1" bs=48k skip="$2" count=64 iflag=direct | cmp - random
}

while read -r cipher bits size; do
    rm -f image
    truncate -s 24M image
    options="--cipher $cipher --key-size $bits --sector-size $size"
    # A keyslot with the volume's own cipher would need more of the kernel.
    options="$options --keyslot-cipher aes-xts-plain64 --keyslot-key-size 512"
    pbkdf="--pbkdf pbkdf2 --pbkdf-force-iterations 1000"
    # shellcheck disable=SC2086 # words
    cryptsetup luksFormat -q --type luks2 $options $pbkdf --key-file key image
    cryptsetup open --key-file key image there
    fill /dev/mapper/there 0
    cryptsetup close there

    serve out image --key-file key --ublk
    disk=$(device_of out)
    [ "$(cat "/sys/block/$(basename "$disk")/queue/logical_block_size")" = "$size" ]
    same "$disk" 0
    fill "$disk" 64
    stop "$server"

    cryptsetup open --key-file key image there
    same /dev/mapper/there 0
    same /dev/mapper/there 64
    cryptsetup close there
done <<END
aes-xts-plain64 512 512
aes-xts-plain64 256 4096
aes-cbc-essiv:sha256 256 512
serpent-xts-plain64 512 4096
xchacha20,aes-adiantum-plain64 256 4096
END
