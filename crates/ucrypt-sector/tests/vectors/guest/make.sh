#!/bin/sh
# Makes ../dm-crypt.txt: what the dm-crypt of a real kernel makes of one 8 KiB run, for every line
# of specs.txt, every sector size, and numbers before and behind 2^32.
#
# Boots Debian's kernel in QEMU. Needs the Debian packages qemu-system-x86 busybox-static cpio kmod
# dmsetup python3 and, as the first argument, the unpacked image: the result of
#   apt-get download linux-image-6.1.0-56-cloud-amd64 && dpkg -x linux-image-*.deb IMAGE
set -eu
image=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
kernel=$(ls "$image"/boot/vmlinuz-*)
version=${kernel##*/vmlinuz-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/bin" "$root/sbin" "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/lib"
cp "$(command -v busybox)" "$root/bin/"
for name in sh mount modprobe dd sha256sum losetup truncate reboot cut grep sleep; do
    ln -s busybox "$root/bin/$name"
done
ln -s ../bin/busybox "$root/sbin/modprobe"
cp "$(command -v dmsetup)" "$root/sbin/"
for library in $(ldd "$(command -v dmsetup)" | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$library")"
    cp "$library" "$root$library"
done
modules=lib/modules/$version
mkdir -p "$root/$modules/kernel"
cp "$image/$modules"/modules.* "$root/$modules/"
for part in crypto arch/x86/crypto lib drivers/md drivers/block; do
    mkdir -p "$root/$modules/kernel/$part"
    cp -r "$image/$modules/kernel/$part/." "$root/$modules/kernel/$part/"
done
depmod -b "$root" "$version"
python3 - "$here/specs.txt" "$root" <<'EOF'
import sys
lines = [line.split() for line in open(sys.argv[1]) if not line.startswith("#")]
with open(sys.argv[2] + "/specs", "w") as out:
    for spec, length, *only in lines:
        key = bytes((7 * i + 13) % 256 for i in range(int(length)))
        out.write(f"{spec} {length} {key.hex() or '-'} {' '.join(only) or '-'}\n")
with open(sys.argv[2] + "/pattern", "wb") as out:
    out.write(bytes((131 * i + (i >> 8)) % 256 for i in range(8192)))
EOF
cat > "$root/init" <<'EOF'
#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t tmpfs run /run
export DM_DISABLE_UDEV=1
modprobe loop; modprobe dm-crypt
truncate -s 8192 /run/disk
losetup /dev/loop0 /run/disk
while read -r spec length key only; do
    for options in 512: 512:iv_large_sectors 1024: 1024:iv_large_sectors 2048: \
        2048:iv_large_sectors 4096: 4096:iv_large_sectors
    do
        size=${options%:*}
        large=${options#*:}
        test "$only" = - || test "$only" = "$options" || continue
        for offset in 0 4294967288; do
            table="0 16 crypt $spec $key $offset /dev/loop0 0 \
                $((1 + ${large:+1} + 0)) sector_size:$size $large"
            dmsetup create t --table "$table" 2>/dev/null || { echo "R $spec $options"; break; }
            dd if=/pattern of=/dev/mapper/t bs=8192 conv=fsync 2>/dev/null
            dmsetup remove t
            digest=$(sha256sum < /run/disk | cut -c1-32)
            echo "V $spec $length $size ${large:-plain} $offset $digest"
        done
    done
done < /specs
echo "done"
reboot -f
EOF
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) > "$work/initramfs"
timeout 900 qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -m 1024 -nodefaults \
    -serial stdio -display none -no-reboot -kernel "$kernel" -initrd "$work/initramfs" \
    -append "console=ttyS0 reboot=t panic=-1 quiet" | tr -d '\r' > "$work/log"
grep -q '^done' "$work/log" || { tail -20 "$work/log"; exit 1; }
grep '^R ' "$work/log" | sed 's/^R/refused:/' >&2 || true
{
    echo "# dm-crypt of Linux $version on one run of 8192 bytes, by guest/make.sh:"
    echo "# specification, key length, sector size, numbering, iv_offset, SHA-256 of the ciphertext" \
        "(first half)"
    grep '^V ' "$work/log" | cut -c3-
} > "$here/../dm-crypt.txt"
